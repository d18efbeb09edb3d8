"""Divides State when the inputs get more partitions, while all workers are stopped.

With `hash % count` a key of partition p goes to one of the partitions q with `q % old == p` when the count becomes a
multiple of the old one; each of these children has this one parent. A child gets its rows first, by putting only; then the
parent notes it, and loses the rows that moved: a run that was cut off is simply run again. A note in every partition keeps
workers out until it is done.
"""

import zlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from aiokafka.structs import TopicPartition

from app.delivery.kinds import KINDS
from app.delivery.maps import COPY, STAY, Map, PackedMap
from app.delivery.offline import OfflineState, read_state, writer
from app.delivery.partitions import partition_for
from app.delivery.probe import probe, read_tail
from app.delivery.reseed import write_rows
from app.delivery.stage import Stage
from app.delivery.state import APPLIED, UNFINISHED, Applied, ChangelogRecord
from app.errors import StateError
from app.logic.progress import progress_of
from app.settings import Settings

__all__ = ["Partitioner", "Plan", "behind", "child_rows", "divide", "finish", "parent_rows", "place", "unfinished"]

Partitioner = Literal["murmur2", "crc32"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """From how many partitions to how many."""

    old: int
    new: int
    partitioner: Partitioner = "murmur2"

    @property
    def series(self) -> int:
        """Tells copied packed records of this run from all others: the count at least doubles each time."""
        return self.new.bit_length()

    @property
    def filled(self) -> bytes:
        """Note in a parent: its children have their rows, and must not be written from what is left of it."""
        return b"%d filled" % self.old

    def children(self, parent: int) -> list[int]:
        return list(range(parent + self.old, self.new, self.old))


def place(key: bytes, count: int, partitioner: Partitioner) -> int:
    """The partition of a key, as the producers of the input choose it."""
    return partition_for(key, count) if partitioner == "murmur2" else zlib.crc32(key) % count


def child_rows(state: OfflineState, parent: int, child: int, plan: Plan) -> Iterator[ChangelogRecord]:
    """What the changelog of a new partition begins with.

    Raises:
        StateError: a map doesn't say where its rows go, or a row isn't where its key belongs.
    """
    database = state.database(parent)
    for each in state.maps.values():
        if each.moves == STAY:
            continue
        if isinstance(each, PackedMap):
            for record, packed in database.scan(each.records):
                yield each.renumbered(record, plan.series), packed
            continue
        for row, value in database.scan(each.prefix):
            if each.moves == COPY or _target(each, row, parent, plan) == child:
                yield row, _fitted(each, each.moved, value, state, parent, child, plan)
    kinds, applied = database.get(KINDS), state.applied(parent)
    if kinds is not None:
        yield KINDS, kinds
    if applied is not None:
        # Stands before the first record: a source's `start` says where a new State begins, and this one isn't new.
        first = Applied(-1, 0, 0, f"{applied.incarnation}/{plan.new}/{child}")
        yield APPLIED, msgspec.msgpack.encode(first)


def parent_rows(state: OfflineState, parent: int, plan: Plan) -> Iterator[ChangelogRecord]:
    """What changes in the parent: rows that follow their key to a child are gone."""
    for each in state.maps.values():
        if callable(each.moves):
            for row, _ in state.database(parent).scan(each.prefix):
                if _target(each, row, parent, plan) != parent:
                    yield row, None
        elif each.left is not None:
            for row, value in state.database(parent).scan(each.prefix):
                yield row, _fitted(each, each.left, value, state, parent, parent, plan)


def _fitted(each: Map[Any], fit: Any, value: bytes, state: OfflineState, parent: int, child: int, plan: Plan) -> bytes:
    """The value as it has to be in partition `child`."""
    if fit is None:
        return value

    def counted(of: Map[Any], begin: bytes) -> int:
        rows = state.database(parent).scan(of.prefix + begin)
        return sum(1 for row, _ in rows if _target(of, row, parent, plan) == child)

    return each.encode(fit(each.decode(value), counted))


def _target(of: Map[Any], row: bytes, parent: int, plan: Plan) -> int:
    if not callable(of.moves):
        raise StateError(f"map {of.name} doesn't say what happens to its rows when partitions are added")
    target = place(of.moves(row[1:]), plan.new, plan.partitioner)
    if target % plan.old != parent:
        raise StateError(
            f"map {of.name} has a row in partition {parent} whose key belongs to {target % plan.old} of {plan.old}: the "
            f"producers of this input don't use {plan.partitioner}; nothing was moved. Try --partitioner, or begin anew "
            "with another kafka.topic_prefix"
        )
    return target


async def unfinished(settings: Settings, stage: Stage) -> int | None:
    """The count from which a run that was cut off began; None when there was none."""
    tp = TopicPartition(stage.changelog, 0)
    async with probe(settings.kafka) as consumer:
        if tp.topic not in await consumer.topics():
            return None
        found = None
        start, end = (await consumer.beginning_offsets([tp]))[tp], (await consumer.end_offsets([tp]))[tp]
        async for record in read_tail(consumer, tp, start, end):
            if record.key == UNFINISHED:
                found = None if record.value is None else int(record.value.split()[0])
    return found


async def behind(settings: Settings, stage: Stage, states: OfflineState, old: int) -> dict[int, int]:
    """Records of each partition that State hasn't seen: they would meet State that has moved."""
    async with probe(settings.kafka) as consumer:
        tps = [TopicPartition(stage.topic, partition) for partition in range(old)]
        ends, starts = await consumer.end_offsets(tps), await consumer.beginning_offsets(tps)
        left: dict[int, int] = {}
        for tp in tps:
            applied = states.applied(tp.partition)
            at = max(starts[tp], 0 if applied is None else applied.offset + 1)
            # What is left may be transaction markers only, which are no records: count what can be read.
            count = 0
            async for record in read_tail(consumer, tp, at, ends[tp]):
                # What lanes say of their progress is no input: they say it again when they start.
                count += record.key is not None or progress_of(record) is None
            if count:
                left[tp.partition] = count
    return left


async def divide(
    settings: Settings, stage: Stage, plan: Plan, grow: Callable[[str], Awaitable[None]], told: Callable[[str], None]
) -> None:
    """Divides one stage's State. Its input is not touched.

    Args:
        settings: of this deployment.
        stage: whose.
        plan: the counts.
        grow: gives the changelog the new count.
        told: hears what is done.

    Raises:
        StateError: nothing was moved, and why.
    """
    parents = range(plan.old)
    async with read_state(settings, stage, parents) as state:
        moving = any(each.moves != STAY for each in state.maps.values())
        for each in state.maps.values():
            if each.moves is None:
                raise StateError(f"map {each.name} doesn't say what happens to its rows when partitions are added")
        left = await behind(settings, stage, state, plan.old) if moving else {}
        if left:
            raise StateError(
                f"{stage.topic} has records that {stage.name} hasn't taken: {left} by partition. Stop its producers, let "
                "the workers take what is there (`headrace_lag_records` 0), stop them, and try again"
            )
        for parent in parents:  # refuses before anything is written
            for _ in parent_rows(state, parent, plan):
                pass
        filled = {p for p in parents if state.database(p).get(UNFINISHED) == plan.filled}
        for parent in set(parents) - filled:
            await _write(settings, stage, parent, iter([(UNFINISHED, b"%d" % plan.old)]))
        await grow(stage.changelog)
        for parent in parents:
            if parent not in filled:
                for child in plan.children(parent):
                    await _write(settings, stage, child, iter([(UNFINISHED, b"%d" % plan.old)]))
                    await _write(settings, stage, child, child_rows(state, parent, child, plan))
                await _write(settings, stage, parent, iter([(UNFINISHED, plan.filled)]))
            await _write(settings, stage, parent, parent_rows(state, parent, plan))
        told(f"{stage.name}: State is divided among {plan.new} partitions")


async def finish(settings: Settings, stage: Stage, plan: Plan) -> None:
    """Lets workers in again: partition 0 last, since it is looked at to find a run that was cut off."""
    for partition in reversed(range(plan.new)):
        await _write(settings, stage, partition, iter([(UNFINISHED, None)]))


async def _write(settings: Settings, stage: Stage, partition: int, rows: Iterator[ChangelogRecord]) -> None:
    async with writer(settings, stage, partition) as producer:
        await write_rows(producer, stage.changelog, partition, rows)
