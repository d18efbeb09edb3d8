"""Reads a topic for a person: from an offset, a time or the newest backwards, within a budget, and says what it left out.

What is found is handed on while it reads, so a scan that ends early, or is cancelled, has shown all it came to.
"""

import asyncio
import sys
import time
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import aiokafka
from aiokafka.structs import ConsumerRecord, TopicPartition

from app import topics
from app.delivery.probe import READ_TIMEOUT_S, bounds, probe
from app.errors import HeadraceError
from app.settings import Settings

__all__ = ["Asked", "Budget", "Progress", "Record", "scan"]

POLL_MS = 200
PIECE = 500
"""Offsets of a partition read at a time when going backwards; doubled with each step, as most of it won't match."""
LARGEST_PIECE = 16_000
SCANS_AT_ONCE = 4
"""Over all pages: each may read as fast as the broker gives."""

Record: TypeAlias = ConsumerRecord[bytes, bytes]

_turns = asyncio.Semaphore(SCANS_AT_ONCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a scan may cost."""

    rows: int = 200_000
    bytes: int = 128 << 20
    seconds: float = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What somebody wants to see of a topic."""

    topic: str
    """Full name."""
    partition: int | None = None
    """None: all."""
    start: Literal["newest", "oldest", "offset", "time"] = "newest"
    at: int = 0
    """The offset, or the time in Unix milliseconds."""
    since_ms: int | None = None
    """Going backwards, only as far as this time, Unix milliseconds; None: to the beginning."""
    text: str = ""
    """In key, value or a header; empty: all."""
    rows: int = 100
    """0: all."""
    admin: bool = False
    """Whether an admin asks (see `topics.may_read`)."""


@dataclass(slots=True, kw_only=True)
class Progress:
    """How far a scan came."""

    read: int = 0
    total: int = 0
    """Records there are, about: markers of transactions count too."""
    bytes: int = 0
    seconds: float = 0.0
    found: int = 0
    why: Literal["", "complete", "rows", "records", "bytes", "seconds"] = ""
    """Why it ended; empty while it reads. `rows`: as many as were asked for were found, and there may be more.
    `records`, `bytes`, `seconds`: that part of the budget is used up."""


async def scan(
    settings: Settings, asked: Asked, budget: Budget, show: Callable[[list[Record], Progress], None]
) -> Progress:
    """Reads until the budget is used, all was read, or enough was found. Waits while too many others read.

    Args:
        settings: for Kafka.
        asked: what to read.
        budget: records, bytes and seconds.
        show: called with what was found since the last call, and how far it is.

    Raises:
        KafkaError: the topic can't be read.
        HeadraceError: its records aren't shown to who asks.
        TimeoutError: the broker gave nothing for 10 s. Retryable.
    """
    if not topics.may_read(settings, asked.topic, admin=asked.admin):
        raise HeadraceError(f"records of {asked.topic} aren't shown")
    async with _turns:
        count = (await topics.counts(settings, [asked.topic])).get(asked.topic, 0)
        chosen = [TopicPartition(asked.topic, p) for p in range(count) if asked.partition in (None, p)]
        if not chosen:
            return Progress(why="complete")
        async with probe(settings.kafka) as consumer:
            reading = _Reading(consumer, asked, budget, show)
            await reading.run(chosen)
            return reading.end()


class _Reading:
    """One scan at work."""

    def __init__(
        self, consumer: aiokafka.AIOKafkaConsumer, asked: Asked, budget: Budget, show: Callable[..., None]
    ) -> None:
        self._consumer, self._asked, self._budget, self._show = consumer, asked, budget, show
        self._begun = time.monotonic()
        self._progress = Progress()
        self._needle = asked.text.encode("utf-8", "surrogatepass")
        self._most = asked.rows or sys.maxsize
        self._places: dict[TopicPartition, int] = {}
        self._moved_s = self._begun

    async def run(self, tps: list[TopicPartition]) -> None:
        asked = self._asked
        found = await bounds(self._consumer, tps, asked.at if asked.start == "time" else asked.since_ms)
        starts, ends = {tp: start for tp, (start, _) in found.items()}, {tp: end for tp, (_, end) in found.items()}
        if asked.start == "offset":
            starts = {tp: max(at, asked.at) for tp, at in starts.items()}
        self._progress.total = sum(max(0, ends[tp] - at) for tp, at in starts.items())
        if asked.start == "newest":
            await self._backwards(starts, ends)
        else:
            await self._piece(starts, ends, _First(self._most))

    async def _backwards(self, starts: dict[Any, int], ends: dict[Any, int]) -> None:
        """Piece by piece from the end: what was written last is found first, however much there is before it."""
        size, upper = max(PIECE, self._asked.rows if not self._needle else 0), dict(ends)
        while not self._progress.why:
            lower = {tp: max(starts[tp], at - size) for tp, at in upper.items() if at > starts[tp]}
            if not lower:
                return
            # Markers of transactions take offsets too, so a piece may hold less than it spans, even nothing.
            await self._piece(lower, upper, None)
            if self._progress.found >= self._most:
                self._progress.why = "rows"
            upper, size = lower, min(LARGEST_PIECE, size * 2)

    async def _piece(self, lower: dict[Any, int], upper: dict[Any, int], first: "_First | None") -> None:
        """Reads offsets from `lower` up to but not with `upper` of all partitions at once, and hands on what fits.

        With `first`, only until no partition can hold one of the first any more.
        """
        waiting = {tp for tp, at in lower.items() if at < upper[tp]}
        if not waiting:
            return
        self._consumer.assign(list(waiting))
        for tp in waiting:
            self._consumer.seek(tp, lower[tp])
        cut = False
        while waiting:
            fits: list[Record] = []
            for tp, records in (await self._consumer.getmany(*waiting, timeout_ms=POLL_MS)).items():
                inside = [r for r in records if r.offset < upper[tp]]
                self._progress.read += len(inside)
                matching = [r for r in inside if self._takes(r)]
                fits += first.take(tp, inside, matching) if first else matching
            places = {tp: await self._consumer.position(tp) for tp in waiting}
            self._check_moved(places)
            done = {tp for tp, at in places.items() if at >= upper[tp]}
            if first:
                enough = {tp for tp in waiting - done if first.passed(tp)}
                done |= enough
                cut = cut or bool(enough) or first.left_out
            waiting -= done
            if done and waiting:
                self._consumer.pause(*done)
            self._hand_on(fits)
            if self._progress.why and waiting:
                return
        if first:  # all that can be among the first was read, whatever the budget
            self._progress.why = "rows" if cut else ""

    def _check_moved(self, places: dict[TopicPartition, int]) -> None:
        """Ends a scan to which the broker gives nothing: that isn't a lack of time."""
        now = time.monotonic()
        if places != self._places:
            self._places, self._moved_s = places, now
        elif now - self._moved_s > READ_TIMEOUT_S:
            raise TimeoutError(f"{self._asked.topic}: nothing read for {READ_TIMEOUT_S:.0f} s")

    def _takes(self, record: Record) -> bool:
        self._progress.bytes += record.serialized_key_size + record.serialized_value_size
        if not self._needle:
            return True
        parts = (record.key, record.value, *(part for name, value in record.headers for part in (name.encode(), value)))
        return any(part is not None and self._needle in part for part in parts)

    def _hand_on(self, fits: list[Record]) -> None:
        progress, budget = self._progress, self._budget
        progress.found += len(fits)
        progress.seconds = time.monotonic() - self._begun
        if progress.read >= budget.rows:
            progress.why = "records"
        elif progress.bytes >= budget.bytes:
            progress.why = "bytes"
        elif progress.seconds >= budget.seconds:
            progress.why = "seconds"
        self._show(fits, progress)

    def end(self) -> Progress:
        self._progress.why = self._progress.why or "complete"
        self._progress.seconds = time.monotonic() - self._begun
        return self._progress


class _First:
    """Finds the first records by time over partitions that are read side by side.

    Partitions come at their own pace, so what came first isn't what is first. Within a partition order is that of offsets: a
    record counts as no older than those before it.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._times: list[int] = []
        """Of the first ones so far, in order."""
        self._newest: dict[TopicPartition, int] = {}
        """The latest time that was read, by partition."""
        self.left_out = False
        """Something matched and wasn't among the first."""

    def take(self, tp: TopicPartition, inside: list[Record], matching: list[Record]) -> list[Record]:
        """Those of the matching ones that are among the first so far."""
        taken, wanted = [], {record.offset for record in matching}
        for record in inside:
            at = self._newest[tp] = max(self._newest.get(tp, 0), record.timestamp)
            if record.offset not in wanted:
                continue
            if len(self._times) == self._most and at >= self._times[-1]:
                self.left_out = True
                continue
            self.left_out = self.left_out or len(self._times) == self._most
            insort(self._times, at)
            del self._times[self._most :]
            taken.append(record)
        return taken

    def passed(self, tp: TopicPartition) -> bool:
        """Whether nothing further of a partition can be among the first."""
        return len(self._times) == self._most and self._newest.get(tp, -1) >= self._times[-1]
