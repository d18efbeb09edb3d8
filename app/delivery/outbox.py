"""What an agent wants done for a batch: outputs to send and State to change. It does none of it by itself."""

import time
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeVar

import msgspec

from app.delivery.maps import Map, PackedMap
from models.events import Headers

__all__ = ["Outbox", "Send", "send_of"]

V = TypeVar("V")

RECORD_OVERHEAD_BYTES = 100
"""Room for the record's own framing (varints, batch header) when its size is compared with a topic's limit."""


class Send(NamedTuple):
    """One record to write. `partition` None: Kafka's murmur2 of the key, so that any producer co-partitions."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    partition: int | None
    size_bytes: int
    """As it counts against a topic's limit: key, value, headers and framing."""


def send_of(
    topic: str, key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]], partition: int | None
) -> Send:
    """Makes a Send with its size."""
    size = RECORD_OVERHEAD_BYTES + (len(key) if key else 0) + (len(value) if value else 0)
    for name, content in headers:
        size += len(name) + 8 + (len(content) if content else 0)
    return Send(topic, key, value, headers, partition, size)


class Outbox:
    """Collects the outputs and State changes of one batch. They take effect together, or not at all."""

    __slots__ = ("changelog", "counts", "latencies", "local", "now_ms", "sends")

    def __init__(self, now_ms: int | None = None) -> None:
        self.now_ms = int(time.time() * 1000) if now_ms is None else now_ms
        """The time of this batch, ms since the epoch; agents take it from here, so that tests can set it."""
        self.sends: list[Send] = []
        self.changelog: dict[bytes, bytes | None] = {}
        self.local: dict[bytes, bytes | None] = {}
        self.counts: dict[tuple[str, str], int] = {}
        """(outcome, detail) -> how many events; becomes metrics when the batch takes effect."""
        self.latencies: list[tuple[str, float]] = []
        """Tier and seconds from the raw record's append, of each result; likewise."""

    def count(self, outcome: str, detail: str = "", n: int = 1) -> None:
        """Notes what became of an event."""
        key = (outcome, detail)
        self.counts[key] = self.counts.get(key, 0) + n

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers = (),
        partition: int | None = None,
    ) -> None:
        """Adds a record to write."""
        self.sends.append(send_of(topic, key, value, list(headers), partition))

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
        for key, value in rows:
            self.local[prefix + key] = value

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
        self.sends.extend(other.sends)
        self.changelog.update(other.changelog)
        self.local.update(other.local)
        self.latencies.extend(other.latencies)
        for key, n in other.counts.items():
            self.count(*key, n)

    @property
    def size_bytes(self) -> int:
        return sum(send.size_bytes for send in self.sends) + sum(
            len(key) + len(value or b"") for key, value in self.changelog.items()
        )

    def __bool__(self) -> bool:
        return bool(self.sends or self.changelog)
