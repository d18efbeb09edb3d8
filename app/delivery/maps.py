"""Named, typed maps inside a State. Each has a prefix of one byte; rows and changelog keys begin with it."""

import struct
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import msgspec

__all__ = ["Map", "PackedMap"]

V = TypeVar("V")

_RECORD = struct.Struct(">IQ")  # time bucket, unique number: sorts by age


class Map(Generic[V]):
    """A map whose every change is one changelog record.

    Args:
        name: shown by `headrace tables`.
        prefix: one byte from 0x01 up, unlike any other map's of the same State.
        kind: type of the values; stored as msgpack (`bytes` as they are).
    """

    def __init__(self, name: str, prefix: bytes, kind: type[V], help: str = "") -> None:
        self.name, self.prefix, self.help = name, prefix, help
        self.kind = kind
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
        self, name: str, prefix: bytes, records: bytes, kind: type[V], bucket_s: int = 600, help: str = ""
    ) -> None:
        super().__init__(name, prefix, kind, help)
        self.records = records
        self.bucket_s = bucket_s
        self._rows = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]])

    def record(self, at_ms: int, unique: int) -> bytes:
        return self.records + _RECORD.pack(at_ms // 1000 // self.bucket_s, unique)

    def age_limit(self, before_ms: int) -> bytes:
        """The first record key whose bucket isn't wholly older than a time."""
        return self.records + _RECORD.pack(max(0, before_ms // 1000 // self.bucket_s), 0)

    def unpack(self, packed: bytes) -> list[tuple[bytes, bytes]]:
        return self._rows.decode(packed)

    def rows_of(self, packed: bytes) -> Iterator[tuple[bytes, bytes]]:
        for key, value in self.unpack(packed):
            yield self.prefix + key, value
