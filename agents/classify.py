"""Classify: events that no rule decided, for the light and then the deep model.

The batch's transaction stores each event as open work and moves on; model calls run beside it, bounded; an answer is
written with its outputs and the removal of the item in one transaction. So a slow or dead model blocks no partition,
and at most the calls in flight at a crash are repeated. Equal texts are in one partition: one call serves them all.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from typing import Any

import msgspec

from agents import budget
from agents.answers import model_result, review_of, why_deep
from agents.budget import KafkaBank
from agents.expiry import Expiry
from agents.pools import Held, Open, Pool
from agents.same_text import SameText
from app import metrics
from app.core import App, add_stage
from app.delivery.lane import Lane
from app.delivery.outbox import Outbox
from app.delivery.stage import Batch
from app.delivery.state import View
from app.inference.batcher import LightBatcher
from app.llm.deep import Chain, DeepClassifier, NotNow, OverBudget, RoundUsed, Unanswerable
from app.llm.purse import Purse
from app.logic.dead import dead_headers
from app.settings import Settings
from models.events import Answer, Bad, ModelRequest, Record
from tables.open_work import ANSWERED, CACHE, OPEN, Answered, OpenItem, open_key

__all__ = ["Classify", "declare"]

log = logging.getLogger("headrace.classify")

_json = msgspec.json.Encoder().encode
_read = msgspec.json.Decoder(ModelRequest).decode
_pack = msgspec.msgpack.Encoder().encode

LONGEST_REST_S = 1.0
"""A pool whose providers can't be asked looks again at least this often."""


BUDGET_WAIT_MS = 3000
"""How often events that wait for the budget look again; each look costs no call."""


class Classify:
    """The stage's logic."""

    def __init__(self, settings: Settings, app: App, purse: Purse | None = None) -> None:
        self.settings, self.app, self.purse = settings, app, purse
        self.tasks = {task.name: task for task in settings.tasks}
        self.results, self.reviews = settings.topic("ai-results"), settings.topic("manual-review")
        self.dead_topic = settings.topic("dead-letter")
        self.expiry = Expiry(ANSWERED, int(settings.classify.trace_horizon_s * 1000))
        self.same = SameText(settings.classify)
        self.held = Held()
        self.light = self._pool("light", settings.light.batch * 2, self._ask_light)
        self.deep: dict[Chain, Pool] = {}
        self._known: dict[Lane, dict[bytes, Open]] = {}
        self._highest: dict[Lane, bytes] = {}
        self._closing: dict[Lane, set[bytes]] = {}
        """Answered items whose transaction isn't known to be committed: not asked again."""
        self._batcher: LightBatcher | None = None
        self._client: DeepClassifier | None = None
        self._draining: asyncio.Future[None] | None = None

    @property
    def client(self) -> DeepClassifier:
        """Made with the first use: its connections belong to the worker's event loop.

        Raises:
            SettingsError: a provider's key, headers or CA can't be used.
        """
        self._client = self._client or DeepClassifier(self.settings, recovered=self._recovered, purse=self.purse)
        return self._client

    def _pool(self, name: str, size: int, work: Callable[[Open], Any], **ready: Callable[[], bool]) -> Pool:
        return Pool(name, size, work, dropped=self._dropped, failed=self._bug, **ready)

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
                known[key] = Open(lane, key, item)
                self._enqueue(known[key])

    def closed(self, lane: Lane) -> None:
        """Answers that still come for this lane are not written: its next owner asks again."""
        items = list(self._known.pop(lane, {}).values())
        for open_ in items:
            open_.done = True
        for open_ in items:
            self._let_go(open_)
        self._highest.pop(lane, None)
        self._closing.pop(lane, None)

    def _dropped(self, open_: Open) -> None:
        """Its lane begins again and will find the item in State."""
        if (known := self._known.get(open_.lane)) is not None:
            known.pop(open_.key, None)
        self._let_go(open_)

    def _let_go(self, open_: Open) -> None:
        open_.done = True
        for follower in self.same.leave(open_):
            self._enqueue(follower)

    def room(self, lane: Lane) -> bool:
        return len(self._known.get(lane, ())) < self.settings.classify.max_open

    def tick(self, lane: Lane, now_ms: int) -> None:
        self.expiry.tick(lane, now_ms)
        self.same.expiry.tick(lane, now_ms)
        self._review_old(lane, now_ms)
        for open_ in self.held.due(now_ms):
            self._enqueue(open_)
        for pool in (self.light, *self.deep.values()):
            pool.fill()
        oldest = [open_.item.opened_ms for known in self._known.values() for open_ in list(known.values())[:1]]
        metrics.OPEN_ITEMS.labels("classify").set(sum(map(len, self._known.values())))
        metrics.OLDEST_OPEN_SECONDS.labels("classify").set((now_ms - min(oldest)) / 1000 if oldest else 0)

    def open_items(self, lane: Lane, event_id: str) -> list[tuple[bytes, OpenItem]]:
        """Open items of an event in a lane; from memory, bounded by classify.max_open."""
        known = self._known.get(lane, {})
        return [(k, o.item) for k, o in known.items() if o.item.request.event_id == event_id]

    async def stop(self) -> None:
        """Cuts off the calls in flight; their items stay open in State."""
        for pool in (self.light, *self.deep.values()):
            pool.stop()
        if self._batcher is not None:
            await self._batcher.close()
        if self._draining is not None:
            self._draining.cancel()
        if self._client is not None:
            await self._client.close()

    # -- whom to ask -----------------------------------------------------------------------------------------------

    def _enqueue(self, open_: Open) -> None:
        item = open_.item
        if open_.done:
            return
        if not open_.lane.ready:
            self._dropped(open_)
        elif item.request.task not in self.tasks:  # taken out of the settings while it waited
            self._review(open_, "task-removed", 0)
        elif item.due_ms > _now_ms():
            self.held.put(open_)
        elif item.light_done or item.request.skip_light or not self.settings.light.enabled:
            self._to_deep(open_)
        else:
            self.light.put(open_)

    def _to_deep(self, open_: Open) -> None:
        """From the cache; or with the call of the same text; or to the providers that may see it."""
        if open_.done:
            return
        request = open_.item.request
        chain = self.client.chain(request)
        question = self.same.question(request, self.client.version(request.task), chain)
        answer = self.same.known(open_.lane.view, question, _now_ms())
        if answer is not None:
            metrics.CACHE.labels(request.task, "hit").inc()
            self._finish(open_, answer, "deep", "the same text was answered before")
        elif self.same.join(question, open_):
            metrics.CACHE.labels(request.task, "joined").inc()
        else:
            metrics.CACHE.labels(request.task, "miss").inc()
            self._pool_of(chain).put(open_)

    def _pool_of(self, chain: Chain) -> Pool:
        pool = self.deep.get(chain)
        if pool is None:
            size = max(1, sum(p.settings.concurrency for p in chain)) * self.settings.llm.batch_items
            client = self.client
            pool = self.deep[chain] = self._pool(
                "deep", size, self._ask_deep, ready=lambda: client.ready_in_s(chain) <= 0
            )
        return pool

    def prepare(self, settings: Settings) -> Callable[[], None]:
        """Gets ready for other tasks, prompts or providers.

        Raises:
            SettingsError: a provider's key, headers or CA can't be used. Nothing has changed.
        """
        client = DeepClassifier(settings, recovered=self._recovered, purse=self.purse)

        def switch() -> None:
            old, self._client, self.settings = self._client, client, settings
            self.tasks = {task.name: task for task in settings.tasks}
            self.same.settings = settings.classify
            pools, self.deep = list(self.deep.values()), {}
            waiting = [open_ for pool in (self.light, *pools) for open_ in pool.take()] + self.held.all()
            for open_ in waiting:
                self._again(open_)
            if old is not None:
                self._draining = asyncio.ensure_future(old.drain())

        return switch

    def _again(self, open_: Open) -> None:
        """Another question now, perhaps of other providers: those that waited for the old one ask for themselves."""
        followers = self.same.leave(open_)
        for each in (open_, *followers):
            self._enqueue(each)

    def _recovered(self) -> None:
        """A provider answers again: what was held because of failures needn't wait any longer."""
        for pool in self.deep.values():
            pool.wake()
        for open_ in self.held.all():
            open_.item.due_ms = 0
            self._enqueue(open_)

    # -- the models ------------------------------------------------------------------------------------------------

    async def _ask_light(self, open_: Open) -> None:
        batcher = self._batcher = self._batcher or LightBatcher.for_settings(self.settings.light)
        task = self.tasks[open_.item.request.task]
        category, confidence = await batcher.classify(task, open_.item.request.text)
        threshold = self.settings.light.threshold if task.light_threshold is None else task.light_threshold
        item = open_.item
        item.light_category, item.light_confidence, item.light_done = category, confidence, True
        if confidence >= threshold or open_.over_budget:
            answer = Answer(
                category=category, confidence=confidence, model=batcher.model, model_version=batcher.model_version
            )
            why = f"nearest category, confidence {confidence:.2f}"
            self._finish(open_, answer, "light", f"{why}; over budget" if open_.over_budget else why)
            return
        self._keep(open_)  # a restart goes on at the deep model
        self._enqueue(open_)

    async def _ask_deep(self, open_: Open) -> None:
        item, client = open_.item, self.client
        try:
            answer = await client.classify(item.request)
        except NotNow as error:
            if client is not self.client:  # the settings changed meanwhile
                self._again(open_)
                return
            pool = self._pool_of(client.chain(item.request))
            pool.put_back(open_, min(max(error.retry_after_s or 0.0, 0.1), LONGEST_REST_S))
        except OverBudget as error:
            for each in (open_, *self.same.leave(open_)):
                self._over_budget(each, error)
        except RoundUsed as error:
            for each in (open_, *self.same.leave(open_)):
                self._hold(each, error)
        except Unanswerable as error:
            for each in (open_, *self.same.leave(open_)):
                each.item.tried = error.tried
                self._review(each, error.cause, error.attempts)
        else:
            digest = self.same.digest_of(open_)
            followers = self.same.leave(open_)
            asked = next((p.model for p in client.providers if p.name == answer.provider), "")
            self._finish(open_, answer, "deep", why_deep(item), (digest, asked))
            shared = msgspec.structs.replace(answer, prompt_tokens=0, completion_tokens=0, cost_usd=0.0)
            for follower in followers:
                self._finish(follower, shared, "deep", f"the same text as event {item.request.event_id}")

    def _over_budget(self, open_: Open, error: OverBudget) -> None:
        """The day's money is spent: by the task's policy."""
        policy = self.settings.over_budget(open_.item.request.task)
        if open_.done:
            return
        if policy == "wait":
            open_.item.due_ms = _now_ms() + BUDGET_WAIT_MS  # in memory only: a restart asks at once
            self.held.put(open_)
        elif policy == "light" and self.settings.light.enabled:
            open_.over_budget = True
            self.light.put(open_)
        else:
            open_.item.tried = error.tried
            self._review(open_, "over-budget", 0)

    def _hold(self, open_: Open, error: RoundUsed) -> None:
        """Keeps an item in State until it is due for another round; after the last one a person decides."""
        item, limits = open_.item, self.settings.classify
        if open_.done:
            return
        item.round += 1
        item.attempts += error.attempts
        item.tried = error.tried
        if item.round >= limits.max_rounds:
            self._review(open_, "rounds-used", 0)
            return
        spread = random.uniform(0.9, 1.1)  # noqa: S311 - so that not all come back in the same moment
        item.due_ms = _now_ms() + int(limits.retry_s * 1000 * spread)
        self._keep(open_)
        self.held.put(open_)

    def _bug(self, open_: Open) -> None:
        self._hold(open_, RoundUsed(0, ["a bug in this program; see the log"]))

    def _keep(self, open_: Open) -> None:
        """Writes the item as it is now, unless it is gone."""
        item = msgspec.structs.replace(open_.item)

        def write(view: View, out: Outbox) -> None:
            if view.get_raw(OPEN, [open_.key])[0] is not None:
                out.put(OPEN, open_.key, item)

        open_.lane.post(write)

    # -- the outcome -----------------------------------------------------------------------------------------------

    def _finish(
        self, open_: Open, answer: Answer, tier: Any, why: str, cache: tuple[bytes | None, str] = (None, "")
    ) -> None:
        item, (key, asked) = open_.item, cache

        def write(out: Outbox) -> tuple[str, str, str]:
            done = model_result(item, answer, tier, why, out.now_ms)
            out.send(self.results, done.event_id.encode(), _json(done))
            out.count(done.tier, done.task)
            out.latencies.setdefault(done.tier, []).append(done.latency_ms / 1000)
            if key is not None:
                self.same.remember(out, key, open_.key, answer, asked)
            return done.tier, done.category, done.why

        self._close(open_, write)

    def _review(self, open_: Open, cause: str, attempts: int) -> None:
        task = self.tasks.get(open_.item.request.task)
        categories = [category.id for category in task.categories] if task else []

        def write(out: Outbox) -> tuple[str, str, str]:
            done = review_of(open_.item, categories, cause, attempts, out.now_ms)
            out.send(self.reviews, done.event_id.encode(), _json(done))
            out.count("review", done.task)
            return "review", "", done.cause

        self._close(open_, write)

    def _review_old(self, lane: Lane, now_ms: int) -> None:
        """Items are known in the order of their offsets, so the oldest come first."""
        limit_ms = now_ms - int(self.settings.classify.max_age_s * 1000)
        for open_ in list(self._known.get(lane, {}).values()):
            if open_.item.opened_ms > limit_ms:
                return
            if not (open_.done or open_.running):
                self._review(open_, "too-old", 0)
                self._let_go(open_)

    def _close(self, open_: Open, write: Callable[[Outbox], tuple[str, str, str]]) -> None:
        """Writes the outcome and removes the item, in one transaction of its lane."""
        if open_.done:
            return
        open_.done = True

        def work(view: View, out: Outbox) -> None:
            if view.get_raw(OPEN, [open_.key])[0] is None:
                return  # written by a transaction whose outcome was unknown
            tier, category, why = write(out)
            out.delete(OPEN, open_.key)
            row = (open_.item.request.event_id.encode(), _pack(Answered(out.now_ms, tier, category, why)))
            out.put_packed(ANSWERED, out.now_ms, int.from_bytes(open_.key, "big"), [row])

        self._closing.setdefault(open_.lane, set()).add(open_.key)
        open_.lane.post(work)


def _now_ms() -> int:
    return int(time.time() * 1000)


def declare(app: App) -> None:
    """Adds the classify stage, where there are tasks."""
    settings = app.settings
    if not settings.tasks:
        return
    bank = KafkaBank(app)
    purse = Purse(settings, bank) if settings.has_budget else None
    logic = Classify(settings, app, purse)
    add_stage(
        app,
        name="classify",
        topic=settings.topic("model-requests"),
        logic=logic,
        maps=[OPEN, ANSWERED, CACHE],
        help="Asks the light and then the deep model about events that no rule decided.",
    )

    async def providers() -> None:
        _ = logic.client  # a missing key or CA ends the worker here, with its name

    app.helpers.append(("model providers", providers))
    app.reloadable.append(logic.prepare)
    app.closers.append(logic.stop)
    if purse is not None:
        app.helpers.append(("budget bank", lambda: bank.run(purse)))
        app.closers.append(bank.close)
        budget.declare(app)
