"""Classify: events that no rule decided, for the light and then the deep model.

The batch's transaction stores each event as open work and moves on; model calls run beside it, bounded; an answer is
written with its outputs and the removal of the item in one transaction. So a slow or dead model blocks no partition,
and at most the calls in flight at a crash are repeated.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from agents.answers import model_result, review_of, why_deep
from agents.expiry import Expiry
from app import metrics
from app.core import App, add_stage
from app.delivery.lane import Lane
from app.delivery.outbox import Outbox
from app.delivery.stage import Batch
from app.delivery.state import View
from app.errors import ModelRefused, ModelUnavailable
from app.inference.batcher import LightBatcher
from app.llm.deep import DeepClassifier, Unanswerable
from app.logic.dead import dead_headers
from app.settings import Settings
from models.events import Answer, Bad, ModelRequest, Record
from tables.open_work import ANSWERED, OPEN, Answered, OpenItem, open_key

__all__ = ["Classify", "declare"]

log = logging.getLogger("headrace.classify")

_json = msgspec.json.Encoder().encode
_read = msgspec.json.Decoder(ModelRequest).decode
_pack = msgspec.msgpack.Encoder().encode

ALERT_EVERY_S = 60.0


class Open:
    """An open item in memory."""

    __slots__ = ("item", "key", "lane")

    def __init__(self, lane: Lane, key: bytes, item: OpenItem) -> None:
        self.lane, self.key, self.item = lane, key, item


class Pool:
    """Runs a bounded number of items at once, in order of arrival, and rests when the model does."""

    def __init__(self, name: str, size: int, work: Callable[[Open], Coroutine[Any, Any, None]]) -> None:
        self.name, self.size, self.work = name, size, work
        self.queue: deque[Open] = deque()
        self.running: set[asyncio.Task[None]] = set()
        self.rest_until = 0.0

    def put(self, item: Open) -> None:
        self.queue.append(item)
        self.fill()

    def fill(self) -> None:
        """Starts as many as there is room for."""
        now = time.monotonic()
        while self.queue and len(self.running) < self.size and now >= self.rest_until:
            item = self.queue.popleft()
            if not item.lane.ready:
                continue  # the lane is given up or begins again: whoever works it takes the item from State
            task = asyncio.ensure_future(self.work(item))
            self.running.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("%s: a call ended in a bug: %r", self.name, error, exc_info=error)
        self.fill()


class Classify:
    """The stage's logic."""

    def __init__(self, settings: Settings, app: App) -> None:
        self.settings, self.app = settings, app
        self.tasks = {task.name: task for task in settings.tasks}
        self.results, self.reviews = settings.topic("ai-results"), settings.topic("manual-review")
        self.dead_topic = settings.topic("dead-letter")
        self.expiry = Expiry(ANSWERED, int(settings.classify.trace_horizon_s * 1000))
        self.light = Pool("light", settings.light.batch * 2, self._ask_light)
        self.deep = Pool("deep", settings.llm.concurrency * settings.llm.batch_items, self._ask_deep)
        self._known: dict[Lane, dict[bytes, OpenItem]] = {}
        self._highest: dict[Lane, bytes] = {}
        self._closing: dict[Lane, set[bytes]] = {}
        """Answered items whose transaction isn't known to be committed: not asked again."""
        self._batcher: LightBatcher | None = None
        self._client: DeepClassifier | None = None
        self._failures = 0
        self._alerted = 0.0

    # -- the lane --------------------------------------------------------------------------------------------------

    def decide(self, batch: Batch) -> None:
        """Stores each request as open work."""
        for record in batch.records:
            try:
                request = _read(record.value or b"")
                if request.task not in self.tasks:
                    raise msgspec.ValidationError(f"task {request.task!r} isn't declared any more")
            except msgspec.MsgspecError as error:
                self._bury(batch.out, record, Bad(reason="bad-request", message=str(error)))
                continue
            batch.out.put(OPEN, open_key(record.offset), OpenItem(request=request, opened_ms=batch.out.now_ms))

    def dead(self, batch: Batch, record: Record, error: Exception) -> None:
        message = f"{type(error).__name__} in stage classify; the log has the traceback"
        self._bury(batch.out, record, Bad(reason="stage-failed", message=message))

    def _bury(self, out: Outbox, record: Record, bad: Bad) -> None:
        out.send(self.dead_topic, record.key, record.value, dead_headers(record, bad, "classify"))
        out.count("dead", bad.reason)

    def ready(self, lane: Lane) -> None:
        """Takes up the open items of the partition that aren't known yet."""
        self._known.setdefault(lane, {})
        self._highest[lane] = b""
        self._take_up(lane)

    def committed(self, lane: Lane) -> None:
        known = self._known.get(lane)
        if known is None:
            return
        self._take_up(lane)
        closing = list(self._closing.pop(lane, ()))
        if closing:
            for key, raw in zip(closing, lane.view.get_raw(OPEN, closing), strict=True):
                if raw is None:
                    known.pop(key, None)
                else:
                    self._closing.setdefault(lane, set()).add(key)
            self.app.delivery.room()

    def _take_up(self, lane: Lane) -> None:
        known, start = self._known[lane], self._highest[lane]
        for key, item in lane.view.scan(OPEN, start):
            self._highest[lane] = key + b"\x00"
            if key not in known:
                known[key] = item
                self._enqueue(Open(lane, key, item))

    def _enqueue(self, item: Open) -> None:
        if item.item.request.task not in self.tasks:  # taken out of the settings while it waited
            self._review(item, lambda out: review_of(item.item, [], "task-removed", 0, out.now_ms))
            return
        skip = item.item.light_done or item.item.request.skip_light or not self.settings.light.enabled
        (self.deep if skip else self.light).put(item)

    def closed(self, lane: Lane) -> None:
        """Answers that still come for this lane are not written: its next owner asks again."""
        self._known.pop(lane, None)
        self._highest.pop(lane, None)
        self._closing.pop(lane, None)

    def room(self, lane: Lane) -> bool:
        return len(self._known.get(lane, ())) < self.settings.classify.max_open

    def tick(self, lane: Lane, now_ms: int) -> None:
        self.expiry.tick(lane, now_ms)
        self.light.fill()
        self.deep.fill()
        items = [i.opened_ms for known in self._known.values() for i in (next(iter(known.values()), None),) if i]
        metrics.OPEN_ITEMS.labels("classify").set(sum(map(len, self._known.values())))
        metrics.OLDEST_OPEN_SECONDS.labels("classify").set((now_ms - min(items)) / 1000 if items else 0)

    def open_items(self, lane: Lane, event_id: str) -> list[tuple[bytes, OpenItem]]:
        """Open items of an event in a lane; from memory, bounded by classify.max_open."""
        return [(k, i) for k, i in self._known.get(lane, {}).items() if i.request.event_id == event_id]

    async def stop(self) -> None:
        """Cuts off the calls in flight; their items stay open in State."""
        for task in (*self.light.running, *self.deep.running):
            task.cancel()
        if self._batcher is not None:
            await self._batcher.close()
        if self._client is not None:
            await self._client.close()

    # -- the models ------------------------------------------------------------------------------------------------

    async def _ask_light(self, open_: Open) -> None:
        batcher = self._batcher = self._batcher or LightBatcher.for_settings(self.settings.light)
        task = self.tasks[open_.item.request.task]
        category, confidence = await batcher.classify(task, open_.item.request.text)
        threshold = self.settings.light.threshold if task.light_threshold is None else task.light_threshold
        item = open_.item
        item.light_category, item.light_confidence, item.light_done = category, confidence, True
        if confidence >= threshold:
            answer = Answer(
                category=category, confidence=confidence, model=batcher.model, model_version=batcher.model_version
            )
            why = f"nearest category, confidence {confidence:.2f}"
            self._finish(open_, lambda out: model_result(item, answer, "light", why, out.now_ms))
            return

        def keep(view: View, out: Outbox) -> None:
            if view.get_raw(OPEN, [open_.key])[0] is not None:
                out.put(OPEN, open_.key, item)

        open_.lane.post(keep)  # a restart goes on at the deep model
        self.deep.put(open_)

    async def _ask_deep(self, open_: Open) -> None:
        client = self._client = self._client or DeepClassifier(self.settings)
        item = open_.item
        try:
            answer = await client.classify(item.request)
        except Unanswerable as error:
            cause, attempts = error.cause, error.attempts
            categories = [c.id for c in self.tasks[item.request.task].categories]
            self._review(open_, lambda out: review_of(item, categories, cause, attempts, out.now_ms))
        except (ModelUnavailable, ModelRefused) as error:
            self._rest(error)
            self.deep.queue.appendleft(open_)
        else:
            self._failures = 0
            self._finish(open_, lambda out: model_result(item, answer, "deep", why_deep(item), out.now_ms))

    def _rest(self, error: ModelUnavailable | ModelRefused) -> None:
        """The server fails: all wait, and then one batch tries. Nothing is dropped and nobody is sent to review."""
        limits, now = self.settings.classify, time.monotonic()
        if now < self.deep.rest_until:
            return  # a call of the same wave
        wait_s = min(limits.retry_s * 2**self._failures, limits.max_retry_s)
        if isinstance(error, ModelRefused):
            wait_s = limits.max_retry_s
        wait_s = max(wait_s, min(error.retry_after_s or 0.0, self.settings.llm.max_retry_after_s))
        self._failures += 1
        self.deep.rest_until = now + wait_s
        if now - self._alerted > ALERT_EVERY_S:
            self._alerted = now
            log.error(
                "model server %s: %s; %d events stay open, next try in %.0f s",
                self.settings.llm.base_url,
                error,
                sum(map(len, self._known.values())),
                wait_s,
            )

    # -- the answer ------------------------------------------------------------------------------------------------

    def _finish(self, open_: Open, result: Callable[[Outbox], Any]) -> None:
        def write(out: Outbox) -> tuple[str, str, str]:
            done = result(out)
            out.send(self.results, done.event_id.encode(), _json(done))
            out.count(done.tier, done.task)
            out.latencies.append((done.tier, done.latency_ms / 1000))
            return done.tier, done.category, done.why

        self._close(open_, write)

    def _review(self, open_: Open, review: Callable[[Outbox], Any]) -> None:
        def write(out: Outbox) -> tuple[str, str, str]:
            done = review(out)
            out.send(self.reviews, done.event_id.encode(), _json(done))
            out.count("review", done.task)
            return "review", "", done.cause

        self._close(open_, write)

    def _close(self, open_: Open, write: Callable[[Outbox], tuple[str, str, str]]) -> None:
        """Writes the outcome and removes the item, in one transaction of its lane."""

        def work(view: View, out: Outbox) -> None:
            if view.get_raw(OPEN, [open_.key])[0] is None:
                return  # written by a transaction whose outcome was unknown
            tier, category, why = write(out)
            out.delete(OPEN, open_.key)
            row = (open_.item.request.event_id.encode(), _pack(Answered(out.now_ms, tier, category, why)))
            out.put_packed(ANSWERED, out.now_ms, int.from_bytes(open_.key, "big"), [row])

        self._closing.setdefault(open_.lane, set()).add(open_.key)
        open_.lane.post(work)


def declare(app: App) -> None:
    """Adds the classify stage, where there are tasks."""
    settings = app.settings
    if not settings.tasks:
        return
    logic = Classify(settings, app)
    add_stage(
        app,
        name="classify",
        topic=settings.topic("model-requests"),
        logic=logic,
        maps=[OPEN, ANSWERED],
        help="Asks the light and then the deep model about events that no rule decided.",
    )
    app.closers.append(logic.stop)
