"""The deep tier: events in, checked answers out, with as few calls as their company allows.

Events of one task, type, prompt version and set of allowed providers that wait at the same time share a call. Each
caller waits for its own event only: it may be cancelled, and one event's bad answer or odd text doesn't touch the
others. Providers are asked in order; one that an event's policy forbids is never asked.

What becomes of an event: an `Answer`, or one of `app.llm.outcomes`. Nothing is stored here; a killed process loses
only calls.
"""

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from app.llm.asking import Item, ask_provider
from app.llm.client import ChatClient
from app.llm.ledger import Ledger
from app.llm.outcomes import CHANCE, NotNow, OverBudget, RoundUsed, Unanswerable
from app.llm.prompts import PromptBuilder
from app.llm.provider import Provider
from app.llm.purse import Purse
from app.settings import Settings
from models.events import Answer, ModelRequest

__all__ = ["Chain", "DeepClassifier", "NotNow", "OverBudget", "RoundUsed", "Unanswerable"]

log = logging.getLogger(__name__)

Chain = tuple[Provider, ...]
Key = tuple[str, str, Chain]
"""Task, event type, and who may be asked. The prompt version goes with the task."""


class DeepClassifier:
    """Collects events into calls. One instance a worker, used from one event loop.

    Args:
        settings: tasks and `llm`.
        client: replaces the HTTP client of the first provider; closed with this object either way.
        clock: seconds, monotonic.
        sleep: waits between retries.
        rng: jitter.
        recovered: called when a provider answers again after it was left alone.
        purse: what calls may cost; None: no limit.
        ledger: told of each call that was answered.
        before: what was used until now; waits that its servers asked for go on.

    Raises:
        SettingsError: a provider's key, headers or CA can't be used.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        client: ChatClient | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Coroutine[Any, Any, None]] = asyncio.sleep,
        rng: random.Random | None = None,
        recovered: Callable[[], None] = lambda: None,
        purse: Purse | None = None,
        ledger: Ledger | None = None,
        before: "DeepClassifier | None" = None,
    ) -> None:
        self._llm = settings.llm
        self._keep_bytes = settings.classify.keep_prompts_bytes if settings.classify.keep_prompts_s else 0
        self._prompts = {task.name: PromptBuilder(task, settings.llm) for task in settings.tasks}
        self._sources = {settings.source_topic(source): source.name for source in settings.sources}
        gates = {(p.name, p.settings.base_url): p.gate for p in before.providers} if before else {}
        self.providers: Chain = tuple(
            Provider(
                each, settings.llm, client=None if number else client, clock=clock, sleep=sleep, rng=rng,
                recovered=recovered,
                purse=purse, ledger=ledger, gate=gates.get((each.name, each.base_url)),
            )
            for number, each in enumerate(settings.llm.chain())
        )  # fmt: skip
        self._clock = clock
        self._waiting: dict[Key, list[Item]] = {}
        self._batches: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def pending(self) -> int:
        """Events that wait for company or for a free call."""
        return sum(not item.future.done() for items in self._waiting.values() for item in items)

    @property
    def in_flight(self) -> int:
        """Wire calls under way."""
        return sum(provider.calls for provider in self.providers)

    def chain(self, request: ModelRequest) -> Chain:
        """The providers that may see an event, in order."""
        source = self._sources.get(request.source.topic, "")
        return tuple(provider for provider in self.providers if provider.allows(request, source))

    def prompts(self, task: str) -> PromptBuilder:
        """What builds the prompts of a task."""
        return self._prompts[task]

    @staticmethod
    def ready_in_s(chain: Chain) -> float:
        """Seconds until one of the providers may be asked; infinite while the only hope is a probe under way."""
        return min((provider.ready_in_s for provider in chain), default=0.0)

    async def classify(self, request: ModelRequest) -> Answer:
        """Asks about one event; returns when its own answer is there. Safe to cancel.

        Raises:
            RoundUsed: every provider allowed was asked in vain; some failed. Retryable.
            NotNow: none may be asked now. Retryable.
            OverBudget: none may be asked for the budget's sake. Retryable.
            Unanswerable: no valid answer for this event. Retryable where that may be chance.
        """
        prompts = self._prompts.get(request.task)
        if prompts is None:
            raise Unanswerable("task-removed", 0, [])
        if self._closed:
            raise NotNow(["the worker is stopping"], 0.0)
        chain = self.chain(request)
        if not chain:
            raise Unanswerable("no-provider-allowed", 0, [])
        due = self._clock() + self._llm.batch_wait_ms / 1000
        item = Item(request.text, due, asyncio.get_running_loop().create_future(), self._keep_bytes)
        self._waiting.setdefault((request.task, request.event_type, chain), []).append(item)
        self._pump()
        try:
            return await item.future
        finally:
            item.future.cancel()  # no-op once done; a cancelled caller's event is left out of the next call

    async def drain(self) -> None:
        """Takes nothing more, lets the calls in flight end, then closes; whoever still waits for one gets NotNow."""
        self._closed = True
        waiting = [item for items in self._waiting.values() for item in items]
        self._waiting.clear()
        for item in waiting:
            item.fail(NotNow(["the settings changed"], 0.0))
        await asyncio.gather(*self._batches, return_exceptions=True)
        await self.close()

    async def close(self) -> None:
        """Cuts off the calls in flight; whoever still waits gets NotNow."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        waiting = [item for items in self._waiting.values() for item in items]
        self._waiting.clear()
        for item in waiting:
            item.fail(NotNow(["the worker is stopping"], 0.0))
        for batch in self._batches:
            batch.cancel()
        await asyncio.gather(*self._batches, return_exceptions=True)
        for provider in self.providers:
            await provider.close()

    # -- collecting ------------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Starts what is full or due while there are free calls: behind a busy server batches fill up by themselves."""
        while not self._closed:
            now = self._clock()
            ready = [key for key, items in self._waiting.items() if self._can_start(key, items, now)]
            if not ready:
                break
            self._start(min(ready, key=lambda key: self._waiting[key][0].due))
        self._set_timer()

    @staticmethod
    def _target(chain: Chain) -> Provider | None:
        """Who would be asked first, if anybody may be."""
        return next((provider for provider in chain if provider.ready_in_s <= 0), None)

    def _can_start(self, key: Key, items: list[Item], now: float) -> bool:
        target = self._target(key[2])
        if target is None:
            return math.isfinite(self.ready_in_s(key[2]))  # to be given back
        return target.room and (items[0].due <= now or len(items) >= target.batch_items(key[0]))

    def _start(self, key: Key) -> None:
        task, _, chain = key
        alive = [item for item in self._waiting.pop(key) if not item.future.done()]
        target = self._target(chain)
        if target is None:
            for item in alive:
                self._give_up(item, chain)
            return
        count = self._count(alive, target.batch_items(task), self._prompts[task])
        items, rest = alive[:count], alive[count:]
        if rest:
            self._waiting[key] = rest
        if not items:
            return
        target.load += 1
        batch = asyncio.get_running_loop().create_task(self._answer(self._prompts[task], items, chain, target))
        self._batches.add(batch)
        batch.add_done_callback(lambda done: self._ended(done, items))

    def _count(self, items: Sequence[Item], most: int, prompts: PromptBuilder) -> int:
        """How many of the oldest go into one call."""
        tokens = 0
        for count, item in enumerate(items[:most]):
            tokens += prompts.tokens(item.text)
            if count and tokens > self._llm.batch_tokens:
                return count
        return min(len(items), most)

    def _ended(self, batch: asyncio.Task[None], items: list[Item]) -> None:
        self._batches.discard(batch)
        error = None if batch.cancelled() else batch.exception()
        if error is not None:
            log.critical("a call to the model ended in a bug: %r", error, exc_info=error)
        for item in items:  # nobody waits for ever, whatever happened
            item.fail(
                NotNow(["the call was cut off"], 0.0)
                if error is None
                else RoundUsed(item.attempts, ["a bug; see the log"])
            )
        self._pump()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = self._clock()
        dues = [
            items[0].due
            for (_, _, chain), items in self._waiting.items()
            if (target := self._target(chain)) is not None and target.room
        ]
        if dues and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(max(min(dues) - now, 0.0), self._pump)

    # -- asking ----------------------------------------------------------------------------------------------------

    async def _answer(self, prompts: PromptBuilder, items: list[Item], chain: Chain, first: Provider) -> None:
        """Asks the providers in order about what the ones before left."""
        left, loaded = items, first
        try:
            for provider in chain:
                left = [item for item in left if not item.future.done()]
                if not left:
                    return
                if provider.ready_in_s > 0:
                    for item in left:
                        item.outcomes[provider.name] = ("skipped", "left alone after failures")
                    continue
                loaded.load -= 1
                provider.load += 1
                loaded = provider
                await ask_provider(provider, prompts, left)
        finally:
            loaded.load -= 1
        for item in left:
            self._give_up(item, chain)

    def _give_up(self, item: Item, chain: Chain) -> None:
        """Gives an event back that nobody answered."""
        if item.future.done():
            return
        kinds = {
            provider: item.outcomes.get(provider.name, ("skipped", "left alone after failures")) for provider in chain
        }
        tried = [f"{provider.name}: {what}" for provider, (_, what) in kinds.items()]
        bad = [what for kind, what in kinds.values() if kind == "bad"]
        if len(bad) == len(kinds):
            cause = next((what for what in reversed(bad) if what in CHANCE), bad[-1])
            item.fail(Unanswerable(cause, item.attempts, tried, item.exchange))
        elif any(kind == "budget" for kind, _ in kinds.values()):
            item.fail(OverBudget(tried))
        elif bad or any(kind == "failed" and provider.ready_in_s <= 0 for provider, (kind, _) in kinds.items()):
            item.fail(RoundUsed(item.attempts, tried, item.exchange))
        else:  # an outage says nothing about the event
            item.fail(NotNow(tried, self._next_s(chain)))

    def _next_s(self, chain: Chain) -> float:
        seconds = self.ready_in_s(chain)
        return seconds if math.isfinite(seconds) else self._llm.breaker.open_s
