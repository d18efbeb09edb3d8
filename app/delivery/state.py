"""State: one table and so one changelog a stage and source, holding named maps.

Reads see the writes of batches still in flight (the overlay of their lane). Writes go through an Outbox. The changelog
is read back in batches; a record that marks the last input offset (`Applied`) comes with every transaction.
"""

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar, cast

import faust
import msgspec
from faust.transport.drivers import aiokafka as _driver  # noqa: F401  # registers the driver before ours
from faust.types import TP

from app.delivery.maps import Map, PackedMap
from app.delivery.store import Database, Store

__all__ = ["APPLIED", "Applied", "BatchSchema", "State", "View", "decode_applied"]

V = TypeVar("V")

APPLIED = b"\x00applied"
"""Key of the marker: where in its input this state stands."""


class Applied(msgspec.Struct, array_like=True, frozen=True):
    """The last input record that a partition's state holds the effects of."""

    offset: int
    timestamp_ms: int
    crc: int
    """zlib.crc32 of its value: another record at this offset means that the input was recreated."""
    incarnation: str
    """Born with the state; local copies of another incarnation are rebuilt."""


_applied = msgspec.msgpack.Decoder(Applied)


def decode_applied(raw: bytes) -> Applied:
    return _applied.decode(raw)


class BatchSchema(faust.Schema[Any, Any]):
    """Hands a list of raw records through Faust as one value."""

    def loads_key(self, app: Any, message: Any, **_: Any) -> None:
        return None

    def loads_value(self, app: Any, message: Any, **_: Any) -> Any:
        return message.value


class State(faust.Table[bytes, bytes]):
    """A table of ours.

    Args:
        app: the Faust app.
        name: `<stage>-<source>`; the changelog is called `<prefix>headrace-<name>-changelog`.
        maps: what it holds.
        changelog: full name of the changelog topic.
    """

    def __init__(self, app: Any, *, name: str, maps: Iterable[Map[Any]], changelog: str, **kwargs: Any) -> None:
        self._changelog_name = changelog
        self.maps = {m.name: m for m in maps}
        self._packed = {m.records: m for m in self.maps.values() if isinstance(m, PackedMap)}
        super().__init__(
            app,
            name=name,
            key_type=bytes,
            value_type=bytes,
            store="headrace://",
            recovery_buffer_size=2,  # a batch is one message here: Faust's 1000 would be gigabytes, 1 never stops
            standby_buffer_size=2,
            **kwargs,
        )

    def _changelog_topic_name(self) -> str:
        return self._changelog_name

    def _new_changelog_topic(self, **kwargs: Any) -> Any:
        topic = super()._new_changelog_topic(**kwargs)
        topic.schema = BatchSchema()
        return topic

    @property
    def store(self) -> Store:
        return cast(Store, self.data)

    def database(self, partition: int) -> Database:
        return self.store.database(partition)

    def apply_changelog_batch(self, batch: Iterable[Any]) -> None:
        """Called by Faust with record batches read back from the changelog."""
        for event in batch:
            tp: TP = event.message.tp
            self.apply(tp.partition, ((r.key, r.value) for r in event.value), event.message.offset)

    def apply(self, partition: int, records: Iterable[tuple[bytes, bytes | None]], changelog_offset: int) -> None:
        """Writes changelog records into the local copy of a partition."""
        database = self.database(partition)
        database.write(self._expand(database, records), changelog_offset)

    def _expand(
        self, database: Database, records: Iterable[tuple[bytes, bytes | None]]
    ) -> Iterator[tuple[bytes, bytes | None]]:
        """Rows of packed records stand by themselves in the local copy."""
        packed_maps = self._packed
        for key, value in records:
            packed = packed_maps.get(key[:1])
            if packed is not None:
                if value is not None:
                    yield from packed.rows_of(value)
                elif (old := database.get(key)) is not None:
                    for row, was in packed.rows_of(old):
                        if database.get(row) == was:
                            yield row, None
            yield key, value

    def applied(self, partition: int) -> Applied | None:
        raw = self.database(partition).get(APPLIED)
        return None if raw is None else _applied.decode(raw)


class View:
    """What an agent reads of one partition's State: the local copy under the writes still in flight."""

    def __init__(self, state: State, partition: int) -> None:
        self._state, self.partition = state, partition
        self._overlays: list[tuple[int, dict[bytes, bytes | None]]] = []
        """Writes of batches in flight by the batch's number, oldest first; few, since batches commit in order."""

    @property
    def _database(self) -> Database:
        return self._state.database(self.partition)

    def get(self, of: Map[V], key: bytes) -> V | None:
        """The value of a key, or None."""
        raw = self.get_raw(of, [key])[0]
        return None if raw is None else of.decode(raw)

    def get_raw(self, of: Map[Any], keys: list[bytes]) -> list[bytes | None]:
        """The encoded values of many keys, in their order; None where there is none."""
        prefix = of.prefix
        rows = [prefix + key for key in keys]
        found = self._database.get_many(rows)
        for _, overlay in self._overlays:
            for index, row in enumerate(rows):
                if row in overlay:
                    found[index] = overlay[row]
        return found

    def scan(self, of: Map[V], start: bytes = b"", limit: int | None = None) -> Iterator[tuple[bytes, V]]:
        """Keys and values from `start` on, in key order."""
        for count, (row, raw) in enumerate(self.scan_rows(of.prefix, of.prefix + start)):
            if limit is not None and count >= limit:
                return
            yield row[len(of.prefix) :], of.decode(raw)

    def scan_rows(self, prefix: bytes, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        overlay: dict[bytes, bytes | None] = {}
        for _, writes in self._overlays:
            overlay.update({k: v for k, v in writes.items() if k >= start and k.startswith(prefix)})
        fresh = sorted(k for k, v in overlay.items() if v is not None)
        position = 0
        for row, raw in self._database.scan(prefix, start):
            while position < len(fresh) and fresh[position] < row:
                yield fresh[position], overlay[fresh[position]] or b""
                position += 1
            if position < len(fresh) and fresh[position] == row:
                position += 1
            if row in overlay:
                value = overlay[row]
                if value is not None:
                    yield row, value
                continue
            yield row, raw
        for row in fresh[position:]:
            yield row, overlay[row] or b""

    def hold(self, local: dict[bytes, bytes | None], batch: int) -> None:
        """Lets reads see the writes of a batch that isn't committed yet, and those it still gets."""
        self._overlays.append((batch, local))

    def release(self, batch: int) -> None:
        """A batch is in the local copy now, or is given up."""
        self._overlays = [held for held in self._overlays if held[0] != batch]

    def forget(self) -> None:
        """Batches in flight were given up."""
        self._overlays.clear()
