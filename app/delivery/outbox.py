"""What an agent wants done for a batch: outputs to send and State to change. It does none of it by itself."""

import time
from collections.abc import Iterable
from typing import Any, TypeAlias, TypeVar

import msgspec

from app.delivery.maps import Map, PackedMap
from models.events import Headers

__all__ = ["LARGE_BYTES", "Outbox", "Row", "size_of"]

V = TypeVar("V")

Row: TypeAlias = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]
"""A record to write: key, value, headers."""

RECORD_OVERHEAD_BYTES = 100
"""Room for the record's own framing (varints, batch header) when its size is compared with a topic's limit."""
LARGE_BYTES = 64 << 10
"""Below this a record fits every topic, so nobody has to look."""


def size_of(row: Row) -> int:
    """Bytes of a record as they count against a topic's limit: key, value, headers and framing."""
    key, value, headers = row
    size = RECORD_OVERHEAD_BYTES + (len(key) if key else 0) + (len(value) if value else 0)
    for name, content in headers:
        size += len(name) + 8 + (len(content) if content else 0)
    return size


LONG_TEXT_CHARS = 2000
"""More of a text isn't counted: about what a prompt would show of it."""


class Outbox:
    """Collects the outputs and State changes of one batch. They take effect together, or not at all."""

    __slots__ = ("changelog", "counts", "decided", "large", "latencies", "local", "now_ms", "sends")

    def __init__(self, now_ms: int | None = None) -> None:
        self.now_ms = int(time.time() * 1000) if now_ms is None else now_ms
        """The time of this batch, ms since the epoch; agents take it from here, so that tests can set it."""
        self.sends: dict[tuple[str, int | None], list[Row]] = {}
        """Records by topic and partition, each list in order. Partition None: Kafka's murmur2 of the key, so that any
        producer co-partitions."""
        self.large = False
        """Some record may be too large for its topic."""
        self.changelog: dict[bytes, bytes | None] = {}
        self.local: dict[bytes, bytes | None] = {}
        self.counts: dict[tuple[str, str], int] = {}
        """(outcome, detail) -> how many events; becomes metrics when the batch takes effect."""
        self.latencies: dict[str, list[float]] = {}
        """Seconds from the raw record's append to the result, by tier; likewise."""
        self.decided: dict[tuple[str, str], list[int]] = {}
        """(task, tier) -> how many events have their outcome, and the characters of their texts; likewise."""

    def count(self, outcome: str, detail: str = "", n: int = 1) -> None:
        """Notes what became of an event."""
        key = (outcome, detail)
        self.counts[key] = self.counts.get(key, 0) + n

    def decide(self, task: str, tier: str, text: str) -> None:
        """Notes that an event has its outcome."""
        tally = self.decided.get((task, tier))
        if tally is None:
            tally = self.decided[task, tier] = [0, 0]
        tally[0] += 1
        tally[1] += min(len(text), LONG_TEXT_CHARS)

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers = (),
        partition: int | None = None,
    ) -> None:
        """Adds a record to write."""
        row: Row = (key, value, list(headers))
        self.rows(topic, partition).append(row)
        if size_of(row) > LARGE_BYTES:
            self.large = True

    def rows(self, topic: str, partition: int | None = None) -> list[Row]:
        """The records for a topic so far, to append to. Only for records certain to be below LARGE_BYTES."""
        rows = self.sends.get((topic, partition))
        if rows is None:
            rows = self.sends[topic, partition] = []
        return rows

    def put(self, into: Map[V], key: bytes, value: V) -> None:
        """Sets a key of a map."""
        row = into.row(key)
        self.changelog[row] = self.local[row] = into.encode(value)

    def delete(self, out_of: Map[V], key: bytes) -> None:
        """Removes a key of a map, with a tombstone in the changelog."""
        row = out_of.row(key)
        self.changelog[row] = self.local[row] = None

    def put_packed(self, into: PackedMap[Any], at_ms: int, unique: int, rows: list[tuple[bytes, bytes]]) -> None:
        """Sets many keys of a packed map with one changelog record.

        Args:
            into: the map.
            at_ms: the time that decides when they expire.
            unique: a number that no other batch of this partition uses (its input offset).
            rows: keys and encoded values.
        """
        record = into.record(at_ms, unique)
        packed = msgspec.msgpack.encode(rows)
        self.changelog[record] = self.local[record] = packed
        prefix = into.prefix
        self.local.update({prefix + key: value for key, value in rows})

    def expire_packed(
        self, out_of: PackedMap[Any], record: bytes, packed: bytes, found: Iterable[bytes | None]
    ) -> None:
        """Removes one packed record and those of its rows that it still owns.

        Args:
            out_of: the map.
            record: the record's key.
            packed: its value.
            found: the rows as they stand now, in the record's order.
        """
        self.changelog[record] = self.local[record] = None
        for (key, value), now in zip(out_of.unpack(packed), found, strict=True):
            if now == value:
                self.local[out_of.prefix + key] = None

    def merge(self, other: "Outbox") -> None:
        """Takes over what another outbox holds, after what is here."""
        for (topic, partition), rows in other.sends.items():
            self.rows(topic, partition).extend(rows)
        self.large = self.large or other.large
        self.changelog.update(other.changelog)
        self.local.update(other.local)
        for tier, seconds in other.latencies.items():
            self.latencies.setdefault(tier, []).extend(seconds)
        for key, n in other.counts.items():
            self.count(*key, n)
        for key, (events, chars) in other.decided.items():
            tally = self.decided.setdefault(key, [0, 0])
            tally[0] += events
            tally[1] += chars

    @property
    def size_bytes(self) -> int:
        """Bytes it holds in memory, about: headers are small beside keys and values."""
        size = 0
        for rows in self.sends.values():
            size += sum([len(value) for _, value, _ in rows if value]) + 2 * RECORD_OVERHEAD_BYTES * len(rows)
        return size + sum([len(key) + len(value or b"") for key, value in self.changelog.items()])

    def __bool__(self) -> bool:
        return bool(self.sends or self.changelog)
