"""Reads changelog partitions into their local copies: all that are asked for at once, in large fetches.

Faust's own recovery isn't used. It clears its queue whenever flow resumes, and so drops what it has fetched for standby
partitions in between; a copy with such a hole looks whole. Here a record is either applied, together with its offset,
or read again.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import aiokafka
from aiokafka.errors import UnknownTopicOrPartitionError
from aiokafka.structs import TopicPartition

from app.delivery.database import COPY_OF
from app.delivery.drain import drain
from app.delivery.presence import find, missing
from app.delivery.state import APPLIED, StateRows, decode_applied
from app.kafka import client_kwargs
from app.settings import KafkaSettings
from models.events import Received

__all__ = ["ChangelogReader", "Copy", "changelog_reader", "in_thread"]

log = logging.getLogger("headrace.delivery")

T = TypeVar("T")
Record: TypeAlias = Received

PARTITION_FETCH_BYTES = 2 << 20
"""Of one partition at a time: two of the largest transactions. Restore reads nothing else meanwhile."""
FETCH_BYTES = 16 << 20
"""Of all partitions in one fetch; what is fetched and not yet applied stays about this large."""
BULK_FROM_RECORDS = 300
"""From this many changelog offsets on a copy is opened for bulk writing: opening it twice costs 50 ms, a packed record
of 2,000 rows saves 5 ms."""
QUIET_S = 5.0
"""When the broker answers and gives nothing for this long, there is nothing: compaction may take all records up to the
end, and then no fetch ever reaches it."""
POLL_S = 0.2
DRAIN_RECORDS = 20_000
"""Of one partition at a time, in whole record batches."""


async def in_thread(work: Callable[..., T], *arguments: Any) -> T:
    """Runs work beside the event loop; when cancelled, still waits until it is done, so that a database can be closed."""
    task = asyncio.ensure_future(asyncio.to_thread(work, *arguments))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


@dataclass(slots=True, eq=False)
class Copy:
    """The local copy of one State partition, on its way to the end of its changelog."""

    state: StateRows
    tp: TopicPartition
    active: bool = True
    """False: a standby."""
    start: int = 0
    """The changelog's first offset."""
    end: int = 0
    """Where it ended when that was last asked."""
    next: int = 0
    """The next offset to read."""
    records: int = 0
    rows: int = 0
    unsure: list[Record] | None = None
    """Records of a changelog that isn't known yet to be the one this copy was made from."""
    moved_at: float = field(default_factory=time.monotonic)

    @property
    def partition(self) -> int:
        return int(self.tp.partition)

    @property
    def remaining(self) -> int:
        """Changelog offsets still to read."""
        return max(0, self.end - self.next)

    def set_aside(self, why: str) -> None:
        """The local copy is no good: it begins anew, from the changelog's start."""
        self.state.store.set_aside(self.partition, f"local state {why}")
        self.next, self.unsure = self.start, None

    def locate(self) -> None:
        """Finds where to go on reading.

        A copy that has a marker is read from its own last batch on: the first marker from there tells whether this is
        still the changelog it was made from.
        """
        database = self.state.database(self.partition)
        reached, mine = database.changelog_offset, self.state.applied(self.partition)
        if reached is None or mine is None:
            self.next = self.start  # no work is noted in it, so there is next to nothing to read twice
        else:
            self.next, self.unsure = max(self.start, min(database.last_batch_start, reached + 1)), []

    def sure(self, records: list[Record], at_end: bool) -> list[Record] | None:
        """What may be applied of what was read; None when the copy turned out to be of another changelog."""
        if self.unsure is None:
            return records
        self.unsure += records
        marker = next((r for r in self.unsure if r.key == APPLIED and r.value is not None), None)
        if marker is None and not at_end:
            return []
        mine = self.state.applied(self.partition)
        if marker is not None and mine is not None:
            theirs = decode_applied(marker.value or b"")
            if theirs.incarnation != mine.incarnation:
                return None
        reached = self.state.database(self.partition).changelog_offset or -1
        held, self.unsure = self.unsure, None
        return [r for r in held if r.offset > reached]

    def apply(self, records: list[Record], upto: int) -> int:
        """Writes records and how far they reach; returns the rows."""
        changes = [(r.key or b"", r.value) for r in records]
        database = self.state.database(self.partition)
        write = self.state.apply_bulk if database.bulk else self.state.apply
        # The next start begins at the last marker, however much was read in one piece with it.
        marker = next((r.offset for r in reversed(records) if r.key == APPLIED), database.last_batch_start)
        return write(self.partition, changes, upto, marker - 1)


class ChangelogReader:
    """Brings local copies up to their changelogs."""

    def __init__(self, consumer: aiokafka.AIOKafkaConsumer, told: Callable[[int, int], None] | None = None) -> None:
        self._consumer = consumer
        self._told = told or (lambda records, rows: None)

    async def missing(self, copies: Iterable[Copy]) -> list[Copy]:
        """Copies whose changelog partition isn't there: the topic was deleted, or made anew with fewer."""
        asked = list(copies)
        topics = await missing(self._consumer._client, {copy.tp.topic for copy in asked})
        return [copy for copy in asked if copy.tp.topic in topics or not await self._is_there(copy.tp)]

    async def _is_there(self, tp: TopicPartition) -> bool:
        try:
            await find(self._consumer._client, tp.topic, tp.partition)
        except UnknownTopicOrPartitionError:
            return False
        return True

    async def measure(self, copies: Iterable[Copy]) -> None:
        """Asks where the changelogs begin and end.

        Raises:
            UnknownTopicOrPartitionError: one isn't there. Retryable.
        """
        asked = list(copies)
        if not asked:
            return
        for copy in asked:
            await find(self._consumer._client, copy.tp.topic, copy.partition)
        tps = [copy.tp for copy in asked]
        starts, ends = await self._consumer.beginning_offsets(tps), await self._consumer.end_offsets(tps)
        for copy in asked:
            copy.start, copy.end = starts[copy.tp], ends[copy.tp]

    async def catch_up(self, copies: Iterable[Copy]) -> None:
        """Reads each copy from its `next` up to its `end`. Cancelling leaves all copies whole.

        Raises:
            KafkaError: retryable.
            StateError: a local copy can't be written.
        """
        waiting = {copy.tp: copy for copy in copies}
        for copy in waiting.values():
            copy.moved_at = time.monotonic()
            if copy.remaining >= BULK_FROM_RECORDS:
                await in_thread(self._open_bulk, copy)
        self._assign(waiting)
        try:
            while True:
                for tp in [tp for tp, copy in waiting.items() if copy.next >= copy.end]:
                    await in_thread(waiting.pop(tp).state.settle, tp.partition)
                    self._consumer.pause(tp)
                if not waiting:
                    return
                await self._step(waiting)
        finally:
            for copy in waiting.values():
                await in_thread(copy.state.settle, copy.partition)

    async def follow(self, copies: Iterable[Copy]) -> None:
        """Reads on for ever, as records come. For standbys."""
        following = {copy.tp: copy for copy in copies}
        self._assign(following)
        while True:
            await self._step(following)
            for tp, copy in following.items():
                copy.end = max(copy.next, self._consumer.last_stable_offset(tp) or 0)

    @staticmethod
    def _open_bulk(copy: Copy) -> None:
        copy.state.settle(copy.partition)
        copy.state.store.reopen(copy.partition, bulk=True)

    def _assign(self, copies: dict[TopicPartition, Copy]) -> None:
        if not copies:
            return
        self._consumer.assign(list(copies))
        for tp, copy in copies.items():
            self._consumer.seek(tp, copy.next)

    async def _step(self, copies: dict[TopicPartition, Copy]) -> None:
        """Takes what is there and applies it."""
        got = await self._fetched(copies)
        now = time.monotonic()
        for tp, copy in copies.items():
            records, position = got.get(tp, []), await self._consumer.position(tp)
            if position != copy.next or records:
                await self._take(copy, records, position)
                copy.moved_at = now
            elif now - copy.moved_at > QUIET_S and copy.next < copy.end:
                await self._confirm_end(copy)

    async def _fetched(self, copies: dict[TopicPartition, Copy]) -> dict[TopicPartition, list[Record]]:
        """What is there; waits a moment when there is nothing."""
        fetcher = self._consumer._fetcher
        got = {tp: records for tp in copies if (records := drain(fetcher, tp, DRAIN_RECORDS))}
        if got:
            return got
        waiter = fetcher._create_fetch_waiter()
        try:
            await asyncio.wait([waiter], timeout=POLL_S)
        finally:
            if waiter.done():
                waiter.result()  # raises what the fetcher met, for example a refused credential
            else:
                waiter.cancel()
        return {tp: records for tp in copies if (records := drain(fetcher, tp, DRAIN_RECORDS))}

    async def _take(self, copy: Copy, records: list[Record], position: int) -> None:
        if position < copy.next or (records and records[0].offset < copy.next):
            # A standby was in time to see all that the old topic held, or it wasn't: nobody knows.
            copy.start = 0
            copy.set_aside("is of a changelog that was deleted and made again; rebuilding it")
            self._consumer.seek(copy.tp, copy.next)
            return
        begun = copy.next
        copy.next = position
        sure = copy.sure(records, position >= copy.end)
        if sure is None:
            copy.set_aside("belongs to another life of the changelog; rebuilding it")
            self._consumer.seek(copy.tp, copy.next)
            if copy.remaining >= BULK_FROM_RECORDS:
                await in_thread(self._open_bulk, copy)
            return
        reached = copy.state.database(copy.partition).changelog_offset
        rows = 0
        if copy.unsure is None and (sure or position - 1 > (-1 if reached is None else reached)):
            rows = await in_thread(copy.apply, sure, position - 1)
        copy.records += len(sure)
        copy.rows += rows
        self._told(position - begun, rows)

    async def _confirm_end(self, copy: Copy) -> None:
        """Nothing came for a while: where the broker answers, the rest of the log is empty."""
        end = (await self._consumer.end_offsets([copy.tp]))[copy.tp]
        copy.moved_at = time.monotonic()
        if end <= copy.end:
            log.info("%s, partition %d: nothing left between %d and %d", copy.tp.topic, copy.partition, copy.next, end)
            await self._take(copy, [], copy.end)


@asynccontextmanager
async def changelog_reader(
    kafka: KafkaSettings, told: Callable[[int, int], None] | None = None
) -> AsyncIterator[ChangelogReader]:
    """A reader with a consumer of its own, without a group. `told` hears of offsets and rows as they are done."""
    consumer = aiokafka.AIOKafkaConsumer(
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        fetch_max_wait_ms=100,
        fetch_max_bytes=FETCH_BYTES,
        max_partition_fetch_bytes=PARTITION_FETCH_BYTES,
        **client_kwargs(kafka),
    )
    await consumer.start()
    await asyncio.sleep(0)  # stopped before its tasks have begun, aiokafka 0.14 waits for them for ever
    try:
        yield ChangelogReader(consumer, told)
    finally:
        await consumer.stop()


def is_foreign(copy: Copy) -> str:
    """Which other changelog a copy says it was made from; empty when it is ours."""
    said = copy.state.database(copy.partition).get(COPY_OF)
    return "" if said in (None, copy.state.store.identity(copy.partition)) else (said or b"").decode("utf-8", "replace")
