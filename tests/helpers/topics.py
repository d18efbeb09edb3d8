"""Reads and writes topics with plain clients, independent of the product's own code."""

import asyncio
from collections.abc import Iterable
from typing import Any

import aiokafka
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import GroupCoordinatorNotAvailableError, TopicAlreadyExistsError
from aiokafka.structs import TopicPartition

__all__ = ["committed", "create", "end_offsets", "produce", "read"]

COORDINATOR_TRIES = 50


async def create(bootstrap: str, topic: str, partitions: int = 4, config: dict[str, str] | None = None) -> None:
    """Makes a topic; one of that name may be there."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        answer = await admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=config)])
    finally:
        await admin.close()
    assert answer.topic_errors[0][1] in (0, TopicAlreadyExistsError.errno), answer


async def produce(
    bootstrap: str, topic: str, records: Iterable[tuple[bytes | None, bytes | None]], headers: Any = None
) -> None:
    """Sends (key, value) pairs with acks=all."""
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=bootstrap, acks="all", max_batch_size=1 << 19, linger_ms=10, max_request_size=4 << 20
    )
    await producer.start()
    try:
        futures = [await producer.send(topic, value, key, headers=headers) for key, value in records]
        for future in futures:
            await future
    finally:
        await producer.stop()


async def end_offsets(bootstrap: str, topic: str, partitions: int = 4) -> dict[int, int]:
    consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, isolation_level="read_committed")
    await consumer.start()
    try:
        ends = await consumer.end_offsets([TopicPartition(topic, p) for p in range(partitions)])
    finally:
        await consumer.stop()
    return {tp.partition: end for tp, end in ends.items()}


async def read(bootstrap: str, topic: str, partitions: int = 4, isolation: str = "read_committed") -> list[Any]:
    """Every record of a topic, by partition and offset."""
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        isolation_level=isolation,
        enable_auto_commit=False,
        max_partition_fetch_bytes=4 << 20,
    )
    await consumer.start()
    found: list[Any] = []
    try:
        there = await consumer.topics()
        if topic not in there:
            return []
        tps = [TopicPartition(topic, p) for p in range(partitions)]
        consumer.assign(tps)
        await consumer.seek_to_beginning(*tps)
        ends = await consumer.end_offsets(tps)
        while any([await consumer.position(tp) < ends[tp] for tp in tps]):
            for records in (await consumer.getmany(timeout_ms=300)).values():
                found += records
    finally:
        await consumer.stop()
    return sorted(found, key=lambda r: (r.partition, r.offset))


async def committed(bootstrap: str, group: str, topic: str, partitions: int = 4) -> dict[int, int]:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        for patience in range(COORDINATOR_TRIES, -1, -1):
            try:
                offsets = await admin.list_consumer_group_offsets(group)
                break
            except GroupCoordinatorNotAvailableError:  # a broker that is young or busy elects it first
                if not patience:
                    raise
                await asyncio.sleep(0.2)
    finally:
        await admin.close()
    return {tp.partition: o.offset for tp, o in offsets.items() if tp.topic == topic and tp.partition < partitions}
