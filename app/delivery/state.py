"""State: one table and so one changelog a stage and source, holding named maps.

Reads see the writes of batches still in flight (the overlay of their lane). Writes go through an Outbox. The changelog
is read back by `app.delivery.restore`; a record that marks the last input offset (`Applied`) comes with every
transaction.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias, TypeVar, cast

import faust
import msgspec
from faust.transport.drivers import aiokafka as _driver  # noqa: F401  # registers the driver before ours

from app.delivery.database import Database
from app.delivery.kinds import KINDS, noted
from app.delivery.local_copies import LocalCopies
from app.delivery.maps import Map, PackedMap
from app.delivery.store import Store

__all__ = [
    "APPLIED",
    "UNFINISHED",
    "Applied",
    "BatchSchema",
    "ChangelogRecord",
    "State",
    "StateRows",
    "View",
    "decode_applied",
]

V = TypeVar("V")

ChangelogRecord: TypeAlias = tuple[bytes, bytes | None]
"""Key and value; None is a tombstone."""

LATE = b"\x00late"
"""Before the key of a packed record whose tombstone was met while look-ups were slow (see `State.apply_bulk`)."""
UNFINISHED = b"\x00repartition"
"""There while a repartition is under way; its value is the partition count before."""
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


class StateRows:
    """How the records of a changelog become rows of a local copy. `State` is one; so is what works beside Faust."""

    name: str
    maps: dict[str, Map[Any]]
    _packed: dict[bytes, PackedMap[Any]]

    @property
    @abstractmethod
    def store(self) -> LocalCopies:
        """The local copies."""

    def database(self, partition: int) -> Database:
        return self.store.database(partition)

    def hold_maps(self, maps: Iterable[Map[Any]]) -> None:
        self.maps = {m.name: m for m in maps}
        self._packed = {m.records: m for m in self.maps.values() if isinstance(m, PackedMap)}

    def apply(
        self, partition: int, records: Iterable[ChangelogRecord], changelog_offset: int, before: int | None = None
    ) -> int:
        """Writes changelog records into the local copy of a partition.

        Returns:
            How many rows were set or removed: the rows of packed records stand by themselves in the local copy.
        """
        database = self.database(partition)
        rows: dict[bytes, bytes | None] = {}
        packed_maps = self._packed
        for key, value in records:
            packed = packed_maps.get(key[:1])
            if packed is not None:
                if value is None:
                    self._expire(database, packed, key, rows)
                else:
                    prefix = packed.prefix
                    for row, content in packed.unpack(value):
                        rows[prefix + row] = content
            rows[key] = value
        return database.write(rows.items(), changelog_offset, before)

    @staticmethod
    def _expire(database: Database, packed: PackedMap[Any], record: bytes, rows: dict[bytes, bytes | None]) -> None:
        """Removes those rows of a packed record that it still owns; `rows` are changes that aren't written yet."""
        old = rows[record] if record in rows else database.get(record)
        if old is None:
            return
        owned = list(packed.rows_of(old))
        for (row, was), stored in zip(owned, database.get_many([row for row, _ in owned]), strict=True):
            if rows.get(row, stored) == was:
                rows[row] = None

    def apply_bulk(
        self, partition: int, records: Iterable[ChangelogRecord], changelog_offset: int, before: int | None = None
    ) -> int:
        """The same for very many records into a database that is open for bulk writing.

        What needs a look-up is only noted, and done by `settle`. Returns how many rows were set or removed.
        """
        packed_maps = self._packed

        def expanded() -> Iterator[tuple[bytes, bytes | None]]:
            for key, value in records:
                packed = packed_maps.get(key[:1])
                if packed is not None:
                    if value is None:
                        yield LATE + key, b""
                        continue
                    prefix = packed.prefix
                    for row, content in packed.unpack(value):
                        yield prefix + row, content
                yield key, value

        return self.database(partition).write(expanded(), changelog_offset, before)

    def settle(self, partition: int) -> None:
        """Ends bulk writing: does what was put off, also by a process that didn't come to it."""
        if self.database(partition).bulk:
            self.store.reopen(partition)
        database = self.database(partition)
        reached = database.changelog_offset
        for late, _ in list(database.scan(LATE)):
            record = late[len(LATE) :]
            rows: dict[bytes, bytes | None] = {late: None}
            packed = self._packed.get(record[:1])
            if packed is not None:
                self._expire(database, packed, record, rows)
            rows[record] = None
            database.write(rows.items(), -1 if reached is None else reached)

    def applied(self, partition: int) -> Applied | None:
        raw = self.database(partition).get(APPLIED)
        return None if raw is None else _applied.decode(raw)


class State(StateRows, faust.Table[bytes, bytes]):
    """A table of ours.

    Args:
        app: the Faust app.
        name: `<stage>-<source>`; the changelog is called `<prefix>headrace-<name>-changelog`.
        maps: what it holds.
        changelog: full name of the changelog topic.
    """

    def __init__(self, app: Any, *, name: str, maps: Iterable[Map[Any]], changelog: str, **kwargs: Any) -> None:
        self._changelog_name = changelog
        self.hold_maps(maps)
        faust.Table.__init__(
            self,
            app,
            name=name,
            key_type=bytes,
            value_type=bytes,
            store="headrace://",
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

    def note_kinds(self, lane: Any) -> None:
        """Has a lane write the types of the maps, where they aren't noted yet or a map was added."""
        kinds = noted(self.maps.values())
        if self.database(lane.tp.partition).get(KINDS) == kinds:
            return

        def note(view: View, out: Any) -> None:
            out.changelog[KINDS] = out.local[KINDS] = kinds

        lane.post(note)


class View:
    """What an agent reads of one partition's State: the local copy under the writes still in flight."""

    def __init__(self, state: State, partition: int) -> None:
        self._state, self.partition = state, partition
        self._overlays: list[tuple[int, dict[bytes, bytes | None]]] = []
        """Writes of batches in flight by the batch's number, oldest first; few, since batches commit in order."""
        self.latest: dict[bytes, bytes | None] | None = None
        """The writes of the last batch that was taken over; None after batches were given up. Who keeps something in memory
        beside State sees from it whether State went the same way."""

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
        self.latest = local

    def release(self, batch: int) -> None:
        """A batch is in the local copy now, or is given up."""
        self._overlays = [held for held in self._overlays if held[0] != batch]

    def forget(self) -> None:
        """Batches in flight were given up."""
        self._overlays.clear()
        self.latest = None
