"""Keeps the light classifier off the event loop and fed in batches.

One thread works; what arrives meanwhile makes up the next batch. So a lone text waits for nobody, and under load the
batches fill up by themselves.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from app.inference.encoder import EncoderClassifier, LightClassifier
from app.settings import LightSettings, TaskSettings

__all__ = ["LightBatcher"]

log = logging.getLogger(__name__)

Answers = list[tuple[str, float]]


class _Item:
    __slots__ = ("alone", "future", "task", "text")

    def __init__(self, task: TaskSettings, text: str, future: asyncio.Future[tuple[str, float]]) -> None:
        self.task, self.text, self.future = task, text, future
        self.alone = False


class LightBatcher:
    """Used from one event loop.

    Args:
        classifier: blocks while it works; only ever called from this object's one thread.
        settings: texts a call.
    """

    def __init__(self, classifier: LightClassifier, settings: LightSettings) -> None:
        self._classifier, self._batch = classifier, settings.batch
        self._queue: deque[_Item] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="light")
        self._running: asyncio.Future[Answers] | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False

    @classmethod
    def for_settings(cls, settings: LightSettings) -> Self:
        """With the sentence encoder.

        Raises:
            SettingsError: the encoder isn't installed.
        """
        return cls(EncoderClassifier(settings), settings)

    @property
    def model(self) -> str:
        """The classifier's name in results."""
        return self._classifier.model

    @property
    def model_version(self) -> str:
        """The classifier's version in results."""
        return self._classifier.model_version

    @property
    def pending(self) -> int:
        """Texts that wait for the thread."""
        return len(self._queue)

    async def classify(self, task: TaskSettings, text: str) -> tuple[str, float]:
        """Category and confidence of one text. Safe to cancel.

        Raises:
            RuntimeError: the batcher is closed.
        """
        if self._closed:
            raise RuntimeError("the light tier is closed")
        item = _Item(task, text, asyncio.get_running_loop().create_future())
        self._queue.append(item)
        self._pump()
        return await item.future

    async def close(self) -> None:
        """Answers what still waits, then ends the thread. Texts whose caller was cancelled are left out."""
        self._closed = True
        await self._idle.wait()
        self._thread.shutdown(wait=False)

    def _pump(self) -> None:
        if self._running is not None:
            return
        items = self._next()
        if not items:
            self._idle.set()
            return
        self._idle.clear()
        task, texts = items[0].task, [item.text for item in items]
        loop = asyncio.get_running_loop()
        self._running = loop.run_in_executor(self._thread, self._classifier.classify, task, texts)
        self._running.add_done_callback(lambda done: self._ended(done, items))

    def _next(self) -> list[_Item]:
        """The oldest texts of one task, in order; others keep their place."""
        items: list[_Item] = []
        passed: list[_Item] = []
        while self._queue and len(items) < self._batch:
            item = self._queue.popleft()
            if item.future.done():
                continue  # its caller was cancelled
            if items and (item.alone or items[0].alone or item.task != items[0].task):
                passed.append(item)
                if len(passed) >= self._batch:
                    break  # a long row of another task isn't searched each time
            else:
                items.append(item)
        self._queue.extendleft(reversed(passed))
        return items

    def _ended(self, done: asyncio.Future[Answers], items: Sequence[_Item]) -> None:
        self._running = None
        if done.cancelled():
            for item in items:
                item.future.cancel()
        elif (error := done.exception()) is None and len(done.result()) == len(items):
            for item, answer in zip(items, done.result(), strict=True):
                if not item.future.done():
                    item.future.set_result(answer)
        else:
            self._failed(items, error or ValueError("the classifier gave another number of answers than texts"))
        self._pump()

    def _failed(self, items: Sequence[_Item], error: BaseException) -> None:
        """One text may have broken the whole batch: each gets a call of its own."""
        if len(items) > 1:
            log.warning(
                "the light classifier failed on %d texts (%s); one by one now", len(items), type(error).__name__
            )
            for item in items:
                item.alone = True
            self._queue.extendleft(reversed(items))
        elif not items[0].future.done():
            items[0].future.set_exception(error)
