"""What is written in one transaction: of each key the latest row or its removal, what can't be a row, and how far it goes."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from app.sinks.tables import Table, Unreadable
from models.events import Record

__all__ = ["Batch", "Entry", "Mark", "Move", "Place", "Rejected", "mark_of"]

Place = tuple[str, int]
"""Topic (full name) and partition."""


class Move(NamedTuple):
    """Of a partition's position in the database: from where it must stand to where it stands then."""

    expected: int
    following: int


class Mark(NamedTuple):
    """Of the last record that was written of a partition. Another one at this offset: the topic was made anew."""

    offset: int
    timestamp_ms: int
    crc: int


class Entry(NamedTuple):
    """A row, or a tombstone: `values` is None."""

    table: Table
    key: str
    values: tuple[Any, ...] | None
    record: Record


class Rejected(NamedTuple):
    """A record that is no row. It is kept byte for byte, with the reason."""

    record: Record
    reason: str


@dataclass(slots=True)
class Batch:
    """Grows by `add`.

    Args:
        tables: by the topic's full name.
        at: where each partition's position stands in the database.
    """

    tables: Mapping[str, Table]
    at: Mapping[Place, int]
    moves: dict[Place, Move] = field(default_factory=dict)
    rejected: list[Rejected] = field(default_factory=list)
    size_bytes: int = 0
    records: int = 0
    _last: dict[Place, Record] = field(default_factory=dict)
    _latest: dict[tuple[str, str], Entry] = field(default_factory=dict)

    @property
    def entries(self) -> list[Entry]:
        """One for each key."""
        return list(self._latest.values())

    @property
    def marks(self) -> dict[Place, Mark]:
        """Of partitions that records were taken of."""
        return {place: mark_of(record) for place, record in self._last.items()}

    def add(self, record: Record) -> None:
        """Takes the next record of a partition."""
        place = (record.topic, record.partition)
        self.moves[place] = Move(self.at[place], record.offset + 1)
        self._last[place] = record
        self.records += 1
        self.size_bytes += len(record.value or b"")
        try:
            entry = self._entry(record)
        except Unreadable as error:
            self.rejected.append(Rejected(record, str(error)))
            return
        name = (entry.table.name, entry.key)
        before = self._latest.get(name)
        if before is None or not _older(record, before.record):
            self._latest[name] = entry

    def reach(self, place: Place, following: int) -> None:
        """Passes what lies behind the last record and is none: markers of transactions, and what was aborted or compacted."""
        at = self.at[place]
        if following > (self.moves[place].following if place in self.moves else at):
            self.moves[place] = Move(at, following)

    def _entry(self, record: Record) -> Entry:
        table = self.tables[record.topic]
        if record.value is None:
            if not table.keyed:
                raise Unreadable(f"a tombstone: the key of {table.topic} doesn't say which row it means")
            return Entry(table, _key(record), None, record)
        values = table.row(record.value)
        return Entry(table, table.key_of(values), (*values, record.partition, record.offset, record.timestamp), record)


def mark_of(record: Record) -> Mark:
    return Mark(record.offset, record.timestamp, zlib.crc32(record.value or b""))


def _key(record: Record) -> str:
    try:
        return (record.key or b"").decode()
    except UnicodeDecodeError:
        raise Unreadable("a tombstone whose key isn't UTF-8") from None


def _older(record: Record, than: Record) -> bool:
    """Of one partition the offset decides; a key changes its partition only when partitions are added: then the time."""
    if record.partition == than.partition:
        return record.offset < than.offset
    return record.timestamp < than.timestamp
