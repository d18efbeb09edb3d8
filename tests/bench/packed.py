"""A table of ids as a worker would have written it: packed records and markers, straight to the changelog.

Feeding events fills it at the worker's pace, this at that of the broker. The worker then restores it as any other.
"""

import asyncio
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from aiokafka.structs import TopicPartition

from app.delivery.outbox import Outbox
from app.delivery.probe import probe, read_tail
from app.delivery.reseed import write_rows
from app.delivery.state import APPLIED
from app.delivery.transaction import new_producer
from app.settings import Settings
from tables.seen import SEEN, Seen

__all__ = ["BATCH", "Batch", "IdTable", "changelog_records", "event", "write"]

BATCH = 7000
"""Ids in a packed record, as at the highest rate: a batch holds 8,000 events, some repeated or broken."""
BUCKET_MS = SEEN.bucket_s * 1000
OLD = 72
"""One id in so many is older than the horizon when the worker starts: twenty minutes' worth of a day."""
SURE_MS = 3_600_000
"""Ids are asked for again only when they have so long to live."""
LOOKED_INTO = 400
"""Batches that known ids are drawn from: each has to be made again."""
WRITERS = 4
"""Partitions that are written at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The ids of one packed record."""

    partition: int
    first: int
    """Offset of its first event."""
    at_ms: int
    ids: int


@dataclass(frozen=True, kw_only=True)
class IdTable:
    """What is in it: all of it can be made again."""

    state: str
    """Its name."""
    partitions: int
    ids: int
    """Younger than the horizon, over all partitions; the old ones come on top."""
    batch: int = BATCH
    now_ms: int
    horizon_ms: int = 86_400_000

    def batches(self, partition: int) -> list[Batch]:
        """In the order in which they were written: the oldest first, evenly over the horizon."""
        young = self.ids // self.partitions + (partition < self.ids % self.partitions)
        oldest = self.now_ms - self.horizon_ms
        spans = (
            (-(-young // OLD), oldest - 3 * BUCKET_MS, oldest - 2 * BUCKET_MS),
            (young, oldest, self.now_ms - 2 * BUCKET_MS),
        )
        made: list[Batch] = []
        first = 0
        for ids, begin_ms, end_ms in spans:
            count = -(-ids // self.batch)
            for number in range(count):
                size = min(self.batch, ids - number * self.batch)
                at_ms = begin_ms + (end_ms - begin_ms) * (2 * number + 1) // (2 * count)
                made.append(Batch(partition=partition, first=first, at_ms=at_ms, ids=size))
                first += size
        return made

    def ids_of(self, batch: Batch) -> list[str]:
        """The event ids of a batch: hex of 128 bits."""
        rnd = random.Random(f"packed {self.state} {self.ids} {batch.partition} {batch.first}")
        made = rnd.randbytes(16 * batch.ids).hex()
        return [made[place : place + 32] for place in range(0, len(made), 32)]

    def rows(self, batch: Batch) -> list[tuple[bytes, bytes]]:
        """What ingest keeps of its events."""
        return [
            (event_id.encode(), SEEN.encode(Seen(offset, batch.at_ms, crc32(event(event_id)), "noise", "noise")))
            for offset, event_id in enumerate(self.ids_of(batch), batch.first)
        ]

    def known(self, count: int, seed: int) -> list[tuple[int, bytes]]:
        """Partition and value of events that are in the table, drawn from all over it."""
        rnd = random.Random(f"known {seed}")
        batches = [b for p in range(self.partitions) for b in self.batches(p) if self._is_young(b)]
        chosen = rnd.sample(batches, min(len(batches), LOOKED_INTO))
        share = -(-count // len(chosen))
        found = [
            (batch.partition, event(event_id))
            for batch in chosen
            for event_id in rnd.sample(self.ids_of(batch), min(batch.ids, share))
        ]
        return rnd.sample(found, min(count, len(found)))

    def _is_young(self, batch: Batch) -> bool:
        return batch.at_ms > self.now_ms - self.horizon_ms + SURE_MS

    def old(self, count: int) -> list[str]:
        """Ids that are older than the horizon, from each partition."""
        return [
            event_id for p in range(self.partitions) for event_id in self.ids_of(self.batches(p)[0])[: max(1, count)]
        ]


def event(event_id: str) -> bytes:
    """A noise event, of the benchmark's sources and of the built-in one."""
    return (
        f'{{"event_id": "{event_id}", "event_type": "heartbeat", "event_time": 1764000000000, '
        f'"source_system": "app", "payload": {{}}}}'
    ).encode()


async def write(table: IdTable, settings: Settings, bar: Callable[[int], object] = int) -> None:
    """Writes the whole table.

    A worker must have read an event of each partition and have stopped: its changelog and its markers are there then.
    """
    room = asyncio.Semaphore(WRITERS)

    async def one(partition: int) -> None:
        async with room:
            await _write(table, settings, partition, bar)

    async with asyncio.TaskGroup() as group:
        for partition in range(table.partitions):
            group.create_task(one(partition))


async def _write(table: IdTable, settings: Settings, partition: int, bar: Callable[[int], object]) -> None:
    changelog = f"{settings.topic('headrace')}-{table.state}-changelog"
    marker = await _marker(settings, TopicPartition(changelog, partition))
    producer = await new_producer(settings, f"{settings.topic('headrace')}-{table.state}-{partition}")

    try:
        await write_rows(producer, changelog, partition, changelog_records(table, partition, marker, bar))
    finally:
        await producer.stop()


def changelog_records(
    table: IdTable, partition: int, marker: bytes, bar: Callable[[int], object] = int
) -> Iterator[tuple[bytes, bytes | None]]:
    """Each batch as ingest writes it, with the marker of its transaction."""
    for batch in table.batches(partition):
        out = Outbox(now_ms=batch.at_ms)
        out.put_packed(SEEN, batch.at_ms, batch.first, table.rows(batch))
        yield from out.changelog.items()
        yield APPLIED, marker
        bar(batch.ids)


async def _marker(settings: Settings, tp: Any) -> bytes:
    """Where in its input the worker stood."""
    found = b""
    async with probe(settings.kafka) as consumer:
        end = (await consumer.end_offsets([tp]))[tp]
        async for record in read_tail(consumer, tp, 0, end):
            if record.key == APPLIED and record.value:
                found = record.value
    if not found:
        raise RuntimeError(f"{tp.topic}, partition {tp.partition} has no marker: no worker has read anything there")
    return found
