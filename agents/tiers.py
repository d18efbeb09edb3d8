"""The model tiers: which of them is asked about an open item, and what becomes of it then.

Light first, unless a rule asked for the deep model; then the cache, the call of the same text, or the providers that may
see the event. Calls run beside the lanes, bounded by pools.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any

import msgspec

from agents.answers import why_deep
from agents.open_items import OpenItems, now_ms
from agents.pools import Held, Open, Pool
from agents.prompts import Prompts
from agents.same_text import SameText
from app import crash, metrics
from app.delivery.outbox import Outbox
from app.inference.batcher import LightBatcher
from app.llm.deep import Chain, DeepClassifier, NotNow, OverBudget, RoundUsed, Unanswerable
from app.llm.ledger import Ledger
from app.llm.prompts import refuse_renamed
from app.llm.purse import Purse
from app.settings import Settings
from models.events import Answer, Exchange

__all__ = ["Tiers"]

LONGEST_REST_S = 1.0
"""A pool whose providers can't be asked looks again at least this often."""

BUDGET_WAIT_MS = 3000
"""How often events that wait for the budget look again; each look costs no call."""

ROUNDS_OF_BAD_ANSWERS = 2
"""The round whose answers weren't valid, and one more; each asks a provider up to six times."""

BAD_ANSWERS_WAIT_S = 30.0
"""Until that one, at most: the server answers, so there is nothing to wait for but a short spell of bad answers."""


class Tiers:
    """Asks about items that `enqueue` gets, and gives their outcome to `items`.

    Args:
        settings: tasks, tiers, providers.
        items: closes and keeps items.
        ledger: counts what calls use.
        purse: what calls may cost; None: no limit.
    """

    def __init__(self, settings: Settings, items: OpenItems, ledger: Ledger, purse: Purse | None = None) -> None:
        self.settings, self._items, self._ledger, self._purse = settings, items, ledger, purse
        self.tasks = {task.name: task for task in settings.tasks}
        self.same, self.prompts = SameText(settings.classify), Prompts(settings.classify)
        self._held = Held()
        self._light = self._pool("light", settings.light.batch * 2, self._ask_light)
        self._deep: dict[Chain, Pool] = {}
        self._batcher: LightBatcher | None = None
        self._client: DeepClassifier | None = None
        self._draining: asyncio.Future[None] | None = None

    @property
    def client(self) -> DeepClassifier:
        """Made with the first use: its connections belong to the worker's event loop.

        Raises:
            SettingsError: a provider's key, headers or CA can't be used.
        """
        self._client = self._client or self._client_for(self.settings)
        return self._client

    def _client_for(self, settings: Settings) -> DeepClassifier:
        return DeepClassifier(
            settings, recovered=self._recovered, purse=self._purse, ledger=self._ledger, before=self._client
        )

    def _pool(
        self, name: str, size: int, work: Callable[[Open], Coroutine[Any, Any, None]], **ready: Callable[[], bool]
    ) -> Pool:
        return Pool(name, size, work, dropped=self._items.dropped, failed=self._bug, **ready)

    @property
    def _pools(self) -> Iterator[Pool]:
        yield self._light
        yield from self._deep.values()

    def tick(self, now_ms: int) -> None:
        """Called about once a second: takes up what is due."""
        for open_ in self._held.due(now_ms):
            self.enqueue(open_)
        for pool in self._pools:
            pool.fill()
        self._ledger.turn()

    def let_go(self, open_: Open) -> None:
        """It isn't asked any more; those that wait for the call of the same text ask for themselves."""
        for follower in self.same.leave(open_):
            self.enqueue(follower)

    async def stop(self) -> None:
        """Cuts off the calls in flight; their items stay open in State."""
        for pool in self._pools:
            pool.stop()
        if self._batcher is not None:
            await self._batcher.close()
        if self._draining is not None:
            self._draining.cancel()
        if self._client is not None:
            await self._client.close()

    def prepare(self, settings: Settings) -> Callable[[], None]:
        """Gets ready for other tasks, prompts or providers.

        Raises:
            SettingsError: a provider's key, headers or CA can't be used, or a prompt changed under its name. Nothing has
                changed.
        """
        refuse_renamed(self.settings, settings)
        client = self._client_for(settings)

        def switch() -> None:
            old, self._client, self.settings = self._client, client, settings
            self.tasks = {task.name: task for task in settings.tasks}
            self.same.use(settings.classify)
            self.prompts.use(settings.classify)
            pools, self._deep = list(self._deep.values()), {}
            waiting = [open_ for pool in (self._light, *pools) for open_ in pool.take()] + self._held.all()
            for open_ in waiting:
                self._again(open_)
            if old is not None:
                self._draining = asyncio.ensure_future(old.drain())

        return switch

    # -- whom to ask -----------------------------------------------------------------------------------------------

    def enqueue(self, open_: Open) -> None:
        """Takes an item that is open; also one that was asked in vain."""
        item = open_.item
        if open_.done:
            return
        if not open_.lane.ready:
            self._items.dropped(open_)
        elif item.request.task not in self.tasks:  # taken out of the settings while it waited
            self._items.review(open_, "task-removed", 0)
        elif item.due_ms > now_ms():
            self._held.put(open_)
        elif item.light_done or item.request.skip_light or not self._has_light(item.request.task):
            self._to_deep(open_)
        else:
            self._light.put(open_)

    def _has_light(self, task: str) -> bool:
        """The light model finds no fields, so it isn't asked about tasks that extract some."""
        return self.settings.light.enabled and not self.tasks[task].extract

    def _to_deep(self, open_: Open) -> None:
        """From the cache; or with the call of the same text; or to the providers that may see it."""
        if open_.done:
            return
        request = open_.item.request
        chain = self.client.chain(request)
        question = self.same.question(request, self.client.prompts(request.task), chain)
        answer = self.same.known(open_.lane.view, question, now_ms())
        if answer is not None:
            metrics.CACHE.labels(request.task, "hit").inc()
            also = self.prompts.cached(open_, open_.lane.view, question.digest)
            self._items.finish(open_, answer, "deep", "the same text was answered before", also)
        elif self.same.join(question, open_):
            metrics.CACHE.labels(request.task, "joined").inc()
        else:
            metrics.CACHE.labels(request.task, "miss").inc()
            self._pool_of(chain).put(open_)

    def _pool_of(self, chain: Chain) -> Pool:
        pool = self._deep.get(chain)
        if pool is None:
            size = max(1, sum(p.settings.concurrency for p in chain)) * self.settings.llm.batch_items
            client = self.client
            pool = self._deep[chain] = self._pool(
                "deep", size, self._ask_deep, ready=lambda: client.ready_in_s(chain) <= 0
            )
        return pool

    def _again(self, open_: Open) -> None:
        """Another question now, perhaps of other providers: those that waited for the old one ask for themselves."""
        followers = self.same.leave(open_)
        for each in (open_, *followers):
            self.enqueue(each)

    def _recovered(self) -> None:
        """A provider answers again: what was held because of failures needn't wait any longer."""
        for pool in self._deep.values():
            pool.wake()
        for open_ in self._held.all():
            open_.item.due_ms = 0
            self.enqueue(open_)

    # -- asking ----------------------------------------------------------------------------------------------------

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
            self._items.finish(open_, answer, "light", f"{why}; over budget" if open_.over_budget else why)
            return
        self._items.keep(open_)  # a restart goes on at the deep model
        self.enqueue(open_)

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
        except (RoundUsed, Unanswerable) as error:
            due_ms = self._next_round_ms(error)  # one for all, so that equal texts share a call again
            for each in (open_, *self.same.leave(open_)):
                self._round_over(each, error, due_ms, self._prompt(each, open_, error.exchange))
        else:
            self._answered(open_, answer, client)

    def _answered(self, open_: Open, answer: Answer, client: DeepClassifier) -> None:
        """Also for those that waited for the same text: they cost nothing more."""
        crash.at("answered")
        digest = self.same.digest_of(open_)
        followers = self.same.leave(open_)
        asked = next((p.model for p in client.providers if p.name == answer.provider), "")
        extracts = answer.fields is not None
        remember = None if digest is None else self.same.remembering(digest, open_.key, answer, asked)
        also = self.prompts.own(open_, answer.exchange, None if remember is None else digest)
        if remember is not None:
            also.append(remember)
        self._items.finish(open_, answer, "deep", why_deep(open_.item, extracts), also)
        shared = msgspec.structs.replace(answer, prompt_tokens=0, completion_tokens=0, cost_usd=0.0)
        for follower in followers:
            asked_for = open_.item.request.event_id
            also = self._prompt(follower, open_, answer.exchange)
            self._items.finish(follower, shared, "deep", f"the same text as event {asked_for}", also)

    def _prompt(self, open_: Open, asked: Open, exchange: Exchange | None) -> list[Callable[[Outbox], None]]:
        """What is kept of a call for an item and for those that waited for it."""
        if open_ is asked or exchange is None:
            return self.prompts.own(open_, exchange)
        return self.prompts.of_other(open_, asked.item.request.event_id)

    def _over_budget(self, open_: Open, error: OverBudget) -> None:
        """The day's money is spent: by the task's policy."""
        task = open_.item.request.task
        policy = self.settings.over_budget(task)
        if open_.done:
            return
        if policy == "wait":
            open_.item.due_ms = now_ms() + BUDGET_WAIT_MS  # in memory only: a restart asks at once
            self._held.put(open_)
        elif policy == "light" and task in self.tasks and self._has_light(task):
            open_.over_budget = True
            self._light.put(open_)
        else:
            open_.item.tried = error.tried
            self._items.review(open_, "over-budget", 0)

    def _next_round_ms(self, error: RoundUsed | Unanswerable) -> int:
        wait_s = self.settings.classify.retry_s
        if isinstance(error, Unanswerable):
            wait_s = min(wait_s, BAD_ANSWERS_WAIT_S)
        spread = random.uniform(0.9, 1.1)  # noqa: S311 - so that not all come back in the same moment
        return now_ms() + int(wait_s * 1000 * spread)

    def _round_over(
        self,
        open_: Open,
        error: RoundUsed | Unanswerable,
        due_ms: int,
        also: Iterable[Callable[[Outbox], None]] = (),
    ) -> None:
        """Keeps an item in State until it is due for another round; a person decides when that has no hope or was the last.

        Providers that fail get `classify.max_rounds`. Where they answer, but not validly, it may be chance or the text: one
        round more makes up for chance, and a text that no model can answer isn't paid for in all rounds.
        """
        item = open_.item
        if open_.done:
            return
        item.attempts += error.attempts
        item.tried = error.tried
        item.round += error.retryable
        cause, last = "rounds-used", not error.retryable or item.round >= self.settings.classify.max_rounds
        if isinstance(error, Unanswerable):
            item.spoilt += error.retryable
            cause, last = error.cause, last or item.spoilt >= ROUNDS_OF_BAD_ANSWERS
        if last:
            self._items.review(open_, cause, 0, also)
            return
        item.due_ms = due_ms
        self._items.keep(open_)
        self._held.put(open_)

    def _bug(self, open_: Open) -> None:
        error = RoundUsed(0, ["a bug in this program; see the log"])
        self._round_over(open_, error, self._next_round_ms(error))
