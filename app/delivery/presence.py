"""Whether topics are there: asked when work waits for one, since aiokafka waits for a missing topic as for a slow broker."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError, UnknownTopicOrPartitionError
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.structs import TopicPartition

__all__ = ["find", "missing", "tell_of_missing"]

TRIES = 4
AGAIN_S = 0.25
"""A topic that was just made is told of by all brokers within a second."""


async def missing(client: AIOKafkaClient, topics: Iterable[str]) -> set[str]:
    """Those of the topics that the brokers say they don't have; none while no broker answers.

    A topic that may not be seen isn't missing: who asks for it is told of the refusal.
    """
    left = set(topics)
    for number in range(TRIES):
        for topic in left:
            client.add_topic(topic)
        if not await client.force_metadata_update():
            return set()
        cluster = client.cluster
        left = {t for t in left if cluster.partitions_for_topic(t) is None and t not in cluster.unauthorized_topics}
        if not left or number == TRIES - 1:
            break
        await asyncio.sleep(AGAIN_S)
    return left


async def find(client: AIOKafkaClient, topic: str, partition: int = 0) -> None:
    """Returns when the client knows where a partition is. Costs nothing when it knows it already.

    Raises:
        UnknownTopicOrPartitionError: the topic, which is named, isn't there, or has no such partition. Retryable.
    """
    known = client.cluster.partitions_for_topic(topic)
    if known is None and await missing(client, [topic]):
        raise UnknownTopicOrPartitionError(topic)
    known = client.cluster.partitions_for_topic(topic)
    if known is not None and partition not in known:
        await client.force_metadata_update()
        known = client.cluster.partitions_for_topic(topic) or known
        if partition not in known:
            raise UnknownTopicOrPartitionError(f"{topic} partition {partition}")


def tell_of_missing(client: Any, told: Callable[[TopicPartition, KafkaError], None]) -> None:
    """Has a consumer's client tell of partitions that a fetch finds gone.

    aiokafka only asks again then. Where the topic is made anew meanwhile, the next fetch goes on in it as if nothing had
    happened: all below the position would be skipped.
    """
    usual = client.send

    async def send(node_id: int, request: Any, **more: Any) -> Any:
        response = await usual(node_id, request, **more)
        if isinstance(request, FetchRequest):
            for topic, partitions in response.topics:
                for partition, code, *_ in partitions:
                    if code == UnknownTopicOrPartitionError.errno:
                        told(TopicPartition(topic, partition), UnknownTopicOrPartitionError(topic))
        return response

    client.send = send
