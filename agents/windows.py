"""Windows over the batches of a stage: adds events to panes, moves the watermark, closes what is due.

Runs inside the ingest stage of a source that is keyed by the entity, over the batch it has decoded, in its transaction
and State. All that decides about windows is a function of the records in their order: the watermark moves with each
record, an event that is late for a window is never added to it, however long the window waits to be written.
"""

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from agents.closing import close, due, next_start
from agents.rows import Rows
from agents.verdicts import Verdicts
from app import metrics
from app.delivery.lane import Lane, Work
from app.delivery.maps import Map
from app.delivery.outbox import Outbox
from app.delivery.stage import Batch
from app.delivery.state import View
from app.logic.aggregates import EPOCH, Aggregate, Pane, Segment, pack_time
from app.logic.intent import Intents
from app.logic.windows import first_open, missed, oldest_open
from app.settings import Settings
from models.events import Event, Record
from tables.panes import CLOSING, FIRED, HINTS, MAPS, MARK, PANES, Closing, Mark

__all__ = ["Taken", "WindowChain", "chained"]

Taken = Sequence[tuple[Record, Event]]
"""Newly accepted events with the records they were read from, in order."""

PURGE_ROWS = 5000
"""Panes of an earlier definition removed in one transaction."""
HINTS_EVERY_S = 60.0
HINTS_A_TIME = 2000

_pane = msgspec.msgpack.Decoder(Pane).decode
_names = msgspec.msgpack.Decoder(list[str]).decode


Placed = tuple[Aggregate, Intents, bytes, int, int, Event, Record, bytes]
"""An event on its way into a pane: aggregate, its rules, key, windows missed, pane's start, event, record, entity."""


class Quiet:
    """What a lane's chain keeps in memory: since when it is quiet, and whether windows wait to be closed."""

    __slots__ = ("base_ms", "behind", "hints_at", "panes", "purging", "since", "takes")

    def __init__(self) -> None:
        self.since = self.hints_at = time.monotonic()
        self.base_ms: int | None = None
        """Event time at the last record; the clock is added to it while the partition is idle."""
        self.takes = 0
        self.behind = self.purging = False
        self.panes: dict[str, int] = {}


def chained(settings: Settings, source: str) -> list[Aggregate]:
    """The aggregates that run inside a source's ingest: those over this source alone, where it is keyed by the entity."""
    names = [s.name for s in settings.sources]
    if next(s for s in settings.sources if s.name == source).rekey:
        return []
    return [Aggregate(a, source) for a in settings.aggregates if (a.sources or names) == [source]]


class WindowChain:
    """The windows of one stage.

    Args:
        settings: the tree.
        aggregates: which of them.
        topic: the stage's input.
    """

    maps: tuple[Any, ...] = MAPS

    def __init__(self, settings: Settings, aggregates: list[Aggregate], topic: str) -> None:
        self.aggregates, self.limits = aggregates, settings.windows
        self.max_ahead_ms = round(settings.windows.max_ahead_s * 1000)
        self.early_ms = round(settings.windows.early_s * 1000)
        self.late_topic = settings.topic("late-events")
        self.verdicts = Verdicts(settings, aggregates, topic)
        self._rows = [f"{a.name}@{a.id.hex()}".encode() for a in aggregates]
        self._quiet: dict[int, Quiet] = {}

    # -- input -----------------------------------------------------------------------------------------------------

    def take(self, batch: Batch, taken: Taken) -> None:
        """Adds events to their windows and closes what they make due."""
        quiet = self._quiet.setdefault(batch.partition, Quiet())
        quiet.takes += 1
        quiet.since, quiet.base_ms = time.monotonic(), None
        if not taken:
            return
        view, out = batch.state, batch.out
        mark = self._mark(view.get_raw(MARK, [b""])[0])
        before = mark.high_ms
        placed = self._place(out, mark, taken)
        if mark.high_ms != before:
            out.put(MARK, b"", mark)
        made = self._add(view, out, batch.partition, placed) if placed else {}
        self._close(Rows(view, out), batch.partition, mark.high_ms, made)

    @staticmethod
    def _mark(raw: bytes | None) -> Mark:
        return Mark() if raw is None else MARK.decode(raw)

    def _place(self, out: Outbox, mark: Mark, taken: Taken) -> list[Placed]:
        """Finds the pane of each event, moves the mark, and turns away what is late or too far ahead."""
        placed: list[Placed] = []
        high_ms = mark.high_ms
        both = [(aggregate, self.verdicts.intents[aggregate.name]) for aggregate in self.aggregates]
        for record, event in taken:
            at_ms = event.event_time_ms
            if at_ms > high_ms:
                append_ms = record.timestamp if record.timestamp >= 0 else out.now_ms
                if at_ms > append_ms + self.max_ahead_ms:
                    self._refuse(out, record, event, (("headrace.ahead-ms", b"%d" % (at_ms - append_ms)),))
                    out.count("ahead")
                    continue
                high_ms, mark.offset = at_ms, record.offset
            entity = record.key or event.entity.encode()
            for aggregate, intents in both:
                if not (aggregate.takes_all or aggregate.takes(event)):
                    continue
                hop_ms = aggregate.hop_ms
                pane_ms = at_ms - at_ms % hop_ms
                late = 0
                if pane_ms + hop_ms <= high_ms - aggregate.grace_ms:
                    late = missed(pane_ms, hop_ms, aggregate.panes, high_ms - aggregate.grace_ms)
                    self._late(out, record, event, aggregate, pane_ms, late, high_ms, mark.offset)
                    if late == aggregate.panes:
                        continue
                key = aggregate.id + (pane_ms + EPOCH).to_bytes(8, "big") + entity
                placed.append((aggregate, intents, key, late, pane_ms, event, record, entity))
        mark.high_ms = high_ms
        return placed

    def _late(
        self, out: Outbox, record: Record, event: Event, aggregate: Aggregate, pane_ms: int, late: int, high_ms: int,
        culprit: int,
    ) -> None:  # fmt: skip
        first = oldest_open(pane_ms, aggregate.hop_ms, aggregate.panes, 0)
        starts = b",".join(b"%d" % (first + n * aggregate.hop_ms) for n in range(late))
        self._refuse(
            out, record, event,
            (
                ("headrace.aggregate", aggregate.name.encode()),
                ("headrace.windows", starts),
                ("headrace.watermark", b"%d" % (high_ms - aggregate.grace_ms)),
                ("headrace.watermark-by", b"%d" % culprit),
            ),
        )  # fmt: skip
        out.count("late", aggregate.name)

    def _refuse(self, out: Outbox, record: Record, event: Event, why: tuple[tuple[str, bytes], ...]) -> None:
        origin = b"%s/%d/%d" % (record.topic.encode(), record.partition, record.offset)
        headers = (*record.headers, ("headrace.origin", origin), *why)
        out.send(self.late_topic, record.key or event.entity.encode(), record.value, headers)

    def _add(self, view: View, out: Outbox, partition: int, placed: list[Placed]) -> dict[str, int]:
        """Adds the events to their panes, in order; returns how many panes each aggregate has got."""
        keys = list(dict.fromkeys([item[2] for item in placed]))
        panes: dict[bytes, Pane | None] = {
            key: None if raw is None else _pane(raw) for key, raw in zip(keys, view.get_raw(PANES, keys), strict=True)
        }
        owner: dict[bytes, Aggregate] = {}
        made: dict[str, int] = {}
        early_ms = self.early_ms
        for item in placed:
            aggregate, intents, key, late, _, event, record, _ = item
            pane = panes[key]
            if pane is None:
                pane = panes[key] = Pane()
                made[aggregate.name] = made.get(aggregate.name, 0) + 1
            owner[key] = aggregate
            label = aggregate.label_of(event)
            if not late:
                aggregate.add(pane, event, label, record.offset, record.timestamp)
            else:
                pane.late = pane.late or {}
                aggregate.add(pane.late.setdefault(late, Segment()), event, label, record.offset, record.timestamp)
            if (
                intents.early
                and (label in intents.labels or pane.events >= intents.floor)
                and (pane.checked_ms < 0 or event.event_time_ms - pane.checked_ms >= early_ms)
            ):
                pane.checked_ms = event.event_time_ms
                self._look(view, out, partition, item, panes)
        changelog, local, encode = out.changelog, out.local, PANES.encode
        for key, aggregate in owner.items():
            pane = panes[key]
            assert pane is not None
            if len(pane.sequence) > aggregate.keep or pane.late:
                trim(aggregate, pane)
            changelog[PANES.prefix + key] = local[PANES.prefix + key] = encode(pane)
        return made

    # -- open windows ----------------------------------------------------------------------------------------------

    def _look(self, view: View, out: Outbox, partition: int, item: Placed, panes: dict[bytes, Pane | None]) -> None:
        """Lets the rules see the oldest open window of an event: it holds all that the newer ones hold so far."""
        aggregate, intents, _, late, pane_ms, _, _, entity = item
        start_ms = oldest_open(pane_ms, aggregate.hop_ms, aggregate.panes, late)
        keys = [
            aggregate.id + pack_time(start_ms + place * aggregate.hop_ms) + entity for place in range(aggregate.panes)
        ]
        unknown = [key for key in keys if key not in panes]
        if unknown:
            for key, raw in zip(unknown, view.get_raw(PANES, unknown), strict=True):
                panes[key] = None if raw is None else _pane(raw)
        found = ((place, panes[key]) for place, key in enumerate(keys))
        window = aggregate.total((place, pane) for place, pane in found if pane is not None)
        if window is None:
            return
        holding = intents.fired(window, early=True)
        if not holding:
            return
        row = aggregate.id + pack_time(start_ms) + entity
        raw = Rows(view, out).get_raw(FIRED, [row])[0]
        fired = [] if raw is None else _names(raw)
        new = [rule for rule in holding if rule.name not in fired]
        if new:
            self.verdicts.act(out, partition, aggregate, entity, start_ms, window, new, fired, early=True)
            out.put(FIRED, row, [*fired, *(rule.name for rule in new)])

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

    # -- closing ---------------------------------------------------------------------------------------------------

    def _close(self, rows: Rows, partition: int, high_ms: int, made: dict[str, int]) -> None:
        """Closes what is due, within the bound of a transaction, and notes how far."""
        out, left = rows.out, self.limits.close_windows
        quiet = self._quiet.setdefault(partition, Quiet())
        quiet.behind = False
        stored = rows.get_raw(CLOSING, self._rows)
        for aggregate, row, raw in zip(self.aggregates, self._rows, stored, strict=True):
            closing = Closing(aggregate.id) if raw is None else CLOSING.decode(raw)
            closing.panes += made.get(aggregate.name, 0)
            if high_ms >= 0 and left > 0 and due(aggregate, closing, high_ms):
                left -= close(rows, self.verdicts, partition, aggregate, closing, high_ms, left)
            quiet.behind = quiet.behind or (left <= 0 and due(aggregate, closing, high_ms))
            quiet.panes[aggregate.name] = closing.panes
            if raw != CLOSING.encode(closing):
                out.put(CLOSING, row, closing)

    def _advance(self, partition: int, takes: int, idle: bool) -> Work:
        """Work without input: goes on closing; with `idle`, after event time went on with the clock."""

        def work(view: View, out: Outbox) -> None:
            rows, quiet = Rows(view, out), self._quiet.get(partition)
            if quiet is None:
                return
            mark = self._mark(rows.get_raw(MARK, [b""])[0])
            if idle:
                if quiet.takes != takes or quiet.base_ms is None:
                    return  # input came meanwhile: its own times count
                mark.high_ms = max(mark.high_ms, self._idle_ms(quiet, quiet.base_ms))
                mark.offset = -1
                out.put(MARK, b"", mark)
            self._close(rows, partition, mark.high_ms, {})

        return work

    @staticmethod
    def _idle_ms(quiet: Quiet, base_ms: int) -> int:
        return base_ms + int((time.monotonic() - quiet.since) * 1000)

    # -- life ------------------------------------------------------------------------------------------------------

    def ready(self, lane: Lane) -> None:
        """Goes on closing where the last owner stopped, and removes what belongs to no aggregate any more."""
        partition = lane.tp.partition
        self._quiet[partition] = Quiet()
        lane.post(self._advance(partition, 0, idle=False))
        self._quiet[partition].purging = any(
            key not in self._rows for key, _ in Rows(lane.view, Outbox(0)).scan(CLOSING, b"")
        )
        if self._quiet[partition].purging:
            lane.post(self._purge)

    def closed(self, lane: Lane) -> None:
        if self._quiet.pop(lane.tp.partition, None) is not None:
            for aggregate in self.aggregates:
                metrics.OPEN_PANES.labels(aggregate.name, str(lane.tp.partition)).set(0)

    def committed(self, lane: Lane) -> None:
        """More windows wait: on with it."""
        quiet = self._quiet.get(lane.tp.partition)
        if quiet is None:
            return
        if quiet.behind:
            lane.post(self._advance(lane.tp.partition, quiet.takes, idle=False))
        else:
            lane.delivery.room()
        if quiet.purging:
            lane.post(self._purge)

    def room(self, lane: Lane) -> bool:
        """No input while windows wait: State would grow faster than it closes."""
        quiet = self._quiet.get(lane.tp.partition)
        return quiet is None or not quiet.behind

    def tick(self, lane: Lane) -> None:
        """About once a second: idle partitions, hints that are over, gauges."""
        partition = lane.tp.partition
        quiet = self._quiet.setdefault(partition, Quiet())
        now = time.monotonic()
        for aggregate in self.aggregates:
            metrics.OPEN_PANES.labels(aggregate.name, str(partition)).set(quiet.panes.get(aggregate.name, 0))
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

    def _waiting(self, view: View, high_ms: int) -> bool:
        """Whether a window with content would close at this event time."""
        rows = Rows(view, Outbox(0))
        for aggregate, raw in zip(self.aggregates, rows.get_raw(CLOSING, self._rows), strict=True):
            closing = None if raw is None else CLOSING.decode(raw)
            if closing is None or not closing.panes:
                continue
            start = next_start(rows, aggregate, closing.next_ms)
            if start is not None and start < first_open(
                high_ms - aggregate.grace_ms, aggregate.size_ms, aggregate.hop_ms
            ):
                return True
        return False

    def _purge(self, view: View, out: Outbox) -> None:
        """Removes panes of aggregates that were changed or taken out, some at a time."""
        rows, left = Rows(view, out), PURGE_ROWS
        for name, raw in rows.scan(CLOSING, b""):
            if name in self._rows:
                continue
            prefix = CLOSING.decode(raw).id
            both: tuple[Map[Any], ...] = (PANES, FIRED)
            for of in both:
                for key, _ in rows.scan(of, prefix):
                    if not left:
                        return
                    left -= 1
                    out.delete(of, key)
                    if of is PANES:
                        out.count("purged", name.decode().rsplit("@", 1)[0])
            out.delete(CLOSING, name)
        if view.partition in self._quiet:
            self._quiet[view.partition].purging = False

    def _forget_hints(self, view: View, out: Outbox) -> None:
        rows = Rows(view, out)
        high_ms = self._mark(rows.get_raw(MARK, [b""])[0]).high_ms
        over = [key for key, raw in rows.scan(HINTS, b"") if HINTS.decode(raw).until_ms < high_ms]
        for key in over[:HINTS_A_TIME]:
            out.delete(HINTS, key)


def trim(aggregate: Aggregate, pane: Pane) -> None:
    aggregate.trim(pane)
    for segment in (pane.late or {}).values():
        aggregate.trim(segment)
