"""What Kafka knows of our topics: partitions, offsets, and how far consumer groups are behind."""

import asyncio
from dataclasses import dataclass, field

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError
from aiokafka.structs import TopicPartition

from app import topics
from app.delivery.probe import probe
from app.kafka import admin
from app.settings import Settings

__all__ = ["GroupState", "TopicState", "groups_of", "our_topics"]

MAX_GROUPS = 100
"""Each is a request; Kafka can't tell which groups read a topic."""
GROUPS_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicState:
    """One topic."""

    name: str
    what: str
    """What its values are; of a changelog, which State."""
    written_by: str
    starts: dict[int, int] = field(default_factory=dict)
    """First offset, by partition."""
    ends: dict[int, int] = field(default_factory=dict)

    @property
    def span(self) -> int:
        """Offsets from first to last: records at most, as compaction and markers of transactions leave gaps."""
        return sum(end - self.starts[partition] for partition, end in self.ends.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState:
    """How far a consumer group is in a topic."""

    group: str
    offsets: dict[int, int]
    """Next offset, by partition; what isn't there was never committed."""

    def lag(self, ends: dict[int, int]) -> int:
        return sum(max(0, ends[p] - at) for p, at in self.offsets.items() if p in ends)


async def our_topics(settings: Settings, only: str | None = None) -> list[TopicState]:
    """Our topics, sources and changelogs that exist, with their offsets: one request a broker, however many there are.

    Args:
        settings: the tree.
        only: just this one.

    Raises:
        KafkaError: they can't be read.
    """
    known = {t.name: (t.value, t.written_by) for t in topics.topics(settings)}
    known |= {settings.source_topic(source): ("events", "producers") for source in settings.sources}
    changelogs = settings.topic("headrace-")
    async with probe(settings.kafka) as consumer:
        there = await consumer.topics()
        found: dict[str, tuple[str, str]] = {}
        for name in sorted(there):
            if name in known:
                found[name] = known[name]
            elif topics.is_changelog(settings, name):
                found[name] = ("State", name.removeprefix(changelogs).removesuffix("-changelog"))
        if only is not None:
            found = {name: what for name, what in found.items() if name == only}
        counts = await topics.counts(settings, list(found))
        tps = [TopicPartition(name, p) for name, count in counts.items() for p in range(count)]
        starts, ends = (await consumer.beginning_offsets(tps), await consumer.end_offsets(tps)) if tps else ({}, {})
    return [
        TopicState(
            name=name, what=what, written_by=by,
            starts={tp.partition: at for tp, at in sorted(starts.items()) if tp.topic == name},
            ends={tp.partition: at for tp, at in sorted(ends.items()) if tp.topic == name},
        )
        for name, (what, by) in found.items()
    ]  # fmt: skip


async def groups_of(settings: Settings, topic: TopicState) -> tuple[list[GroupState], bool]:
    """Groups with committed offsets in a topic, and whether all groups were asked.

    Raises:
        KafkaError: they can't be read.
    """
    tps = [TopicPartition(topic.name, partition) for partition in topic.ends]
    async with admin(settings.kafka) as client:
        listed = sorted({group for group, *_ in await client.list_consumer_groups()})
        tasks = [asyncio.create_task(_offsets(client, group, tps)) for group in listed[:MAX_GROUPS]]
        done, late = await asyncio.wait(tasks, timeout=GROUPS_TIMEOUT_S) if tasks else (set(), set())
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
    found = [state for task in done if (state := task.result()) is not None]
    return sorted(found, key=lambda state: state.group), not late and len(listed) <= MAX_GROUPS


async def _offsets(client: AIOKafkaAdminClient, group: str, tps: list[TopicPartition]) -> GroupState | None:
    try:
        given = await client.list_consumer_group_offsets(group, partitions=tps)
    except KafkaError:  # it ended meanwhile, or its coordinator moves
        return None
    offsets = {tp.partition: at.offset for tp, at in given.items() if at.offset >= 0}
    return GroupState(group=group, offsets=offsets) if offsets else None
