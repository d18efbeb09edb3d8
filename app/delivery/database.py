"""A RocksDB database: the local copy of one partition of a State, opened and closed explicitly.

Takes the place of Faust's own store: that one gives each table and partition a 2 GiB cache, never closes a database, and
writes the changelog offset apart from the changes. Here one block cache and one write-buffer budget serve all
databases of the worker, and the offset is written in the same WriteBatch as the changes it belongs to.
"""

import logging
import time
from collections.abc import Iterable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    MemtableFactory,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteBufferManager,
    WriteOptions,
)

from app.errors import StateDamaged, StateDiskFull, StateError

__all__ = ["COPY_OF", "RESEEDING", "Database", "Writes", "prefix_end", "share_memory"]

log = logging.getLogger("headrace.delivery")

Writes = Iterable[tuple[bytes, bytes | None]]
"""Changes in order; None deletes."""

CHANGELOG_OFFSET = b"\x00changelog-offset"
"""How far the local copy has read its changelog: the offset of the last record or commit marker it holds."""
CHANGELOG_BEFORE = b"\x00changelog-before"
"""CHANGELOG_OFFSET before the last write: the last batch begins behind it."""
WRITTEN_MS = b"\x00written-ms"
"""When the local copy was last written, ms since the epoch."""
COPY_OF = b"\x00copy-of"
"""Which changelog and partition this is a copy of: a folder that was moved here is found by it."""
RESEEDING = b"\x00reseeding"
"""There while the changelog is written anew from this copy: until it is gone the changelog isn't whole."""
DAMAGED = "DAMAGED"
"""A file with this name in the folder says that RocksDB found it damaged: the next open sets it aside."""
DELETION_WINDOW, DELETION_SHARE = 10_000, 0.5
"""A file half of whose keys (of all, or of this many neighbours) are deletions is compacted soon: expired ids leave the
disk without waiting for new ones to push them down."""
MIN_BLOB_BYTES = 4096
"""A packed record of a full batch is 150 KB and is read once, when it expires. Beside the keys it would be written again at
each compaction: at 2,000,000 ids that was a third of the cost of an id."""
LEVELS = 7
"""RocksDB's default."""
UNCOMPRESSED_LEVELS = 2
"""Young files are written again soon, and ids hardly shrink: compressing them takes a third of all CPU of a write."""
BLOOM_BITS = 10
"""1% false positives: nearly every look-up of a new event id ends in memory."""
MEMTABLE_BLOOM_RATIO = 0.02
"""Share of a write buffer for the bloom filter of its keys: some 17 bits an id. It is taken at once, also by a database that
holds next to nothing, and a worker with 24 partitions has more than a hundred."""
ARENA_BLOCK_BYTES = 64 << 10
"""What a write buffer grows by, and begins with; 1 MiB of each database otherwise."""


class _Memory:
    """The block cache and write-buffer budget of this process (RocksDB shares them by reference)."""

    def __init__(self, block_cache_bytes: int, write_buffer_bytes: int) -> None:
        self.cache = Cache(block_cache_bytes)
        self.buffers = WriteBufferManager(write_buffer_bytes, False)
        self.write_buffer_bytes = write_buffer_bytes


_memory: _Memory | None = None


def share_memory(block_cache_bytes: int, write_buffer_bytes: int) -> None:
    """Sets the memory that all databases opened from now on share, in bytes."""
    global _memory  # RocksDB's cache is a thing of the process, not of one table
    _memory = _Memory(block_cache_bytes, write_buffer_bytes)


def _options(*, bulk: bool = False) -> Options:
    if _memory is None:
        share_memory(64 << 20, 64 << 20)
    memory = _memory
    assert memory is not None
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_max_open_files(200)
    options.set_write_buffer_size(max(1 << 20, min(16 << 20, memory.write_buffer_bytes // 2)))
    options.set_write_buffer_manager(memory.buffers)
    options.set_arena_block_size(ARENA_BLOCK_BYTES)
    options.set_keep_log_file_num(2)
    options.set_memtable_whole_key_filtering(True)  # most look-ups are of new ids, and end here too
    options.set_memtable_prefix_bloom_ratio(MEMTABLE_BLOOM_RATIO)
    options.set_compression_per_level(
        [DBCompressionType.none()] * UNCOMPRESSED_LEVELS + [DBCompressionType.lz4()] * (LEVELS - UNCOMPRESSED_LEVELS)
    )
    table = BlockBasedOptions()
    table.set_bloom_filter(BLOOM_BITS, block_based=False)
    table.set_block_cache(memory.cache)
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    options.set_block_based_table_factory(table)
    options.set_enable_blob_files(True)
    options.set_min_blob_size(MIN_BLOB_BYTES)
    options.set_enable_blob_gc(True)
    options.add_compact_on_deletion_collector_factory(DELETION_WINDOW, DELETION_WINDOW // 2, DELETION_SHARE)
    if bulk:
        # Rows are appended and sorted once, when the memtable is flushed; look-ups are slow meanwhile, and not made.
        options.set_memtable_factory(MemtableFactory.vector())
        options.set_allow_concurrent_memtable_write(False)
    return options


class Database:
    """The local copy of one partition of a State.

    Args:
        path: its folder.
        bulk: for writing very much at once, as a restore does: no write-ahead log, and look-ups are slow. A crash
            meanwhile leaves an earlier state, whole and with the offset that belongs to it. Close it and open it anew
            before it is used otherwise.

    Raises:
        StateError: another process has the folder open, or it can't be written.
        StateDamaged: what is in the folder can't be read.
    """

    def __init__(self, path: Path, *, bulk: bool = False) -> None:
        self.path, self.bulk = path, bulk
        path.parent.mkdir(parents=True, exist_ok=True)
        if (path / DAMAGED).exists():
            raise StateDamaged(f"state folder {path} was found damaged")
        try:
            options = _options(bulk=bulk)
            # Named again as the default column family: for a database that exists, rocksdict takes a family that isn't
            # named from its OPTIONS file, and with it the memtable, compression and a cache of its own.
            self._db = Rdict(str(path), options=options, column_families={"default": options})
        except Exception as error:
            raise self._open_error(error) from error
        self._write_options = WriteOptions()
        self._write_options.disable_wal = bulk  # type: ignore[assignment,method-assign]  # the stub calls it a method
        self._closed = False

    def _open_error(self, error: Exception) -> StateError:
        text = str(error)[:200]
        if _tells_damage(text):
            return StateDamaged(f"state folder {self.path} can't be read ({text})")
        if _tells_full(text):
            return self._full()
        return StateError(
            f"state folder {self.path} can't be opened ({text}); is another worker using this data folder? "
            "Give each worker its own (HEADRACE_DATA_DIR)"
        )

    def _failed(self, error: Exception) -> StateError:
        """What a failed read or write means. Damage is noted in the folder, so that the next open sets it aside."""
        text = str(error)[:200]
        if _tells_full(text):
            return self._full()
        if not _tells_damage(text):
            return StateError(f"state folder {self.path}: {text}")
        (self.path / DAMAGED).touch()
        return StateDamaged(f"state folder {self.path} is damaged ({text})")

    def _full(self) -> StateDiskFull:
        return StateDiskFull(f"the disk of state folder {self.path} is full; make room, and work goes on by itself")

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        found: Any = self._db
        try:
            return list(found[keys]) if keys else []
        except Exception as error:
            raise self._failed(error) from error

    def get(self, key: bytes) -> bytes | None:
        try:
            return self._db.get(key)
        except Exception as error:
            raise self._failed(error) from error

    def scan(self, prefix: bytes, start: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Rows whose key begins with `prefix`, from `start` on, in key order."""
        bounds = ReadOptions()
        end = prefix_end(prefix)
        if end:
            bounds.set_iterate_upper_bound(end)
        rows = self._db.iter(bounds)
        rows.seek(start or prefix)
        while rows.valid():
            yield rows.key(), rows.value()
            rows.next()
        try:
            rows.status()  # an iterator that meets damage only ends; it says so here
        except Exception as error:
            raise self._failed(error) from error

    def write(self, writes: Writes, changelog_offset: int, before: int | None = None) -> int:
        """Applies the changes and notes how far the changelog is read, atomically. Returns how many there were.

        Args:
            writes: the changes.
            changelog_offset: of the last record or marker that they hold.
            before: an offset behind which the last marker stands; unset: where the last write ended.
        """
        batch = WriteBatch(raw_mode=True)
        put, delete = batch.put, batch.delete
        # Neighbours in order cost half, and repeats stay in order; a bulk memtable sorts by itself.
        for key, value in writes if self.bulk else sorted(writes, key=itemgetter(0)):
            if value is None:
                delete(key)
            else:
                put(key, value)
        rows = batch.len()
        before = self._reached if before is None else before
        if before is not None:
            put(CHANGELOG_BEFORE, b"%d" % before)
        put(CHANGELOG_OFFSET, b"%d" % changelog_offset)
        put(WRITTEN_MS, b"%d" % int(time.time() * 1000))
        self._commit(batch)
        self._known_offset = changelog_offset
        if before is not None:
            self._known_before = before
        return rows

    def note(self, key: bytes, value: bytes | None) -> None:
        """Sets or removes a row about the copy itself, apart from any changelog offset."""
        batch = WriteBatch(raw_mode=True)
        if value is None:
            batch.delete(key)
        else:
            batch.put(key, value)
        self._commit(batch)

    def _commit(self, batch: WriteBatch) -> None:
        try:
            self._db.write(batch, self._write_options)
        except Exception as error:
            raise self._failed(error) from error

    _known_offset: int | None = None
    _known_before: int | None = None

    @property
    def _reached(self) -> int | None:
        """CHANGELOG_OFFSET, asked from RocksDB once."""
        if self._known_offset is None:
            value = self.get(CHANGELOG_OFFSET)
            self._known_offset = None if value is None else int(value)
        return self._known_offset

    @property
    def changelog_offset(self) -> int | None:
        return self._reached

    @property
    def last_batch_start(self) -> int:
        """A changelog offset from which on the last batch written here can be read."""
        if self._known_before is None:
            self._known_before = int(self.get(CHANGELOG_BEFORE) or -1)
        return self._known_before + 1

    @property
    def written_ms(self) -> int | None:
        value = self.get(WRITTEN_MS)
        return None if value is None else int(value)

    def size_bytes(self) -> int:
        """Bytes on disk and in memory tables, as RocksDB estimates them."""
        total = 0
        for name in ("total-sst-files-size", "total-blob-file-size", "cur-size-all-mem-tables"):
            total += self._db.property_int_value(f"rocksdb.{name}") or 0
        return total

    def keys_estimate(self) -> int:
        """RocksDB's own estimate; cheap, and off by what isn't compacted yet."""
        return self._db.property_int_value("rocksdb.estimate-num-keys") or 0

    def flush(self) -> None:
        """Writes what is in memory to files."""
        try:
            self._db.flush()
        except Exception as error:
            raise self._failed(error) from error

    def close(self) -> None:
        """Closes it. What a bulk load wrote is on disk then."""
        if not self._closed:
            self._closed = True
            try:
                if self.bulk:
                    self.flush()
            finally:
                self._close_files()

    def _close_files(self) -> None:
        """What RocksDB can't write at the end (a disk that was full) is read from the changelog again."""
        try:
            self._db.close()
        except Exception as error:  # noqa: BLE001  # its binding has one exception class for all
            log.warning("state folder %s didn't close cleanly: %s", self.path, str(error)[:200])


def _tells_damage(text: str) -> bool:
    """RocksDB's binding has one exception class for all; the status name in front tells damage from a full disk."""
    return text.startswith(("Corruption", "NotSupported")) or "No such file" in text


def _tells_full(text: str) -> bool:
    return "No space left" in text or "Disk quota exceeded" in text


def prefix_end(prefix: bytes) -> bytes:
    """The first key after all that begin with `prefix`; empty when there is none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else b""
