"""Keeps our clients from making topics by asking about them.

A broker with `auto.create.topics.enable` (Kafka's default) makes a topic that a client asks about, with its own default of
partitions and retention. Clients may forbid that in the question since KIP-204 and KIP-361; aiokafka 0.14 always allows it,
and has no setting. A topic that was deleted would be there again within a second, empty and of another shape, by a worker
that only asked where it is.
"""

from aiokafka import client
from aiokafka.admin import client as admin_client
from aiokafka.protocol.metadata import MetadataRequest

__all__ = ["make_no_topics"]


class Asking(MetadataRequest):  # type: ignore[misc]  # aiokafka has no types
    """A question about topics that makes none."""

    def __init__(self, topics: list[str] | None = None) -> None:
        super().__init__(topics, allow_auto_topic_creation=False)


def make_no_topics() -> None:
    """From now on aiokafka's clients make no topic that they weren't told to make. Idempotent."""
    client.MetadataRequest = admin_client.MetadataRequest = Asking
