"""Short reads beside the group: log ends, one record, the tail of a changelog."""

import asyncio
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime

import aiokafka
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import for_code
from aiokafka.structs import ConsumerRecord, TopicPartition

from app.delivery.positions import Log
from app.delivery.presence import find
from app.delivery.state import Applied
from app.kafka import admin, client_kwargs
from app.settings import KafkaSettings
from models.events import Record

__all__ = [
    "READ_TIMEOUT_S",
    "bounds",
    "config_of",
    "configs_of",
    "crc_of",
    "initial_offset",
    "known",
    "log_of",
    "probe",
    "read_tail",
    "record_at",
]

READ_TIMEOUT_S = 10.0
"""A record that must be there comes in milliseconds; a broker that takes longer is treated as not reachable."""


def crc_of(record: Record) -> int:
    return zlib.crc32(record.value or b"")


@asynccontextmanager
async def probe(kafka: KafkaSettings, *, fetch_wait_ms: int = 50) -> AsyncIterator[aiokafka.AIOKafkaConsumer]:
    """A consumer without a group, read_committed.

    Args:
        kafka: how to reach it.
        fetch_wait_ms: how long the broker holds a request while there is nothing new; it answers at once when there is.
            Short for what is read and left; who stays asks so often in vain.
    """
    consumer = aiokafka.AIOKafkaConsumer(
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        fetch_max_wait_ms=fetch_wait_ms,
        **client_kwargs(kafka),
    )
    try:
        await consumer.start()
    except BaseException:
        await consumer.stop()
        raise
    await asyncio.sleep(0)  # stopped before its tasks have begun, aiokafka 0.14 waits for them for ever
    try:
        yield consumer
    finally:
        await consumer.stop()


async def known(consumer: aiokafka.AIOKafkaConsumer, tp: TopicPartition) -> None:
    """Returns when the consumer knows where a partition is; asked for its offsets, it would wait 40 s for a missing one.

    Raises:
        UnknownTopicOrPartitionError: the topic, which is named, isn't there. Retryable.
    """
    await find(consumer._client, tp.topic, tp.partition)


async def config_of(kafka: KafkaSettings, topic: str) -> dict[str, str]:
    """A topic's configuration; raises as `configs_of` does."""
    return (await configs_of(kafka, [topic]))[topic]


async def configs_of(kafka: KafkaSettings, names: list[str]) -> dict[str, dict[str, str]]:
    """The configuration of each topic.

    Raises:
        KafkaError: one, which is named, is refused (it takes the right DescribeConfigs) or isn't there; or no broker answers.
    """
    if not names:
        return {}
    async with admin(kafka) as client:
        answers = await client.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name) for name in names])
    found: dict[str, dict[str, str]] = {}
    for code, _, _, name, entries in (resource for answer in answers for resource in answer.resources):
        if code:
            raise for_code(code)(name)
        found[name] = {entry[0]: entry[1] for entry in entries}
    return found


async def bounds(
    consumer: aiokafka.AIOKafkaConsumer, tps: list[TopicPartition], since_ms: int | None = None
) -> dict[TopicPartition, tuple[int, int]]:
    """The first offset of each partition, and its end.

    Args:
        consumer: who asks.
        tps: the partitions.
        since_ms: the first offset from this time on instead, Unix milliseconds; the end where nothing is so new.
    """
    if not tps:
        return {}
    starts, ends = await consumer.beginning_offsets(tps), await consumer.end_offsets(tps)
    if since_ms is not None:
        found = await consumer.offsets_for_times(dict.fromkeys(tps, since_ms))
        starts = {tp: ends[tp] if found.get(tp) is None else max(starts[tp], found[tp].offset) for tp in tps}
    return {tp: (starts[tp], ends[tp]) for tp in tps}


async def record_at(
    consumer: aiokafka.AIOKafkaConsumer, tp: TopicPartition, offset: int, end: int
) -> ConsumerRecord[bytes, bytes] | None:
    """The record at an offset, or None when there is none (any more)."""
    found = None
    async for record in read_tail(consumer, tp, offset, min(end, offset + 1)):
        if record.offset == offset:
            found = record
    return found


async def read_tail(
    consumer: aiokafka.AIOKafkaConsumer, tp: TopicPartition, start: int, end: int
) -> AsyncIterator[ConsumerRecord[bytes, bytes]]:
    """Committed records from `start` up to but not with `end`.

    Raises:
        TimeoutError: the broker gave nothing for 10 s. Retryable.
    """
    if start >= end:
        return
    consumer.assign([tp])
    consumer.seek(tp, start)
    loop = asyncio.get_running_loop()
    last_progress, position = loop.time(), start
    while True:
        got = await consumer.getmany(tp, timeout_ms=200)
        for record in got.get(tp, []):
            if record.offset >= end:
                return
            yield record
        now_at = await consumer.position(tp)
        if now_at >= end:
            return
        if now_at != position:
            position, last_progress = now_at, loop.time()
        elif loop.time() - last_progress > READ_TIMEOUT_S:
            raise TimeoutError(f"{tp.topic} partition {tp.partition}: nothing read at offset {now_at} for 10 s")


async def log_of(
    kafka: KafkaSettings, tp: TopicPartition, applied: Applied | None, committed: int | None, start: str
) -> Log:
    """What the broker says of an input partition, as far as it matters to a State.

    Args:
        kafka: how to reach it.
        tp: the partition.
        applied: the marker in State, or None for a new State.
        committed: the group's offset.
        start: the source's setting; where a new State begins.

    Raises:
        KafkaError: it isn't there, is refused, or no broker answers. Retryable.
    """
    async with probe(kafka) as consumer:
        await known(consumer, tp)
        first, end = (await bounds(consumer, [tp]))[tp]
        if applied is None:
            initial = await initial_offset(consumer, tp, start, first, end)
            return Log(start=first, end=end, committed=committed, at_marker=None, initial=initial)
        at_marker = None
        if first <= applied.offset < end:
            record = await record_at(consumer, tp, applied.offset, end)
            at_marker = None if record is None else (record.timestamp, crc_of(record))
    log = Log(start=first, end=end, committed=committed, at_marker=at_marker, initial=0)
    if log.lacks(applied.offset):
        log = replace(log, compacted="compact" in (await config_of(kafka, tp.topic))["cleanup.policy"])
    return log


async def initial_offset(
    consumer: aiokafka.AIOKafkaConsumer, tp: TopicPartition, start: str, log_start: int, log_end: int
) -> int:
    """Where a source's `start` setting points: earliest, latest or an RFC 3339 time."""
    if start == "earliest":
        return log_start
    if start == "latest":
        return log_end
    at_ms = int(datetime.fromisoformat(start).timestamp() * 1000)
    found = (await consumer.offsets_for_times({tp: at_ms})).get(tp)
    return log_end if found is None else int(found.offset)
