"""Review: what a person decided becomes a result.

The stage reads `review-decisions`: reviews as they are opened, and decisions about them. Its State is the queue, so the
console asks its owner for what waits and reads no topic. A decision is checked here, whoever wrote it: a wrong one is a
dead letter. Readers upsert results, so a later decision is one more result of the same event, and undo leaves the result
that was written in place until then.
"""

import time
from collections.abc import Callable
from itertools import islice

import msgspec

from agents.dead import bury, failed
from agents.rows import Rows
from app import metrics
from app.core import App, add_stage
from app.delivery.lane import Lane
from app.delivery.maps import Map
from app.delivery.outbox import Outbox
from app.delivery.stage import Batch
from app.delivery.state import View
from app.logic.reviews import result_of, wrong
from app.settings import Settings
from models.events import Bad, Record
from models.results import Review
from models.reviews import Decision, Opened
from tables.reviews import DECIDED, REVIEWS, TOTAL, WAITING, WAITING_COUNT, Count, ReviewRow, at_of, place

__all__ = ["STAGE", "Reviews", "declare", "waiting"]

STAGE = "review"

EXPIRE_EVERY_MS = 10_000
EXPIRED_A_TIME = 500
"""Reviews that a transaction removes: a fraction of a second's work."""

_json = msgspec.json.Encoder().encode
_read = msgspec.json.Decoder(Decision).decode
_read_opened = msgspec.json.Decoder(Opened).decode


class _Kind(msgspec.Struct):
    review: msgspec.Raw = msgspec.Raw()


_kind = msgspec.json.Decoder(_Kind).decode


class Reviews:
    """The stage's logic."""

    def __init__(self, settings: Settings) -> None:
        self._dead, self._results = settings.topic("dead-letter"), settings.topic("ai-results")
        self._keep_ms = int(settings.reviews.keep_s * 1000)
        self._tasks = {task.name: task for task in settings.tasks}
        self._expire_ms: dict[Lane, int] = {}
        self._measured: dict[Lane, tuple[int, int | None]] = {}
        """How many wait in each lane, and since when the oldest does."""

    # -- input -----------------------------------------------------------------------------------------------------

    def decide(self, batch: Batch) -> None:
        """Takes reviews into the queue, and decisions out of it."""
        for record in batch.records:
            bad = self._take(record, _Queue(batch.state, batch.out))
            if bad is not None:
                bury(batch.out, self._dead, record, bad, STAGE)

    def _take(self, record: Record, queue: "_Queue") -> Bad | None:
        value = record.value or b""
        try:
            if _kind(value).review:
                return self._open(_read_opened(value).review, queue)
            decision = _read(value)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return Bad(reason="bad-decision", message=f"it is no decision: {error}")
        row = queue.get(decision.event_id.encode())
        if row is None:
            return Bad(
                reason="unknown-review", field="event_id",
                message="no review of this event is kept: it never went to review, or longer than reviews.keep_s ago",
            )  # fmt: skip
        bad = wrong(decision, row.review, self._tasks.get(row.review.task))
        if bad is None:
            self._decide(decision, row, queue)
        return bad

    @staticmethod
    def _open(review: Review, queue: "_Queue") -> None:
        """A review that is known already came again; another one of the same event begins anew."""
        event_id = review.event_id.encode()
        row = queue.get(event_id)
        if row is None or row.review != review:
            queue.put(event_id, row, ReviewRow(review=review, at_ms=review.created_ms))

    def _decide(self, decision: Decision, row: ReviewRow, queue: "_Queue") -> None:
        event_id, review, out = decision.event_id.encode(), row.review, queue.out
        at_ms = min(decision.decided_ms, out.now_ms)
        if at_ms < row.decided_ms:
            out.count("review-overtaken", review.task)
            return
        if decision.undo:
            queue.put(event_id, row, ReviewRow(review=review, at_ms=review.created_ms, decided_ms=at_ms))
            out.count("review-undone", review.task)
            return
        queue.put(event_id, row, ReviewRow(review=review, decision=decision, at_ms=out.now_ms, decided_ms=at_ms))
        out.send(self._results, event_id, _json(result_of(review, decision, out.now_ms)))
        out.count("reviewed", review.task)

    def dead(self, batch: Batch, record: Record, error: Exception) -> None:
        bury(batch.out, self._dead, record, failed(error, STAGE), STAGE)

    # -- the lane --------------------------------------------------------------------------------------------------

    def tick(self, lane: Lane, now_ms: int) -> None:
        """Removes what is too old, and measures the queue."""
        self._measured[lane] = (waiting(lane.view), _oldest_ms(lane.view))
        self._show(now_ms)
        if now_ms < self._expire_ms.get(lane, 0):
            return
        self._expire_ms[lane] = now_ms + EXPIRE_EVERY_MS
        if self._old(lane.view, now_ms):
            lane.post(self._expire)

    def _show(self, now_ms: int) -> None:
        oldest = min((at_ms for _, at_ms in self._measured.values() if at_ms is not None), default=now_ms)
        metrics.OPEN_ITEMS.labels(STAGE).set(sum(count for count, _ in self._measured.values()))
        metrics.OLDEST_OPEN_SECONDS.labels(STAGE).set(max(0, now_ms - oldest) / 1000)

    def _old(self, view: View, now_ms: int) -> list[bytes]:
        """Ids of reviews that came, or were decided, longer ago than they are kept."""
        limit = now_ms - self._keep_ms
        found: list[bytes] = []
        for of in (WAITING, DECIDED):
            for row, _ in islice(view.scan_rows(of.prefix, of.prefix), EXPIRED_A_TIME):
                at_ms, event_id = at_of(row[len(of.prefix) :])
                if at_ms >= limit:
                    break
                found.append(event_id)
        return found

    def _expire(self, view: View, out: Outbox) -> None:
        queue = _Queue(view, out)
        for event_id in self._old(view, out.now_ms):
            row = queue.get(event_id)
            if row is not None and max(row.at_ms, row.decided_ms) < out.now_ms - self._keep_ms:
                queue.put(event_id, row, None)
                if row.decision is None:
                    out.count("review-expired", row.review.task)

    def ready(self, lane: Lane) -> None:
        """Nothing to take up."""

    def closed(self, lane: Lane) -> None:
        """Another worker measures its partition from now on."""
        self._measured.pop(lane, None)
        self._expire_ms.pop(lane, None)
        self._show(int(time.time() * 1000))

    def committed(self, lane: Lane) -> None:
        """Nothing waits for a commit."""

    def room(self, lane: Lane) -> bool:
        return True

    def prepare(self, settings: Settings) -> Callable[[], None]:
        """Gets ready for other tasks."""

        def switch() -> None:
            self._tasks = {task.name: task for task in settings.tasks}

        return switch


class _Queue:
    """The reviews of a partition as they stand behind an outbox, with their places in time and their count."""

    def __init__(self, view: View, out: Outbox) -> None:
        self.out, self._rows = out, Rows(view, out)

    def get(self, event_id: bytes) -> ReviewRow | None:
        raw = self._rows.get_raw(REVIEWS, [event_id])[0]
        return None if raw is None else REVIEWS.decode(raw)

    def put(self, event_id: bytes, old: ReviewRow | None, new: ReviewRow | None) -> None:
        """Sets or removes a review; `old` is what `get` gave."""
        out = self.out
        if old is not None:
            out.delete(_map_of(old), place(old.at_ms, event_id))
        if new is None:
            out.delete(REVIEWS, event_id)
        else:
            out.put(_map_of(new), place(new.at_ms, event_id), new.review.task)
            out.put(REVIEWS, event_id, new)
        change = _waits(new) - _waits(old)
        if change:
            raw = self._rows.get_raw(WAITING_COUNT, [TOTAL])[0]
            count = Count() if raw is None else WAITING_COUNT.decode(raw)
            out.put(WAITING_COUNT, TOTAL, Count(max(0, count.waiting + change)))


def _waits(row: ReviewRow | None) -> bool:
    return row is not None and row.decision is None


def _map_of(row: ReviewRow) -> Map[str]:
    return WAITING if row.decision is None else DECIDED


def waiting(view: View) -> int:
    """How many reviews of a partition wait for a decision."""
    return (view.get(WAITING_COUNT, TOTAL) or Count()).waiting


def _oldest_ms(view: View) -> int | None:
    key = next((row for row, _ in view.scan_rows(WAITING.prefix, WAITING.prefix)), None)
    return None if key is None else at_of(key[len(WAITING.prefix) :])[0]


def declare(app: App) -> None:
    """Adds the stage, unless reviews.keep_s is 0."""
    if not app.settings.reviews.keep_s:
        return
    logic = Reviews(app.settings)
    add_stage(
        app,
        name=STAGE,
        topic=app.settings.topic("review-decisions"),
        logic=logic,
        maps=[REVIEWS, WAITING, DECIDED, WAITING_COUNT],
        help="Keeps events that wait for a person, and makes results of what is decided.",
    )
    app.reloadable.append(logic.prepare)
