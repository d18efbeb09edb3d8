"""Results: keeps each result in State for a day, so that it can be asked for by event_id. Bounded by age and bytes."""

from itertools import islice

import msgspec

from agents.dead import bury, failed
from agents.expiry import RECORDS_A_TIME, Expiry
from agents.rows import Rows
from app.core import App, add_stage
from app.delivery.lane import Lane
from app.delivery.outbox import Outbox
from app.delivery.stage import Batch
from app.delivery.state import View
from app.settings import Settings
from models.events import Record
from tables.results import KEPT, SIZE, TOTAL, Kept, Size

__all__ = ["STAGE", "Results", "declare"]

STAGE = "results"

PACKED_BYTES = 256 << 10
"""Results of a batch share changelog records of this size: well below what a topic takes."""

_pack = msgspec.msgpack.Encoder().encode


class Results:
    """The stage's logic."""

    def __init__(self, settings: Settings) -> None:
        self.dead_topic = settings.topic("dead-letter")
        self.expiry = _Oldest(int(settings.results.keep_s * 1000), settings.results.partition_bytes)

    def decide(self, batch: Batch) -> None:
        """Keeps the results of a batch; of an event that has several, the latest."""
        rows: list[tuple[bytes, bytes]] = []
        held, first = 0, 0
        total = batch.state.get(SIZE, TOTAL) or Size()
        for record in batch.records:
            if not record.key or not record.value:
                continue
            if not rows:
                first = record.offset
            row = (record.key, _pack(Kept(record.timestamp, record.value)))
            rows.append(row)
            held += len(row[0]) + len(row[1])
            if held >= PACKED_BYTES:
                total.bytes += self._keep(batch.out, first, rows)
                rows, held = [], 0
        if rows:
            total.bytes += self._keep(batch.out, first, rows)
        batch.out.put(SIZE, TOTAL, total)

    @staticmethod
    def _keep(out: Outbox, unique: int, rows: list[tuple[bytes, bytes]]) -> int:
        out.put_packed(KEPT, out.now_ms, unique, rows)
        packed = out.changelog[KEPT.record(out.now_ms, unique)]
        return len(packed or b"")

    def dead(self, batch: Batch, record: Record, error: Exception) -> None:
        bury(batch.out, self.dead_topic, record, failed(error, STAGE), STAGE)

    def tick(self, lane: Lane, now_ms: int) -> None:
        self.expiry.tick(lane, now_ms)

    def ready(self, lane: Lane) -> None:
        """Nothing to take up."""

    def closed(self, lane: Lane) -> None:
        """Nothing runs beside the lane."""

    def committed(self, lane: Lane) -> None:
        """Nothing waits for a commit."""

    def room(self, lane: Lane) -> bool:
        return True


class _Oldest(Expiry):
    """Removes what is too old, and the oldest of what is too much; keeps count of the bytes."""

    def __init__(self, horizon_ms: int, max_bytes: int) -> None:
        super().__init__(KEPT, horizon_ms)
        self.max_bytes = max_bytes

    def _over(self, view: View) -> int:
        excess = (view.get(SIZE, TOTAL) or Size()).bytes - self.max_bytes
        count = 0
        for _, packed in islice(view.scan_rows(KEPT.records, KEPT.records), RECORDS_A_TIME):
            if excess <= 0:
                break
            excess -= len(packed)
            count += 1
        return count

    def _remove(self, view: View, out: Outbox) -> None:
        """Reads through the outbox: the same transaction may hold newer results and another size."""
        through = Rows(view, out)
        raw = through.get_raw(SIZE, [TOTAL])[0]
        total = Size() if raw is None else SIZE.decode(raw)
        for record, packed in self._old(view, out.now_ms)[0]:
            if record in out.local and out.local[record] is None:
                continue  # removed by an earlier work of this transaction
            rows = KEPT.unpack(packed)
            out.expire_packed(KEPT, record, packed, through.get_raw(KEPT, [key for key, _ in rows]))
            total.bytes = max(0, total.bytes - len(packed))
        out.put(SIZE, TOTAL, total)


def declare(app: App) -> None:
    """Adds the stage, unless results.keep_s is 0."""
    if app.settings.results.keep_s:
        add_stage(
            app,
            name=STAGE,
            topic=app.settings.topic("ai-results"),
            logic=Results(app.settings),
            maps=[KEPT, SIZE],
            help="Keeps results for a day, to be asked for by event_id.",
        )
