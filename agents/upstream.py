"""What ingest tells the stage `windows`: which events count there, and how far event time has come.

For aggregates over several sources, or over one that isn't keyed by the entity. Events go to `window-events`, keyed by the
entity; between them each ingest partition says how far it is (`app.logic.progress`). A source with a rekey hop says so on
`rekeyed`, and the stage behind the hop joins what all its partitions say.
"""

import time
from collections.abc import Sequence
from typing import TypeAlias

from app.delivery.lane import Lane, Work
from app.delivery.outbox import Outbox
from app.delivery.stage import Batch
from app.delivery.state import View
from app.logic.aggregates import Aggregate
from app.logic.progress import Progress, Said, joined, progress_headers
from app.logic.rekey import rekey_headers
from app.settings import Settings
from app.sources.source import Source
from models.events import Event, Record
from tables.progress import SAID, row_of

__all__ = ["HOP", "Passed", "Upstream", "apart", "entity_of", "upstream_of"]

HOP = "ingest-rekeyed"
TELL_EVERY_S = 1.0
"""Progress is told this often, or every TELL_RECORDS: it goes to each partition of the next topic."""
TELL_RECORDS = 2000
PULSE_SHARE = 20
"""An idle partition says so again after a twentieth of the time that it is idle, at least every PULSE_MAX_S: nothing closes
past the moment it last said so."""
PULSE_MAX_S = 10.0

Passed: TypeAlias = Sequence[tuple[Record, Event, Source]]
"""Newly accepted events with the records they were read from, in order."""


def apart(settings: Settings) -> list[Aggregate]:
    """The aggregates that run in the stage `windows`."""
    return [Aggregate(a, settings.over(a)) for a in settings.aggregates if settings.chained_to(a) is None]


def entity_of(record: Record, event: Event, source: Source) -> bytes:
    """The entity as a key: the record's key as it is, except where a rekeyed source names another one."""
    key = record.key
    if key and (not source.rekey or key.decode("utf-8", "replace") == event.entity):
        return key
    return event.entity.encode()


def upstream_of(settings: Settings, stage: str, source: str | None) -> "Upstream | None":
    """For an ingest stage of a source, or of the hop (None); None where nothing behind it needs to know."""
    aggregates = apart(settings)
    rekeyed = {s.name for s in settings.sources if s.rekey}
    over = {name for a in aggregates for name in a.sources}
    if source is None:
        behind = sorted(over & rekeyed)
        return Upstream(settings, stage, behind, aggregates, hop=True) if behind else None
    if source not in over:
        return None
    return Upstream(settings, stage, [source], [] if source in rekeyed else aggregates, hop=False)


class Told:
    """What is kept in memory for a lane."""

    __slots__ = ("at", "base", "heard", "pulse_at", "records", "said", "since", "takes")

    def __init__(self) -> None:
        self.since = time.monotonic()
        self.at = self.pulse_at = 0.0
        self.records = self.takes = 0
        self.said: dict[str, Said] = {}
        """What was told last, by source."""
        self.heard: dict[str, Said] = {}
        """Behind the hop: what was heard, by source and origin."""
        self.base: Said | None = None
        """Where the clock began to go on."""


class Upstream:
    """One ingest stage's part.

    Args:
        settings: the tree.
        stage: its name.
        sources: names of the sources that it tells of.
        aggregates: those that its events are passed on for; empty: only progress is told, on `rekeyed`.
        hop: it is the stage behind the rekey hop.
    """

    def __init__(
        self, settings: Settings, stage: str, sources: list[str], aggregates: list[Aggregate], *, hop: bool
    ) -> None:
        self.stage, self.sources, self.hop = stage, sources, hop
        self.topic = settings.topic("window-events" if aggregates else "rekeyed")
        self.idle_s = settings.windows.idle_s
        self.max_ahead_ms = round(settings.windows.max_ahead_s * 1000)
        self._for = {name: [a for a in aggregates if name in a.sources] for name in sources}
        self._inputs = {s.name: settings.source_topic(s) for s in settings.sources if s.name in sources}
        self._told: dict[int, Told] = {}
        self._counts: dict[str, int] = {}

    # -- input -----------------------------------------------------------------------------------------------------

    def take(self, batch: Batch, passed: Passed, heard: Sequence[Progress] = ()) -> None:
        """Passes events on, and tells progress behind them when it is time."""
        told, out = self._told.setdefault(batch.partition, Told()), batch.out
        out.rows(self.topic)  # comes first among its kind: whatever is merged, progress is written behind the events
        if passed:
            told.since, told.base = time.monotonic(), None
            told.takes += 1
            told.records += len(passed)
            for record, event, source in passed:
                self._pass_on(out, record, event, source)
        if self.hop:
            for progress in heard:
                row = row_of(progress.source, progress.origin)
                told.heard[row.decode()] = progress.said
                out.put(SAID, row, progress.said)
        elif passed:
            self._moved(batch.state, out, passed)
        if told.records >= TELL_RECORDS or time.monotonic() - told.at >= TELL_EVERY_S:
            self._tell(batch.state, out, told)

    def _pass_on(self, out: Outbox, record: Record, event: Event, source: Source) -> None:
        aggregates = self._for.get(source.name)
        if not aggregates:
            return
        if not record.key and event.entity == event.event_id:
            out.count("unkeyed", source.name)
            return
        if any(a.takes_all or a.takes(event) for a in aggregates):
            entity = entity_of(record, event, source)
            out.send(self.topic, entity, record.value, rekey_headers(record, source.name))

    def _moved(self, view: View, out: Outbox, passed: Passed) -> None:
        """Event time is the highest of all events, but for those of clocks that are too far ahead."""
        (source,) = self.sources
        row = source.encode()
        before = self._said(view, out, row)
        high_ms = before.high_ms
        for record, event, _ in passed:
            at_ms = event.event_time_ms
            if at_ms > high_ms:
                append_ms = record.timestamp if record.timestamp >= 0 else out.now_ms
                if at_ms <= append_ms + self.max_ahead_ms:
                    high_ms = at_ms
        if high_ms != before.high_ms or before.idle_ms >= 0:
            out.put(SAID, row, Said(high_ms))

    @staticmethod
    def _said(view: View, out: Outbox, row: bytes) -> Said:
        raw = out.local.get(SAID.prefix + row) or view.get_raw(SAID, [row])[0]
        return Said() if raw is None else SAID.decode(raw)

    # -- telling ---------------------------------------------------------------------------------------------------

    def _now(self, view: View, out: Outbox, told: Told, source: str) -> Said:
        """What there is to tell of a source."""
        if not self.hop:
            return self._said(view, out, source.encode())
        origins = [row_of(source, f"ingest-{source}/{p}").decode() for p in range(self._counts[source])]
        return joined(origins, told.heard)

    def _tell(self, view: View, out: Outbox, told: Told) -> None:
        told.at, told.records = time.monotonic(), 0
        origin = f"{self.stage}/{view.partition}"
        for source in self.sources:
            said = self._now(view, out, told, source)
            if told.said.get(source) == said:
                continue
            told.said[source] = said
            headers = progress_headers(Progress(source, origin, said))
            out.rows(self.topic)
            for partition in range(self._counts[""]):
                out.send(self.topic, None, None, headers, partition)

    def _go_on(self, view: View, out: Outbox) -> None:
        """Work without input: tells what isn't told yet."""
        told = self._told.get(view.partition)
        if told is not None:
            self._tell(view, out, told)

    def _pulse(self, takes: int) -> Work:
        def work(view: View, out: Outbox) -> None:
            told = self._told.get(view.partition)
            if told is None or told.takes != takes:
                return  # input came meanwhile: its own times count
            row = self.sources[0].encode()
            if told.base is None:
                told.base = self._said(view, out, row)
            high_ms = told.base.high_ms
            if high_ms >= 0:
                high_ms += int((time.monotonic() - told.since) * 1000)
            out.put(SAID, row, Said(high_ms, out.now_ms))
            self._tell(view, out, told)

        return work

    def tick(self, lane: Lane) -> None:
        """About once a second."""
        told, now = self._told.get(lane.tp.partition), time.monotonic()
        if told is None:
            return
        quiet_s = now - told.since
        if not self.hop and self.idle_s and quiet_s >= self.idle_s and lane.delivery.caught_up(lane):
            if now >= told.pulse_at:
                told.pulse_at = now + min(PULSE_MAX_S, quiet_s / PULSE_SHARE)
                lane.post(self._pulse(told.takes))
        elif now - told.at >= TELL_EVERY_S and any(
            told.said.get(source) != self._now(lane.view, NOTHING, told, source) for source in self.sources
        ):
            lane.post(self._go_on)

    # -- life ------------------------------------------------------------------------------------------------------

    def ready(self, lane: Lane) -> None:
        """Reads what was heard, and says again where it stands: partitions behind it may be new."""
        told = self._told[lane.tp.partition] = Told()
        partitions = lane.delivery.partitions
        self._counts = {name: partitions[topic] for name, topic in self._inputs.items()} | {"": partitions[self.topic]}
        if self.hop:
            told.heard = {row.decode(): said for row, said in lane.view.scan(SAID)}
        lane.post(self._go_on)

    def closed(self, lane: Lane) -> None:
        self._told.pop(lane.tp.partition, None)


NOTHING = Outbox(0)
