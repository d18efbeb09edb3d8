"""Named, typed maps inside a State. Each has a prefix of one byte; rows and changelog keys begin with it."""

import struct
from collections.abc import Callable, Iterator
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import msgspec

__all__ = ["COPY", "STAY", "Counted", "Map", "Moves", "PackedMap"]

V = TypeVar("V")

STAY: Literal["stay"] = "stay"
"""Rows stay in their partition when others are added: whoever has the partition finishes them."""
COPY: Literal["copy"] = "copy"
"""Every partition that took over a part of the keys gets all rows: their keys don't tell where they belong."""
Moves: TypeAlias = Literal["stay", "copy"] | Callable[[bytes], bytes] | None
"""What happens to the rows when the input gets more partitions. A function makes the Kafka key of a row's key: the row
follows the records with that key. None: nobody has said, and `headrace tables repartition` refuses."""

SERIES_SHIFT = 56
"""Offsets are below; the bits above tell records that came from another partition apart."""
_RECORD = struct.Struct(">IQ")  # time bucket, unique number: sorts by age
Counted: TypeAlias = Callable[["Map[Any]", bytes], int]
"""How many rows of a map, whose keys begin with some bytes, a partition has after a move."""


class Map(Generic[V]):
    """A map whose every change is one changelog record.

    Args:
        name: shown by `headrace tables`.
        prefix: one byte from 0x01 up, unlike any other map's of the same State.
        kind: type of the values; stored as msgpack (`bytes` as they are).
        moves: what happens to its rows when the input gets more partitions.
        moved: what a value becomes in the partition it is moved or copied to; unset: it stays as it is.
        left: what the value of a copied row becomes in the partition it was copied from.
    """

    def __init__(
        self,
        name: str,
        prefix: bytes,
        kind: type[V],
        help: str = "",
        moves: Moves = None,
        moved: Callable[[V, Counted], V] | None = None,
        left: Callable[[V, Counted], V] | None = None,
    ) -> None:
        self.name, self.prefix, self.help = name, prefix, help
        self.kind, self.moves, self.moved, self.left = kind, moves, moved, left
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(kind)

    def row(self, key: bytes) -> bytes:
        return self.prefix + key

    def encode(self, value: V) -> bytes:
        return msgspec.msgpack.encode(value)

    def decode(self, raw: bytes) -> V:
        return self._decoder.decode(raw)  # type: ignore[no-any-return]


class PackedMap(Map[V]):
    """A map of many small rows that expire by age: one changelog record a batch holds all rows of that batch.

    Locally each row stands by itself (for look-ups) beside the record (for expiry, which tombstones the record and
    removes its rows). Ids cost a tenth of what a record each would.

    Args:
        records: prefix of the records, one byte.
        bucket_s: rows expire together within this many seconds.
    """

    def __init__(
        self,
        name: str,
        prefix: bytes,
        records: bytes,
        kind: type[V],
        bucket_s: int = 600,
        help: str = "",
        moves: Literal["stay", "copy"] | None = None,
    ) -> None:
        super().__init__(name, prefix, kind, help, moves)
        self.records = records
        self.bucket_s = bucket_s
        self._rows = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]])

    def record(self, at_ms: int, unique: int) -> bytes:
        return self.records + _RECORD.pack(at_ms // 1000 // self.bucket_s, unique)

    def renumbered(self, record: bytes, series: int) -> bytes:
        """A record's key under a number that no batch of another partition uses; one that has such a number keeps it.

        Args:
            record: the key.
            series: 1 to 127; another one each time that rows are copied.
        """
        bucket, unique = _RECORD.unpack(record[1:])
        return (
            record if unique >> SERIES_SHIFT else self.records + _RECORD.pack(bucket, series << SERIES_SHIFT | unique)
        )

    def bucket(self, record: bytes) -> int:
        """The time bucket of a record's key."""
        return int(_RECORD.unpack(record[1:])[0])

    def record_of(self, bucket: int, unique: int, series: int) -> bytes:
        """The key of a record that no batch of this worker made."""
        return self.records + _RECORD.pack(bucket, series << SERIES_SHIFT | unique)

    def age_limit(self, before_ms: int) -> bytes:
        """The first record key whose bucket isn't wholly older than a time."""
        return self.records + _RECORD.pack(max(0, before_ms // 1000 // self.bucket_s), 0)

    def unpack(self, packed: bytes) -> list[tuple[bytes, bytes]]:
        return self._rows.decode(packed)

    @staticmethod
    def count(packed: bytes) -> int:
        """How many rows a packed record holds: the length in front of a msgpack array."""
        width = {0xDC: 2, 0xDD: 4}.get(packed[0], 0)
        return int.from_bytes(packed[1 : 1 + width], "big") if width else packed[0] & 0x0F

    def rows_of(self, packed: bytes) -> Iterator[tuple[bytes, bytes]]:
        for key, value in self.unpack(packed):
            yield self.prefix + key, value
