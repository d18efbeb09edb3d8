"""Windows inside ingest: over the batch that it has decoded, in its transaction and State.

For a source that is keyed by the entity. Event time moves with each record of the partition.
"""

import time
from typing import Any

from agents.hopping import Hopping, Quiet, Taken
from agents.rows import Rows
from app.delivery.lane import Lane, Work
from app.delivery.outbox import Outbox
from app.delivery.stage import Batch
from app.delivery.state import View
from app.logic.aggregates import Aggregate
from app.settings import Settings
from tables.panes import HINTS, MAPS, MARK, Mark

__all__ = ["Taken", "WindowChain", "chained"]

HINTS_EVERY_S = 60.0
HINTS_A_TIME = 2000


def chained(settings: Settings, source: str) -> list[Aggregate]:
    """The aggregates that run inside a source's ingest: those over this source alone, where it is keyed by the entity."""
    return [Aggregate(a, [source]) for a in settings.aggregates if settings.chained_to(a) == source]


class WindowChain(Hopping):
    """The windows of one source, in its ingest stage."""

    maps: tuple[Any, ...] = MAPS

    def take(self, batch: Batch, taken: Taken) -> None:
        """Adds events to their windows and closes what they make due."""
        view, out, quiet = batch.state, batch.out, self._of(batch.partition)
        desk = quiet.desk
        desk.fit(view, out)
        if not taken:
            return
        quiet.takes += 1
        quiet.since, quiet.base_ms = time.monotonic(), None
        mark = self._at(view, out, quiet)
        before = mark.high_ms
        placed = self._place(out, desk, taken, mark)
        if mark.high_ms != before:
            out.put(MARK, b"", mark)
        made = self._add(view, out, batch.partition, desk, placed) if placed else {}
        self._close(Rows(view, out), batch.partition, made, len(taken))

    def _at(self, view: View, out: Outbox, quiet: Quiet) -> Mark:
        """Where event time is in this partition; slots are told."""
        mark = quiet.desk.mark
        if mark is None:
            mark = quiet.desk.mark = self._mark(Rows(view, out).get_raw(MARK, [b""])[0])
        for slot in self.slots:
            slot.moved(mark.high_ms)
        return mark

    @staticmethod
    def _mark(raw: bytes | None) -> Mark:
        return Mark() if raw is None else MARK.decode(raw)

    def deep_rules(self, batch: Batch, asked: Taken) -> list[str]:
        """For each event that no rule decided, the intent rule that sends it to the deep model, or nothing."""
        if not self.verdicts.has_hints or not asked:
            return [""] * len(asked)
        keys = [record.key or event.entity.encode() for record, event in asked]
        found = Rows(batch.state, batch.out).get_raw(HINTS, keys)
        hints = [None if raw is None else HINTS.decode(raw) for raw in found]
        return [
            hint.rule
            if hint is not None and hint.offset < record.offset and event.event_time_ms <= hint.until_ms
            else ""
            for hint, (record, event) in zip(hints, asked, strict=True)
        ]

    # -- idle partitions -------------------------------------------------------------------------------------------

    def _advance(self, partition: int, takes: int, idle: bool) -> Work:
        """Work without input: goes on closing; with `idle`, after event time went on with the clock."""

        def work(view: View, out: Outbox) -> None:
            quiet = self._quiet.get(partition)
            if quiet is None:
                return
            quiet.desk.fit(view, out)
            mark = self._at(view, out, quiet)
            if idle:
                if quiet.takes != takes or quiet.base_ms is None:
                    return  # input came meanwhile: its own times count
                mark.high_ms = max(mark.high_ms, self._idle_ms(quiet, quiet.base_ms))
                mark.offset = -1
                out.put(MARK, b"", mark)
                for slot in self.slots:
                    slot.moved(mark.high_ms)
            self._close(Rows(view, out), partition, {}, 0)

        return work

    @staticmethod
    def _idle_ms(quiet: Quiet, base_ms: int) -> int:
        return base_ms + int((time.monotonic() - quiet.since) * 1000)

    def _go_on(self, lane: Lane) -> None:
        partition = lane.tp.partition
        lane.post(self._advance(partition, self._of(partition).takes, idle=False))

    def tick(self, lane: Lane) -> None:
        """About once a second: idle partitions, hints that are over, gauges."""
        partition = lane.tp.partition
        quiet, now = self._of(partition), time.monotonic()
        self.gauges(partition)
        if self.verdicts.has_hints and now - quiet.hints_at > HINTS_EVERY_S:
            quiet.hints_at = now
            lane.post(self._forget_hints)
        idle_s = self.limits.idle_s
        if not idle_s or now - quiet.since < idle_s or quiet.behind or not lane.delivery.caught_up(lane):
            return
        if quiet.base_ms is None:
            quiet.base_ms = self._mark(lane.view.get_raw(MARK, [b""])[0]).high_ms
        if quiet.base_ms >= 0 and self._waiting(lane.view, self._idle_ms(quiet, quiet.base_ms)):
            lane.post(self._advance(partition, quiet.takes, idle=True))

    def _forget_hints(self, view: View, out: Outbox) -> None:
        rows = Rows(view, out)
        high_ms = self._mark(rows.get_raw(MARK, [b""])[0]).high_ms
        over = [key for key, raw in rows.scan(HINTS, b"") if HINTS.decode(raw).until_ms < high_ms]
        for key in over[:HINTS_A_TIME]:
            out.delete(HINTS, key)
