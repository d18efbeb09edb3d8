"""The deep tier: events in, checked answers out, with as few calls as their company allows.

Events of one task, type and prompt version that wait at the same time share a call. Each caller waits for its own
event only: it may be cancelled, and one event's bad answer or odd text doesn't touch the others.

What becomes of an event is one of four: an `Answer`; `ModelUnavailable` (the server failed: the caller keeps the event
and comes again); `ModelRefused` (settings or account: likewise, and somebody must act); `Unanswerable` (asked alone the
model still gave no valid answer: for a person). Nothing is stored here; a killed process loses only calls.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from app.errors import ModelError, ModelRefused, ModelUnavailable
from app.llm.answer import Completion, PromptRefused
from app.llm.client import ChatClient
from app.llm.parse import parse_answers
from app.llm.prompts import Prompt, build, version_of
from app.settings import LlmSettings, Settings, TaskSettings
from models.events import Answer, ModelRequest

__all__ = ["DeepClassifier", "Unanswerable"]

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 3
"""Answers an event may spoil: with others, with fewer others when the answer was cut, alone."""

LONGEST_WAIT_S = 10.0
"""A longer Retry-After isn't slept through here: the caller gets its events back and knows when to come again."""


class Unanswerable(ModelError):
    """The model was asked and gave no valid answer for this event; asking again won't help. Not retryable.

    Args:
        cause: a stable word: no-answer, cut, content-filter, prompt-refused.
        attempts: how often it was asked.
    """

    def __init__(self, cause: str, attempts: int) -> None:
        super().__init__(f"no valid answer after {attempts} attempts ({cause})")
        self.cause, self.attempts = cause, attempts


class _Item:
    """An event and the caller that waits for it."""

    __slots__ = ("attempts", "completion_tokens", "due", "future", "prompt_tokens", "text")

    def __init__(self, text: str, due: float, future: asyncio.Future[Answer]) -> None:
        self.text, self.due, self.future = text, due, future
        self.attempts = self.prompt_tokens = self.completion_tokens = 0

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


Key = tuple[str, str, str]


class DeepClassifier:
    """Collects events into calls. One instance a worker, used from one event loop.

    Args:
        settings: tasks and `llm`.
        client: replaces the HTTP client; closed with this object either way.
        clock: seconds, monotonic.
        sleep: waits between retries.
        rng: jitter.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        client: ChatClient | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Coroutine[Any, Any, None]] = asyncio.sleep,
        rng: random.Random | None = None,
    ) -> None:
        self._llm: LlmSettings = settings.llm
        self._tasks = {task.name: task for task in settings.tasks}
        self._versions = {task.name: version_of(task) for task in settings.tasks}
        self._client = client or ChatClient(settings.llm)
        self._clock, self._sleep = clock, sleep
        self._rng = rng or random.Random()  # noqa: S311 - jitter
        self._waiting: dict[Key, list[_Item]] = {}
        self._batches: set[asyncio.Task[None]] = set()
        self._wire = asyncio.Semaphore(settings.llm.concurrency)
        self._timer: asyncio.TimerHandle | None = None
        self._rest_until = 0.0
        self._calls = 0
        self._closed = False

    @property
    def pending(self) -> int:
        """Events that wait for company or for a free call."""
        return sum(not item.future.done() for items in self._waiting.values() for item in items)

    @property
    def in_flight(self) -> int:
        """Wire calls under way; at most llm.concurrency."""
        return self._calls

    async def classify(self, request: ModelRequest) -> Answer:
        """Asks about one event; returns when its own answer is there. Safe to cancel.

        Raises:
            ModelUnavailable: the server failed after all retries. Retryable, `retry_after_s` when it named a wait.
            ModelRefused: the set-up or the account is wrong. Not retryable until somebody acts.
            Unanswerable: no valid answer for this event. Not retryable.
        """
        task = self._tasks.get(request.task)
        if task is None:
            raise ModelRefused(f"task {request.task!r} isn't declared; there are {', '.join(self._tasks)}")
        if self._closed:
            raise ModelUnavailable("the worker is stopping")
        due = self._clock() + self._llm.batch_wait_ms / 1000
        item = _Item(request.text, due, asyncio.get_running_loop().create_future())
        self._waiting.setdefault((task.name, request.event_type, self._versions[task.name]), []).append(item)
        self._pump()
        try:
            return await item.future
        finally:
            item.future.cancel()  # no-op once done; a cancelled caller's event is left out of the next call

    async def close(self) -> None:
        """Cuts off the calls in flight; whoever still waits gets ModelUnavailable."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        waiting = [item for items in self._waiting.values() for item in items]
        self._waiting.clear()
        for item in waiting:
            item.fail(ModelUnavailable("the worker is stopping"))
        for batch in self._batches:
            batch.cancel()
        await asyncio.gather(*self._batches, return_exceptions=True)
        await self._client.close()

    # -- collecting ------------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Starts what is full or due while there are free calls: behind a busy server batches fill up by themselves."""
        while not self._closed and len(self._batches) < self._llm.concurrency:
            now = self._clock()
            ready = [key for key, items in self._waiting.items() if self._is_ready(items, now)]
            if not ready:
                break
            self._start(min(ready, key=lambda key: self._waiting[key][0].due))
        self._set_timer()

    def _is_ready(self, items: list[_Item], now: float) -> bool:
        return len(items) >= self._llm.batch_items or items[0].due <= now

    def _start(self, key: Key) -> None:
        alive = [item for item in self._waiting.pop(key) if not item.future.done()]
        items, rest = alive[: self._llm.batch_items], alive[self._llm.batch_items :]
        if rest:
            self._waiting[key] = rest
        if not items:
            return
        batch = asyncio.get_running_loop().create_task(self._answer(self._tasks[key[0]], items))
        self._batches.add(batch)
        batch.add_done_callback(lambda done: self._ended(done, items))

    def _ended(self, batch: asyncio.Task[None], items: list[_Item]) -> None:
        self._batches.discard(batch)
        error = None if batch.cancelled() else batch.exception()
        if error is not None:
            log.critical("a call to the model ended in a bug: %r", error, exc_info=error)
        for item in items:  # nobody waits for ever, whatever happened
            item.fail(ModelUnavailable("the call was cut off" if error is None else "the call failed; see the log"))
        self._pump()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting and not self._closed and len(self._batches) < self._llm.concurrency:
            wait_s = min(items[0].due for items in self._waiting.values()) - self._clock()
            self._timer = asyncio.get_running_loop().call_later(max(wait_s, 0.0), self._pump)

    # -- asking ----------------------------------------------------------------------------------------------------

    async def _answer(self, task: TaskSettings, items: Sequence[_Item]) -> None:
        """Asks about the items, then about those that got no valid answer: fewer at a time, then alone."""
        open_ = [item for item in items if not item.future.done()]
        if not open_:
            return
        try:
            left, cause = await self._ask(task, open_)
        except PromptRefused as error:
            await self._split(task, open_, error)
            return
        except (ModelUnavailable, ModelRefused) as error:
            for item in open_:
                # Each its own: callers raise it, and a shared traceback would grow with every one of them.
                item.fail(type(error)(str(error), status=error.status, retry_after_s=error.retry_after_s))
            return
        again = []
        for item in left:
            if item.attempts >= MAX_ATTEMPTS or (len(open_) == 1 and item.attempts >= 2):
                item.fail(Unanswerable(cause, item.attempts))
            else:
                again.append(item)
        # A cut answer says nothing about the items behind the cut: they go together, as long as they are fewer.
        together = (
            cause == "cut" and len(again) < len(open_) and len(again) > 1 and again[0].attempts < MAX_ATTEMPTS - 1
        )
        await self._answer_all(task, [again] if together else [[item] for item in again])

    async def _answer_all(self, task: TaskSettings, groups: Sequence[Sequence[_Item]]) -> None:
        async with asyncio.TaskGroup() as calls:
            for group in groups:
                calls.create_task(self._answer(task, group))

    async def _split(self, task: TaskSettings, items: Sequence[_Item], error: PromptRefused) -> None:
        """A prompt too long, or one text that a filter refuses, must not hold up the others: halves, down to one."""
        if len(items) == 1:
            items[0].fail(Unanswerable("prompt-refused", items[0].attempts + 1))
            return
        log.info("%s; asking about %d events in halves", error, len(items))
        half = len(items) // 2
        await self._answer_all(task, [items[:half], items[half:]])

    async def _ask(self, task: TaskSettings, items: Sequence[_Item]) -> tuple[list[_Item], str]:
        """One prompt; settles the valid answers, returns the other items and why they have none."""
        prompt = build(task, [item.text for item in items], self._llm.max_item_chars)
        completion = await self._complete(prompt)
        ids = [category.id for category in task.categories]
        answers = parse_answers(completion.text, len(items), ids, completion.finish_reason)
        self._share(items, completion)
        left = []
        for number, item in enumerate(items, 1):
            item.attempts += 1
            if number not in answers:
                left.append(item)
            elif not item.future.done():
                item.future.set_result(self._result(item, answers[number], completion, prompt.version))
        causes = {"length": "cut", "content_filter": "content-filter"}
        return left, causes.get(completion.finish_reason, "no-answer")

    def _share(self, items: Sequence[_Item], completion: Completion) -> None:
        """Whole tokens, so that the items' sums are the server's own figure; earlier, spoilt calls add up."""
        prompt, prompt_over = divmod(completion.prompt_tokens, len(items))
        answer, answer_over = divmod(completion.completion_tokens, len(items))
        for number, item in enumerate(items):
            item.prompt_tokens += prompt + (number < prompt_over)
            item.completion_tokens += answer + (number < answer_over)

    def _result(self, item: _Item, category: str, completion: Completion, version: str) -> Answer:
        dollars = (
            item.prompt_tokens * self._llm.price_prompt_usd + item.completion_tokens * self._llm.price_completion_usd
        )
        return Answer(
            category=category,
            confidence=1.0,
            model=completion.model or self._llm.model,
            prompt_version=version,
            prompt_tokens=item.prompt_tokens,
            completion_tokens=item.completion_tokens,
            cost_usd=dollars / 1e6,
            latency_ms=completion.latency_ms,
        )

    async def _complete(self, prompt: Prompt) -> Completion:
        """One call, and at most llm.max_retries more when the server fails."""
        for attempt in range(self._llm.max_retries + 1):
            try:
                await self._rest()
                return await self._call(prompt)
            except ModelUnavailable as error:
                if error.retry_after_s:
                    self._rest_until = max(self._rest_until, self._clock() + error.retry_after_s)
                if attempt == self._llm.max_retries or (error.retry_after_s or 0.0) > LONGEST_WAIT_S:
                    raise
                backoff_s = self._llm.retry_backoff_s * 2**attempt
                await self._sleep(backoff_s * self._rng.uniform(0.5, 1.0))
        raise AssertionError("the last attempt returns or raises")

    async def _rest(self) -> None:
        """A server that named a wait is left alone by all calls, not only by the one that was told."""
        while (left_s := self._rest_until - self._clock()) > 0:
            if left_s > LONGEST_WAIT_S:
                raise ModelUnavailable("model server asked to be left alone", status=429, retry_after_s=left_s)
            await self._sleep(left_s)

    async def _call(self, prompt: Prompt) -> Completion:
        async with self._wire:
            self._calls += 1
            try:
                return await self._client.complete(prompt.messages, schema=prompt.schema, max_tokens=prompt.max_tokens)
            finally:
                self._calls -= 1
