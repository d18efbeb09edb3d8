"""Small compacted topics that hold one entry a key, such as API keys and users: what processes and commands know of them."""

from collections.abc import Callable
from typing import Generic, TypeVar

import aiokafka
import msgspec
from aiokafka.structs import ConsumerRecord, TopicPartition

from app import topics
from app.delivery.probe import probe, read_tail
from app.kafka import client_kwargs
from app.settings import Settings
from app.web.follow import UNREADABLE, skipped

__all__ = ["Roster", "read", "write"]

T = TypeVar("T", bound=msgspec.Struct)


class Roster(Generic[T]):
    """All entries of such a topic.

    Args:
        kind: of an entry, stored as JSON.
        key_of: the record key that an entry must stand under.
    """

    def __init__(self, kind: type[T], key_of: Callable[[T], str]) -> None:
        self.entries: dict[str, T] = {}
        self._decode, self._key_of = msgspec.json.Decoder(kind).decode, key_of

    def apply(self, record: ConsumerRecord[bytes, bytes]) -> None:
        """Takes a record of the topic. One that can't be read takes its entry away: nobody gets in by damage."""
        key = (record.key or b"").decode("utf-8", "replace")
        self.entries.pop(key, None)
        if not record.value:
            return
        try:
            entry = self._decode(record.value)
        except UNREADABLE as error:
            skipped(record, type(error).__name__)
            return
        if self._key_of(entry) == key:
            self.entries[key] = entry
        else:
            skipped(record, "it stands under another key")

    def clear(self) -> None:
        """Forgets all entries: the topic was made anew."""
        self.entries.clear()


async def write(settings: Settings, topic: str, key: str, entry: msgspec.Struct | None) -> None:
    """Writes one entry, or takes it away; for commands, which live for one of them.

    Args:
        settings: for Kafka.
        topic: name without the prefix.
        key: of the record.
        entry: None: it goes.
    """
    await topics.ensure(settings)
    producer = aiokafka.AIOKafkaProducer(acks="all", **client_kwargs(settings.kafka))
    await producer.start()
    try:
        value = None if entry is None else msgspec.json.encode(entry)
        await producer.send_and_wait(settings.topic(topic), value, key.encode(), partition=0)
    finally:
        await producer.stop()


async def read(settings: Settings, topic: str, apply: Callable[[ConsumerRecord[bytes, bytes]], None]) -> None:
    """Reads all of such a topic, up to its end of now."""
    tp = TopicPartition(settings.topic(topic), 0)
    async with probe(settings.kafka) as consumer:
        if tp.topic in await consumer.topics():
            start, end = (await consumer.beginning_offsets([tp]))[tp], (await consumer.end_offsets([tp]))[tp]
            async for record in read_tail(consumer, tp, start, end):
                apply(record)
