"""The stage `windows`: aggregates over several sources, or over one that isn't keyed by the entity.

Reads `window-events`, where ingest puts what counts, keyed by the entity (`agents.upstream`). Event time is what all
partitions that events come from have said; it moves at the records in which they say so.
"""

from collections.abc import Mapping

from agents.dead import bury, failed
from agents.hopping import Hopping, Quiet
from agents.panes import Placed
from agents.rows import Rows
from agents.upstream import HOP, apart
from app.core import App, add_stage
from app.delivery.lane import Lane, Work
from app.delivery.outbox import Outbox
from app.delivery.stage import Batch
from app.delivery.state import View
from app.logic.progress import Progress, Said, joined, progress_of
from app.logic.rekey import unwrap
from app.settings import Settings
from app.sources.source import Source
from models.events import Bad, Event, Received, Record
from tables.panes import CLOSING, FIRED, MARK, PANES, Mark
from tables.progress import SAID, row_of

__all__ = ["STAGE", "WindowStage", "declare"]

STAGE = "windows"


class WindowStage(Hopping):
    """The stage's logic."""

    maps = (PANES, CLOSING, FIRED, MARK, SAID)

    def __init__(self, settings: Settings, sources: Mapping[str, Source], topic: str) -> None:
        super().__init__(settings, apart(settings), topic)
        self.sources, self.dead_topic = sources, settings.topic("dead-letter")
        self._inputs = {s.name: settings.source_topic(s) for s in settings.sources}
        self._hops = {s.name for s in settings.sources if s.rekey}
        self._rekeyed = settings.topic("rekeyed")
        self._origins: list[list[str]] = []
        """For each aggregate, the rows of all partitions that its events come from."""

    # -- input -----------------------------------------------------------------------------------------------------

    def decide(self, batch: Batch) -> None:
        """Adds events to their windows, moves event time where the input says so, and closes what is due."""
        view, out, quiet = batch.state, batch.out, self._of(batch.partition)
        desk = quiet.desk
        desk.fit(view, out)
        heard = self._heard(view, out, quiet)
        placed: list[Placed] = []
        run: list[tuple[Record, Event]] = []
        for record in batch.records:
            if record.key is None:
                progress = progress_of(record)
                if progress is not None and self._hears(out, heard, progress):
                    placed += self._place(out, desk, run, None)
                    run = []
                    self._move(out, quiet, record.offset)
                continue
            one = self._read(out, record)
            if one is not None:
                run.append(one)
        placed += self._place(out, desk, run, None)
        made = self._add(view, out, batch.partition, desk, placed) if placed else {}
        self._close(Rows(view, out), batch.partition, made, len(batch.records))

    def _read(self, out: Outbox, record: Record) -> tuple[Record, Event] | None:
        """The event with its place in this topic and the append time of its raw record."""
        origin, name = unwrap(record)
        source = self.sources.get(name)
        if source is None:
            bad = Bad(reason="bad-field", field="headrace.source", message="no source of that name is declared")
            bury(out, self.dead_topic, record, bad, STAGE)
            return None
        event = source.read(origin)
        if isinstance(event, Bad):
            bury(out, self.dead_topic, record, event, STAGE)
            return None
        at = Received(
            record.topic, record.partition, record.offset, origin.timestamp, record.key, record.value, record.headers
        )
        return at, event

    def _as_received(self, record: Record) -> Record:
        return unwrap(record)[0]

    # -- event time ------------------------------------------------------------------------------------------------

    def _heard(self, view: View, out: Outbox, quiet: Quiet) -> dict[str, Said]:
        """What the partitions before said last; slots are told how far event time is."""
        desk = quiet.desk
        if desk.heard is None:
            rows = Rows(view, out)
            desk.heard = {key.decode(): SAID.decode(raw) for key, raw in rows.scan(SAID, b"")}
            marks = rows.get_raw(MARK, [slot.row for slot in self.slots])
            desk.marks = [Mark() if raw is None else MARK.decode(raw) for raw in marks]
        for slot, mark in zip(self.slots, desk.marks, strict=True):
            slot.moved(mark.high_ms)
        return desk.heard

    @staticmethod
    def _hears(out: Outbox, heard: dict[str, Said], progress: Progress) -> bool:
        row = row_of(progress.source, progress.origin)
        name = row.decode()
        if heard.get(name) == progress.said:
            return False
        heard[name] = progress.said
        out.put(SAID, row, progress.said)
        return True

    def _move(self, out: Outbox, quiet: Quiet, offset: int) -> None:
        """Event time never goes back."""
        heard = quiet.desk.heard
        assert heard is not None
        for slot, origins, mark in zip(self.slots, self._origins, quiet.desk.marks, strict=True):
            high_ms = joined(origins, heard).high_ms
            if high_ms > mark.high_ms:
                mark.high_ms, mark.offset = high_ms, offset
                out.put(MARK, slot.row, mark)
                slot.moved(high_ms)

    # -- life ------------------------------------------------------------------------------------------------------

    def _go_on(self, lane: Lane) -> None:
        lane.post(self._advance(lane.tp.partition))

    def _advance(self, partition: int) -> Work:
        """Work without input: goes on closing."""

        def work(view: View, out: Outbox) -> None:
            quiet = self._quiet.get(partition)
            if quiet is not None:
                quiet.desk.fit(view, out)
                self._heard(view, out, quiet)
                self._close(Rows(view, out), partition, {}, 0)

        return work

    def ready(self, lane: Lane) -> None:
        partitions = lane.delivery.partitions
        rows: dict[str, list[str]] = {}
        for name, topic in self._inputs.items():
            stage, count = (
                (HOP, partitions[self._rekeyed]) if name in self._hops else (f"ingest-{name}", partitions[topic])
            )
            rows[name] = [row_of(name, f"{stage}/{p}").decode() for p in range(count)]
        self._origins = [[row for name in a.sources for row in rows[name]] for a in self.aggregates]
        super().ready(lane)

    def tick(self, lane: Lane, now_ms: int) -> None:
        self.gauges(lane.tp.partition)

    # -- what can't be read ----------------------------------------------------------------------------------------

    def dead(self, batch: Batch, record: Record, error: Exception) -> None:
        bury(batch.out, self.dead_topic, record, failed(error, STAGE), STAGE)


def declare(app: App, sources: Mapping[str, Source]) -> None:
    """Adds the stage, where an aggregate needs it."""
    settings = app.settings
    if not apart(settings):
        return
    topic = settings.topic("window-events")
    logic = WindowStage(settings, sources, topic)
    add_stage(
        app,
        name=STAGE,
        topic=topic,
        logic=logic,
        maps=list(logic.maps),
        help="Adds up the events of several sources, or of rekeyed ones, in windows.",
    )
