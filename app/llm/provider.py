"""One provider: its connections, its breaker, the waits it asked for, its price, and how many events it can take.

Shared by all calls of a worker to it. `complete` makes one call and, when the provider fails, a few more; whom to ask
next is decided above (`app.llm.deep`).
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine
from typing import Any

from app import metrics
from app.errors import ModelError, ModelRefused, ModelUnavailable
from app.llm.answer import Completion, PromptRefused
from app.llm.breaker import Breaker, Permit
from app.llm.client import ChatClient
from app.llm.gate import Gate, Held
from app.llm.ledger import Ledger
from app.llm.loopback import is_loopback_url
from app.llm.prices import price_of
from app.llm.prompts import Prompt
from app.llm.purse import DENIED_S, LONGEST_DENIED_S, Purse
from app.llm.quota import Quota, Taken
from app.settings import LlmSettings, ProviderSettings
from models.events import ModelRequest

__all__ = ["LONGEST_WAIT_S", "LeftAlone", "NoMoney", "Provider"]

log = logging.getLogger(__name__)

LONGEST_WAIT_S = 10.0
"""A longer Retry-After isn't slept through in a call: the provider counts as not ready until then."""


class LeftAlone(ModelUnavailable):
    """The provider wasn't asked: its breaker is open, or it named a long wait. Retryable."""


class NoMoney(LeftAlone):
    """The provider wasn't asked: the task's budget of the day is used up. Retryable."""


class Provider:
    """Used from one event loop.

    Args:
        settings: the provider.
        llm: retries and breaker, the same for all.
        client: replaces the HTTP client; closed with this object either way.
        clock: seconds, monotonic.
        sleep: waits between retries.
        rng: jitter.
        recovered: called when it answers again after its breaker was open.
        purse: what calls may cost; None: no limit.
        ledger: told of each call that was answered.
        gate: the wait that the server asked for, where one is known already.

    Raises:
        SettingsError: its key, headers or CA can't be used.
    """

    def __init__(
        self,
        settings: ProviderSettings,
        llm: LlmSettings,
        *,
        client: ChatClient | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Coroutine[Any, Any, None]] = asyncio.sleep,
        rng: random.Random | None = None,
        recovered: Callable[[], None] = lambda: None,
        purse: Purse | None = None,
        ledger: Ledger | None = None,
        gate: Gate | None = None,
    ) -> None:
        self.settings, self._llm = settings, llm
        self.name, self.model = settings.name, settings.model
        self.price = price_of(settings)
        self.masks = settings.mask == "on" or (settings.mask == "auto" and not is_loopback_url(settings.base_url))
        self.load = 0
        """Batches that wait for it or are being asked."""
        self.calls = 0
        self._client = client or ChatClient(settings, max_retry_after_s=llm.max_retry_after_s, gate=gate or Gate(clock))
        self.gate = self._client.gate
        self._quota = Quota(settings, purse)
        self._full_until = 0.0
        """Its minute has no room for long, and isn't looked at before."""
        self._clock, self._sleep = clock, sleep
        self._rng = rng or random.Random()  # noqa: S311 - jitter
        self._recovered, self._purse, self._ledger = recovered, purse, ledger
        self._breaker = Breaker(llm.breaker, clock, self._closed)
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._sizes: dict[str, float] = {}
        metrics.BREAKER_OPEN.labels(self.name).set(0)

    async def close(self) -> None:
        """Closes the connections; calls in flight fail."""
        await self._client.close()

    # -- may it be asked -------------------------------------------------------------------------------------------

    def allows(self, request: ModelRequest, source: str) -> bool:
        """Whether it may see an event at all."""
        policy = self.settings
        return (
            (not policy.sources or source in policy.sources)
            and (not policy.tasks or request.task in policy.tasks)
            and set(request.marks) <= set(policy.marks)
        )

    @property
    def ready_in_s(self) -> float:
        """Seconds until it may be asked; 0 now, infinite while a probe is under way."""
        at = self._breaker.ready_at
        now, rest_s = self._clock(), self.gate.left_s
        return max(0.0, at - now, self._full_until - now, rest_s if rest_s > LONGEST_WAIT_S else 0.0)

    @property
    def is_open(self) -> bool:
        """Its breaker doesn't let ordinary calls through."""
        return self._breaker.state != "closed"

    @property
    def room(self) -> bool:
        """Whether another batch may be begun: behind a busy provider batches fill up instead."""
        return self.load < (1 if self.is_open else self.settings.concurrency)

    # -- how much at once ------------------------------------------------------------------------------------------

    def batch_items(self, task: str) -> int:
        """How many events a call to it should hold now."""
        return int(self._sizes.get(task, self._llm.batch_items))

    def learn(self, task: str, asked: int, bad: int) -> None:
        """Smaller when answers go missing, larger when they hold."""
        most = float(self._llm.batch_items)
        size = self._sizes.get(task, most)
        if bad and asked > 1:
            size = min(size, float(asked))
            size = max(1.0, size / 2 if bad * 4 > asked else size - 1)
        elif asked >= int(size):
            size = min(most, size + 1)
        self._sizes[task] = size

    # -- asking ----------------------------------------------------------------------------------------------------

    async def complete(self, prompt: Prompt, task: str) -> Completion:
        """One call, and at most llm.max_retries more when the provider fails.

        Raises:
            LeftAlone: it may not be asked now. Retryable.
            NoMoney: likewise, for the budget's sake. Retryable.
            ModelUnavailable: it failed; the last failure. Retryable.
            PromptRefused: it refuses this prompt; another may pass.
            ModelRefused: it refuses us; it is left alone for llm.breaker.refused_s. Not retryable.
        """
        for attempt in range(self._llm.max_retries + 1):
            try:
                completion = await self._paid(prompt, task)
            except LeftAlone:
                raise
            except ModelUnavailable as error:
                last = attempt == self._llm.max_retries or (error.retry_after_s or 0.0) > LONGEST_WAIT_S
                if last or self.is_open:
                    raise
                await self._sleep(self._llm.retry_backoff_s * 2**attempt * self._rng.uniform(0.5, 1.0))
            else:
                self._count(completion, task, prompt)
                return completion
        raise AssertionError("the last attempt returns or raises")

    async def _paid(self, prompt: Prompt, task: str) -> Completion:
        """A call whose most possible cost is set aside before, and settled after."""
        if self._purse is None or self.price.free:
            return await self._call(prompt)
        most_usd = self.price.cost(prompt.most_tokens, prompt.max_tokens)
        try:
            reservation = await self._purse.reserve(task, most_usd)
        except TimeoutError as error:
            raise LeftAlone(f"no grant from the budget of task {task} in time") from error
        if reservation is None and self._purse.is_final(task):
            raise NoMoney(f"the budget of task {task} is used up")
        if reservation is None:
            raise LeftAlone(f"the budget of task {task} is all leased", retry_after_s=DENIED_S)
        used_usd = most_usd  # a call that breaks off may be billed
        try:
            completion = await self._call(prompt)
            used_usd = self.price.cost(completion.prompt_tokens, completion.completion_tokens)
        except LeftAlone:
            used_usd = 0.0
            raise
        except ModelError as error:
            used_usd = most_usd if error.status in (None, 200) else 0.0
            raise
        finally:
            self._purse.settle(reservation, used_usd)
        return completion

    async def _call(self, prompt: Prompt) -> Completion:
        while True:
            permit, taken = await self._admitted(prompt)
            try:
                return await self._sent(prompt, permit, taken)
            except Held:  # a Retry-After came while it waited for its connection
                continue

    async def _sent(self, prompt: Prompt, permit: Permit, taken: Taken) -> Completion:
        calls, tokens = taken.most_calls, taken.most_tokens  # a call that breaks off may count
        try:
            completion = await self._client.complete(
                prompt.messages, schema=prompt.schema, max_tokens=prompt.max_tokens
            )
            tokens = completion.prompt_tokens + completion.completion_tokens or tokens
        except Held:
            calls = tokens = 0.0
            self._breaker.released(permit)
            raise
        except PromptRefused:
            tokens = 0.0
            self._breaker.succeeded(permit)
            raise
        except ModelRefused as error:
            tokens = 0.0
            self._refused(permit, error)
            raise
        except ModelUnavailable as error:
            tokens = tokens if error.status in (None, 200) else 0.0
            if error.retry_after_s:
                self.gate.close(error.retry_after_s)
            self._failed(permit, error)
            raise
        except BaseException:
            self._breaker.released(permit)
            raise
        finally:
            taken.settle(calls, tokens)
            self.calls -= 1
            self._slots.release()
        self._breaker.succeeded(permit)
        return completion

    async def _admitted(self, prompt: Prompt) -> tuple[Permit, Taken]:
        """Waits for a free call, for the end of a short Retry-After, which holds back every call, and for a free minute."""
        while True:
            await self._slots.acquire()
            wait_s = self.gate.left_s
            if not wait_s and not self.ready_in_s:
                try:
                    taken = await self._taken(prompt)
                except BaseException:
                    self._slots.release()
                    raise
                if isinstance(taken, Taken):
                    # Nothing is awaited from here to the sending of the call.
                    wait_s = self.gate.left_s
                    permit = self._breaker.acquire() if not wait_s else None
                    if permit is not None:
                        self.calls += 1
                        return permit, taken
                    taken.settle(0.0, 0.0)
                else:
                    wait_s = taken
            self._slots.release()
            if not wait_s or wait_s > LONGEST_WAIT_S or self.ready_in_s > 0:
                raise LeftAlone(f"provider {self.name} is left alone for now", retry_after_s=wait_s)
            await self._sleep(min(wait_s, LONGEST_DENIED_S))  # a minute may have room sooner

    async def _taken(self, prompt: Prompt) -> Taken | float:
        """Room in the minute; or how long to wait for it."""
        try:
            taken = await self._quota.take(self._client.most_calls, prompt.most_tokens + prompt.max_tokens)
        except TimeoutError as error:
            raise LeftAlone(f"no grant of provider {self.name}'s minute in time") from error
        if not isinstance(taken, Taken):
            metrics.QUOTA_WAITS.labels(self.name).inc()
            if taken > LONGEST_WAIT_S:
                self._full_until = self._clock() + LONGEST_DENIED_S
        return taken

    def _failed(self, permit: Permit, error: ModelUnavailable) -> None:
        was = self.is_open
        self._breaker.failed(permit)
        if self.is_open and not was:
            log.error("provider %s: %s; left alone, one call every %g s tries it", self.name, error, self._open_s)
        metrics.BREAKER_OPEN.labels(self.name).set(self.is_open)

    @property
    def _open_s(self) -> float:
        return self._llm.breaker.open_s

    def _refused(self, permit: Permit, error: ModelRefused) -> None:
        self._breaker.refused(permit)
        metrics.PROVIDER_REFUSALS.labels(self.name, str(error.status or 0)).inc()
        metrics.BREAKER_OPEN.labels(self.name).set(1)
        log.error("provider %s: %s; SKIPPED, next try in %g s", self.name, error, self._llm.breaker.refused_s)

    def _closed(self) -> None:
        log.warning("provider %s answers again", self.name)
        metrics.BREAKER_OPEN.labels(self.name).set(0)
        self._recovered()

    def _count(self, completion: Completion, task: str, prompt: Prompt) -> None:
        labels = (self.name, self.model, task)
        metrics.MODEL_TOKENS.labels(*labels, "prompt").inc(completion.prompt_tokens)
        metrics.MODEL_TOKENS.labels(*labels, "completion").inc(completion.completion_tokens)
        cost_usd = self.price.cost(completion.prompt_tokens, completion.completion_tokens)
        metrics.MODEL_COST_USD.labels(*labels).inc(cost_usd)
        metrics.MODEL_BATCH_ITEMS.labels(self.name).observe(prompt.items)
        metrics.CUT_TEXTS.labels(task).inc(prompt.cut_texts)
        metrics.CUT_CHARS.labels(task).inc(prompt.cut_chars)
        if self._ledger is not None:
            self._ledger.spent(self.name, task, prompt, completion, cost_usd)
