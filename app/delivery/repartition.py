"""Divides State when the inputs get more partitions, while all workers are stopped.

With `hash % count` a key of partition p goes to one of the partitions q with `q % old == p` when the count becomes a
multiple of the old one; each of these children has this one parent. What is written is written by putting only, in
transactions, and removed from the parent last: a run that was cut off is simply run again. A note in every partition
keeps workers out until it is done.
"""

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import msgspec
from aiokafka.structs import TopicPartition

from app.delivery.kinds import KINDS
from app.delivery.maps import COPY, STAY, PackedMap
from app.delivery.offline import OfflineState, read_state, writer
from app.delivery.partitions import partition_for
from app.delivery.probe import probe, read_tail
from app.delivery.reseed import write_rows
from app.delivery.stage import Stage
from app.delivery.state import APPLIED, UNFINISHED, Applied
from app.errors import StateError
from app.settings import Settings

__all__ = ["Partitioner", "Plan", "behind", "child_rows", "divide", "finish", "gone_rows", "place", "unfinished"]

Row = tuple[bytes, bytes | None]
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

    def children(self, parent: int) -> list[int]:
        return list(range(parent + self.old, self.new, self.old))


def place(key: bytes, count: int, partitioner: Partitioner) -> int:
    """The partition of a key, as the producers of the input choose it."""
    return partition_for(key, count) if partitioner == "murmur2" else zlib.crc32(key) % count


def child_rows(state: OfflineState, parent: int, child: int, plan: Plan) -> Iterator[Row]:
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
            if each.moves == COPY or _target(each.name, each.moves, row, parent, plan) == child:
                yield row, value
    kinds, applied = database.get(KINDS), state.applied(parent)
    if kinds is not None:
        yield KINDS, kinds
    if applied is not None:
        # Stands before the first record: a source's `start` says where a new State begins, and this one isn't new.
        first = Applied(-1, 0, 0, f"{applied.incarnation}/{plan.new}/{child}")
        yield APPLIED, msgspec.msgpack.encode(first)


def gone_rows(state: OfflineState, parent: int, plan: Plan) -> Iterator[Row]:
    """What the parent hasn't any more: rows that follow their key to a child."""
    for each in state.maps.values():
        if callable(each.moves):
            for row, _ in state.database(parent).scan(each.prefix):
                if _target(each.name, each.moves, row, parent, plan) != parent:
                    yield row, None


def _target(name: str, moves: object, row: bytes, parent: int, plan: Plan) -> int:
    if not callable(moves):
        raise StateError(f"map {name} doesn't say what happens to its rows when partitions are added")
    target = place(moves(row[1:]), plan.new, plan.partitioner)
    if target % plan.old != parent:
        raise StateError(
            f"map {name} has a row in partition {parent} whose key belongs to {target % plan.old} of {plan.old}: the "
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
                found = None if record.value is None else int(record.value)
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
            async for _ in read_tail(consumer, tp, at, ends[tp]):
                count += 1
            if count:
                left[tp.partition] = count
    return left


async def divide(
    settings: Settings, stage: Stage, plan: Plan, grow: Callable[[str], object], told: Callable[[str], None]
) -> None:
    """Divides one stage's State. Its input is not touched.

    Args:
        settings: of this deployment.
        stage: whose.
        plan: the counts.
        grow: makes the changelog have the new count; awaited when it is a coroutine.
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
            for _ in gone_rows(state, parent, plan):
                pass
        for parent in parents:
            await _write(settings, stage, parent, iter([(UNFINISHED, b"%d" % plan.old)]))
        await grow(stage.changelog)  # type: ignore[misc]  # a coroutine of the caller
        for parent in parents:
            for child in plan.children(parent):
                await _write(settings, stage, child, iter([(UNFINISHED, b"%d" % plan.old)]))
                await _write(settings, stage, child, child_rows(state, parent, child, plan))
        told(f"{stage.name}: {plan.new - plan.old} new partitions are filled")
        for parent in parents:
            await _write(settings, stage, parent, gone_rows(state, parent, plan))


async def finish(settings: Settings, stage: Stage, plan: Plan) -> None:
    """Lets workers in again: partition 0 last, since it is looked at to find a run that was cut off."""
    for partition in reversed(range(plan.new)):
        await _write(settings, stage, partition, iter([(UNFINISHED, None)]))


async def _write(settings: Settings, stage: Stage, partition: int, rows: Iterator[Row]) -> None:
    async with writer(settings, stage, partition) as producer:
        await write_rows(producer, stage.changelog, partition, rows)
