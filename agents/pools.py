"""Open items in memory: what is to be asked now, by whom, and what waits until it is due."""

import asyncio
import functools
import heapq
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from app.delivery.lane import Lane, Work
from tables.open_work import OpenItem

__all__ = ["Held", "Open", "Pool"]

log = logging.getLogger("headrace.classify")


class Open:
    """An open item in memory."""

    __slots__ = ("done", "item", "key", "lane", "outcome", "over_budget", "running")

    def __init__(self, lane: Lane, key: bytes, item: OpenItem) -> None:
        self.lane, self.key, self.item = lane, key, item
        self.running = False
        """A model is asked about it."""
        self.over_budget = False
        """The light model's answer stands, however sure it is."""
        self.done = False
        """Its outcome is on the way to a transaction, or it isn't ours any more."""
        self.outcome: Work | None = None
        """What is on the way to a transaction."""


class Pool:
    """Runs a bounded number of items at once, in order of arrival.

    Args:
        name: for the log.
        size: how many at once.
        work: what is done with one.
        dropped: told of items whose lane is given up or begins again: State has them.
        failed: told of items whose work ended in a bug.
        ready: False: start nothing now.
    """

    def __init__(
        self,
        name: str,
        size: int,
        work: Callable[[Open], Coroutine[Any, Any, None]],
        *,
        dropped: Callable[[Open], None],
        failed: Callable[[Open], None],
        ready: Callable[[], bool] = lambda: True,
    ) -> None:
        self.name, self.size, self.work = name, size, work
        self.queue: deque[Open] = deque()
        self.running: set[asyncio.Task[None]] = set()
        self.closed = False
        self._dropped, self._failed, self._ready = dropped, failed, ready
        self._rest_until = 0.0

    def put(self, item: Open) -> None:
        self.queue.append(item)
        self.fill()

    def put_back(self, item: Open, rest_s: float) -> None:
        """Takes an item again that nobody could be asked about; starts nothing for so long."""
        self.queue.appendleft(item)
        self._rest_until = max(self._rest_until, time.monotonic() + rest_s)

    def wake(self) -> None:
        """There is somebody to ask again."""
        self._rest_until = 0.0
        self.fill()

    def fill(self) -> None:
        """Starts as many as there is room for."""
        while self.queue and not self.closed and len(self.running) < self.size:
            if time.monotonic() < self._rest_until or not self._ready():
                return
            item = self.queue.popleft()
            if item.done:
                continue
            if not item.lane.ready:
                self._dropped(item)
                continue
            item.running = True
            task = asyncio.ensure_future(self.work(item))
            self.running.add(task)
            task.add_done_callback(functools.partial(self._ended, item))

    def take(self) -> list[Open]:
        """Takes out what waits; what runs goes on."""
        items = [item for item in self.queue if not item.done]
        self.queue.clear()
        return items

    def stop(self) -> None:
        """Cuts off what runs; its items stay open in State."""
        self.closed = True
        for task in self.running:
            task.cancel()

    def _ended(self, item: Open, task: asyncio.Task[None]) -> None:
        self.running.discard(task)
        item.running = False
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("%s: a call ended in a bug: %r", self.name, error, exc_info=error)
            self._failed(item)
        self.fill()


class Held:
    """Items that wait until they are due. State has the time as well."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Open]] = []
        self._count = itertools.count()

    def __len__(self) -> int:
        return len(self._heap)

    def put(self, item: Open) -> None:
        heapq.heappush(self._heap, (item.item.due_ms, next(self._count), item))

    def due(self, now_ms: int) -> Iterator[Open]:
        """Takes out what is due."""
        while self._heap and self._heap[0][0] <= now_ms:
            yield heapq.heappop(self._heap)[2]

    def all(self) -> list[Open]:
        """Takes out everything, the first due first."""
        items = [item for _, _, item in sorted(self._heap)]
        self._heap.clear()
        return items
