"""A blocking iterator as an asynchronous one, read ahead in a thread."""

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Generic, TypeVar

__all__ = ["Feed"]

T = TypeVar("T")

AHEAD = 1000
"""Items read before they are wanted; beyond it the pipe's writer waits."""


class Feed(Generic[T]):
    """Yields what the iterator gives, at once, until it ends or `stopped` is set.

    The thread is a daemon: one that waits on a silent pipe must not hold up the end of the process.
    """

    def __init__(self, items: Iterator[T], stopped: asyncio.Event) -> None:
        self._items, self._stopped = items, stopped
        self._queue: queue.Queue[T | None] = queue.Queue(AHEAD)
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._error: BaseException | None = None

    async def __aiter__(self) -> AsyncIterator[T]:
        threading.Thread(target=self._read, name="feed", daemon=True).start()
        while not self._stopped.is_set():
            self._wake.clear()
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                await self._either()
                continue
            if item is None:
                if self._error is not None:
                    raise self._error
                return
            yield item

    def _read(self) -> None:
        try:
            for item in self._items:
                self._put(item)
        except BaseException as error:  # noqa: BLE001 - raised again by the reader of the feed
            self._error = error
        self._put(None)

    def _put(self, item: T | None) -> None:
        self._queue.put(item)
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._wake.set)

    async def _either(self) -> None:
        waits = [asyncio.ensure_future(event.wait()) for event in (self._wake, self._stopped)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
