"""Keeps clients from failing where a cluster names no broker.

So it is for a moment after its brokers were all fenced: a lone one that was paused, or a machine that slept, for longer than
the controllers wait (`broker.session.timeout.ms`, 9 s). A client of aiokafka 0.14 that begins just then takes that for a bug of
its own and raises AssertionError, which nobody handles who handles errors of Kafka. So it gets the error that aiokafka raises for
a broker that isn't ready, asks again for the cluster, and goes on.
"""

from typing import Any

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import NodeNotReadyError

__all__ = ["wait_for_brokers"]

_usual = AIOKafkaClient.coordinator_lookup


async def _lookup(client: Any, kind: Any, key: str) -> Any:
    if client.get_random_node() is None:
        raise NodeNotReadyError("the cluster names no broker now")
    return await _usual(client, kind, key)


def wait_for_brokers() -> None:
    """From now on aiokafka's clients wait until some broker is named. Idempotent."""
    AIOKafkaClient.coordinator_lookup = _lookup
