"""Writes a changelog that was lost anew, from a local copy that matches the input."""

import logging
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
from aiokafka.structs import TopicPartition

from app.delivery.changelog import Copy, in_thread
from app.delivery.database import RESEEDING
from app.delivery.kinds import KINDS
from app.delivery.maps import PackedMap
from app.delivery.outbox import Row
from app.delivery.probe import log_of, probe, read_tail
from app.delivery.state import APPLIED, ChangelogRecord, StateRows
from app.delivery.transaction import NO_HEADERS, acknowledged, in_transaction, marker_behind, send_rows

if TYPE_CHECKING:
    from app.delivery.lane import Lane
    from app.delivery.runtime import Delivery

__all__ = ["changelog_rows", "matches_input", "reseed", "write_rows"]

log = logging.getLogger("headrace.delivery")

TRANSACTION_BYTES = 4 << 20
"""Rows are written in transactions of about this size: each is in memory as a whole."""


async def matches_input(delivery: "Delivery", lane: "Lane") -> bool:
    """Whether a local copy is of the input that this group works on: its marker is the record at that place.

    Where retention or compaction has taken that record, the group's committed offset has to say the same as the marker. A
    copy that the group has gone past was left behind when the partition moved: written anew from it, State would go back.
    """
    applied, committed = lane.stage.state.applied(lane.tp.partition), await delivery.committed(lane.tp)
    if applied is None:
        return not committed  # nothing was read yet, so nothing can be wrong
    if committed is not None and committed > applied.offset + 1:
        return False
    found = await log_of(delivery.settings.kafka, lane.tp, applied, committed, lane.stage.start)
    if found.at_marker is not None:
        return found.at_marker == (applied.timestamp_ms, applied.crc)
    if found.lacks(applied.offset) and not found.compacted:
        return False
    return bool(committed == applied.offset + 1)


def changelog_rows(state: StateRows, partition: int) -> Iterator[tuple[bytes, bytes]]:
    """What the changelog of a partition has to hold: its rows as they are written there, the marker last."""
    database = state.database(partition)
    for each in state.maps.values():
        yield from database.scan(each.records if isinstance(each, PackedMap) else each.prefix)
    for key in (KINDS, APPLIED):
        value = database.get(key)
        if value is not None:
            yield key, value


async def write_rows(producer: Any, topic: str, partition: int, rows: Iterator[ChangelogRecord]) -> int:
    """Writes changelog rows in transactions of bounded size; returns the offset behind which all of it stands."""
    reached = -1
    while chunk := _chunk(rows):
        async with in_transaction(producer, [topic]):
            sent, count = await send_rows(producer, topic, partition, chunk)
            await acknowledged(producer, sent)
        reached = marker_behind(sent, count)
    return reached


def _chunk(rows: Iterator[ChangelogRecord]) -> list[Row]:
    """The rows of one transaction; none at the end."""
    chunk: list[Row] = []
    size = 0
    for key, value in rows:
        chunk.append((key, value, NO_HEADERS))
        size += len(key) + len(value or b"")
        if size >= TRANSACTION_BYTES:
            break
    return chunk


async def reseed(delivery: "Delivery", lane: "Lane", copy: Copy) -> None:
    """Fills the changelog from the local copy. A crash on the way is found by a note in the copy, and begun again.

    It gets another incarnation: copies that others hold of the old changelog stand at offsets that mean nothing here, and
    are rebuilt.
    """
    state, partition = copy.state, copy.partition
    log.warning(
        "%s, partition %d ends at %d, before what the local copy holds; the copy matches the input: the changelog is "
        "written anew from it",
        copy.tp.topic,
        partition,
        copy.end,
    )
    database = state.database(partition)
    database.note(RESEEDING, b"1")
    stale = await _stale_keys(delivery, copy)
    applied = state.applied(partition)
    marker = (
        None
        if applied is None
        else msgspec.msgpack.encode(msgspec.structs.replace(applied, incarnation=uuid.uuid4().hex))
    )

    def rows() -> Iterator[ChangelogRecord]:
        for key in stale:
            yield key, None
        for key, value in changelog_rows(state, partition):
            yield key, (marker if key == APPLIED else value)

    if lane.producer is None:
        await lane.open()
    end = await write_rows(lane.producer, copy.tp.topic, partition, rows())
    notes: list[ChangelogRecord] = [(RESEEDING, None), *([(APPLIED, marker)] if marker is not None else [])]
    await in_thread(database.write, notes, end)
    copy.end = end + 1
    log.warning("%s, partition %d is whole again, up to offset %d", copy.tp.topic, partition, end)


async def _stale_keys(delivery: "Delivery", copy: Copy) -> list[bytes]:
    """Keys that stand in what is left of the changelog and were deleted locally: they get tombstones."""
    if copy.start >= copy.end:
        return []
    tp, found = TopicPartition(copy.tp.topic, copy.partition), set()
    database = copy.state.database(copy.partition)
    async with probe(delivery.settings.kafka) as consumer:
        async for record in read_tail(consumer, tp, copy.start, copy.end):
            if record.value is not None and record.key and database.get(record.key) is None:
                found.add(record.key)
    return sorted(found)
