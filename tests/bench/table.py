"""Fills the table of ids by feeding events, and forgets what was fed, so that large tables fit a small disk."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.structs import TopicPartition

from tests.bench import outputs
from tests.bench.data import USERS, appender, placed
from tests.bench.launched import Launched

__all__ = ["append", "disk_mb", "fill", "forget", "single"]

CHUNK = 250_000
"""Appended in one go; one more is appended while one is worked on, so the input topic stays small."""


def _events(count: int, seed: int) -> Iterator[tuple[int, bytes]]:
    """User number and value of small noise events with ids of their own."""
    rnd = random.Random(f"table {seed}")  # never the ids of data.records
    for number in range(count):
        yield (
            rnd.randrange(USERS),
            (
                f'{{"event_id": "{rnd.getrandbits(128):032x}", "event_type": "heartbeat", '
                f'"event_time": {1_764_000_000_000 + number}, "source_system": "app", "payload": {{}}}}'
            ).encode(),
        )


def single(event_id: str) -> bytes:
    """One event that a rule decides."""
    return (
        f'{{"event_id": "{event_id}", "event_type": "payment", "event_time": 1764000000000, '
        f'"source_system": "app", "payload": {{"message": "one"}}}}'
    ).encode()


async def fill(
    bootstrap: str,
    prefix: str,
    topic: str,
    count: int,
    before: int,
    running: list[Launched],
    seed: int,
    bar: outputs.Bar,
) -> str:
    """Feeds `count` ids to workers that run; `before` records are in the topic already and worked on.

    Returns:
        Nothing, or why they didn't get there.
    """
    made = _events(count, seed)
    users = placed(outputs.PARTITIONS)
    done = 0
    alive = lambda: all(each.alive() for each in running)  # noqa: E731 - short, and used twice
    async with appender(bootstrap) as producer:
        while done < count:
            builders = [producer.create_batch() for _ in range(outputs.PARTITIONS)]
            for user, value in (next(made) for _ in range(min(CHUNK, count - done))):
                key, place = users[user]
                if builders[place].append(key=key, value=value, timestamp=None) is None:
                    builders[place].close()
                    await producer.send_batch(builders[place], topic, partition=place)
                    builders[place] = producer.create_batch()
                    builders[place].append(key=key, value=value, timestamp=None)
            for place, builder in enumerate(builders):
                if builder.record_count():
                    builder.close()
                    await producer.send_batch(builder, topic, partition=place)
            await producer.flush()
            ahead = done  # the chunk before this one
            done = min(count, done + CHUNK)
            wanted = before + (done if done == count else ahead)
            stuck = await outputs.await_progress(bootstrap, f"{prefix}headrace", topic, wanted, alive)
            if stuck:
                return stuck
            bar(min(CHUNK, count))
            await forget(bootstrap, [prefix + name for name in outputs.OUTPUTS])
            await forget(bootstrap, [topic], f"{prefix}headrace")
    return ""


async def forget(bootstrap: str, topics: list[str], group: str = "", partitions: int = outputs.PARTITIONS) -> None:
    """Deletes all records, or those that a group has committed, so that they take no disk."""
    tps = [TopicPartition(topic, p) for topic in topics for p in range(partitions)]
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        if group:
            stood = await admin.list_consumer_group_offsets(group)
            ends = {tp: stood[tp].offset for tp in tps if tp in stood}
        else:
            consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap)
            await consumer.start()
            try:
                ends = await consumer.end_offsets(tps)
            finally:
                await consumer.stop()
        wanted = {tp: RecordsToDelete(before_offset=end) for tp, end in ends.items() if end > 0}
        if wanted:
            await admin.delete_records(wanted)
    finally:
        await admin.close()


def disk_mb(folder: Path) -> float:
    """What a folder takes on disk."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_blocks * 512
        except OSError:  # RocksDB deletes files while we look
            continue
    return round(total / (1 << 20), 1)


async def append(
    bootstrap: str, topic: str, events: list[tuple[int, bytes]], partitions: int = outputs.PARTITIONS
) -> None:
    """Appends a few events, by user number."""
    users = placed(partitions)
    async with appender(bootstrap) as producer:
        sent = [await producer.send(topic, value, users[user][0], partition=users[user][1]) for user, value in events]
        await asyncio.gather(*sent)
