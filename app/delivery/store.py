"""One RocksDB database per partition of a State, opened and closed explicitly.

Takes the place of Faust's own store: that one gives each table and partition a 2 GiB cache, never closes a database, and
writes the changelog offset apart from the changes. Here one block cache and one write-buffer budget serve all
databases of the worker, and the offset is written in the same WriteBatch as the changes it belongs to.
"""

import shutil
import time
from collections.abc import Iterable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

from faust.stores.base import Store as FaustStore
from faust.types import TP
from rocksdict import (
    BlockBasedOptions,
    Cache,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteBufferManager,
)

from app.errors import StateError

__all__ = ["Database", "Store", "Writes", "share_memory"]

Writes = Iterable[tuple[bytes, bytes | None]]
"""Changes in order; None deletes."""

CHANGELOG_OFFSET = b"\x00changelog-offset"
"""How far the local copy has read its changelog: the offset of the last record or commit marker it holds."""
CHANGELOG_BEFORE = b"\x00changelog-before"
"""CHANGELOG_OFFSET before the last write: the last batch begins behind it."""
WRITTEN_MS = b"\x00written-ms"
"""When the local copy was last written, ms since the epoch."""
BLOOM_BITS = 10
"""1% false positives: nearly every look-up of a new event id ends in memory."""


MEMTABLE_BLOOM_RATIO = 0.1
"""Share of a write buffer for the bloom filter of its keys."""


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


def _options() -> Options:
    if _memory is None:
        share_memory(64 << 20, 64 << 20)
    memory = _memory
    assert memory is not None
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_max_open_files(200)
    options.set_write_buffer_size(max(1 << 20, min(16 << 20, memory.write_buffer_bytes // 2)))
    options.set_write_buffer_manager(memory.buffers)
    options.set_keep_log_file_num(2)
    options.set_memtable_whole_key_filtering(True)  # most look-ups are of new ids, and end here too
    options.set_memtable_prefix_bloom_ratio(MEMTABLE_BLOOM_RATIO)
    table = BlockBasedOptions()
    table.set_bloom_filter(BLOOM_BITS, block_based=False)
    table.set_block_cache(memory.cache)
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    options.set_block_based_table_factory(table)
    return options


class Database:
    """The local copy of one partition of a State.

    Raises:
        StateError: another process has the folder open, or it can't be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._db = Rdict(str(path), options=_options())
        except Exception as error:
            raise StateError(
                f"state folder {path} can't be opened ({str(error)[:200]}); is another worker using this data folder? "
                "Give each worker its own (HEADRACE_DATA_DIR)"
            ) from error
        self._closed = False

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        found: Any = self._db
        return list(found[keys]) if keys else []

    def get(self, key: bytes) -> bytes | None:
        return self._db.get(key)

    def scan(self, prefix: bytes, start: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Rows whose key begins with `prefix`, from `start` on, in key order."""
        bounds = ReadOptions()
        end = prefix_end(prefix)
        if end:
            bounds.set_iterate_upper_bound(end)
        yield from self._db.items(from_key=start or prefix, read_opt=bounds)

    def write(self, writes: Writes, changelog_offset: int) -> None:
        """Applies the changes and notes how far the changelog is read, atomically."""
        batch = WriteBatch(raw_mode=True)
        for key, value in sorted(writes, key=itemgetter(0)):  # neighbours in order cost half; repeats stay in order
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        before = self.get(CHANGELOG_OFFSET)
        if before is not None:
            batch.put(CHANGELOG_BEFORE, before)
        batch.put(CHANGELOG_OFFSET, b"%d" % changelog_offset)
        batch.put(WRITTEN_MS, b"%d" % int(time.time() * 1000))
        self._db.write(batch)

    @property
    def changelog_offset(self) -> int | None:
        value = self.get(CHANGELOG_OFFSET)
        return None if value is None else int(value)

    @property
    def last_batch_start(self) -> int:
        """A changelog offset from which on the last batch written here can be read."""
        return int(self.get(CHANGELOG_BEFORE) or -1) + 1

    @property
    def written_ms(self) -> int | None:
        value = self.get(WRITTEN_MS)
        return None if value is None else int(value)

    def size_bytes(self) -> int:
        """Bytes on disk and in memory tables, as RocksDB estimates them."""
        total = 0
        for name in ("rocksdb.total-sst-files-size", "rocksdb.cur-size-all-mem-tables"):
            total += self._db.property_int_value(name) or 0
        return total

    def keys_estimate(self) -> int:
        """RocksDB's own estimate; cheap, and off by what isn't compacted yet."""
        return self._db.property_int_value("rocksdb.estimate-num-keys") or 0

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._db.close()


def prefix_end(prefix: bytes) -> bytes:
    """The first key after all that begin with `prefix`; empty when there is none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else b""


class Store(FaustStore[bytes, bytes]):
    """What Faust's table machinery asks of a store. Reads and writes go through `Database`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._open: dict[int, Database] = {}

    def database(self, partition: int) -> Database:
        """The open database of a partition; opens it on first use."""
        found = self._open.get(partition)
        if found is None:
            found = self._open[partition] = Database(self.folder(partition))
        return found

    def folder(self, partition: int) -> Path:
        return Path(self.app.conf.tabledir) / f"{self.table_name}-{partition}.db"

    @property
    def partitions(self) -> list[int]:
        return sorted(self._open)

    def reopen(self, partition: int) -> None:
        """Closes a partition's database; the next use opens it afresh."""
        opened = self._open.pop(partition, None)
        if opened:
            opened.close()

    def discard(self, partition: int) -> None:
        """Removes the local copy of a partition: it is rebuilt from the changelog."""
        opened = self._open.pop(partition, None)
        if opened:
            opened.close()
        shutil.rmtree(self.folder(partition), ignore_errors=True)

    def persisted_offset(self, tp: TP) -> int | None:
        return self.database(tp.partition).changelog_offset

    def set_persisted_offset(self, tp: TP, offset: int) -> None:
        """Nothing to do: `Database.write` notes the offset with the changes."""

    async def need_active_standby_for(self, tp: TP) -> bool:
        return True

    async def on_rebalance(
        self, assigned: set[TP], revoked: set[TP], newly_assigned: set[TP], generation_id: int = 0
    ) -> None:
        mine = set(self.table.changelog_topic.topics)
        for tp in revoked:
            if tp.topic in mine and tp not in assigned and (opened := self._open.pop(tp.partition, None)):
                opened.close()

    async def stop(self) -> None:
        self.close()
        await super().stop()

    def close(self) -> None:
        for opened in self._open.values():
            opened.close()
        self._open.clear()

    # Parts of Faust's store interface that nothing of ours calls: a caller learns what serves instead.
    async def backup_partition(self, tp: TP | int, flush: bool = True, purge: bool = False, keep: int = 1) -> None:
        raise NotImplementedError("the changelog is the backup")

    def restore_backup(self, tp: TP | int, latest: bool = True, backup_id: int = 0) -> None:
        raise NotImplementedError("the changelog is the backup")

    def reset_state(self) -> None:
        for partition in list(self._open):
            self.discard(partition)

    def apply_changelog_batch(self, batch: Iterable[Any], to_key: Any, to_value: Any) -> None:
        raise NotImplementedError("State applies changelog batches itself")

    # Faust's tables are mappings; State isn't read that way, and says so rather than answering half-truths.
    def __getitem__(self, key: bytes) -> bytes:
        raise KeyError(key)

    def __setitem__(self, key: bytes, value: bytes) -> None:
        raise TypeError("write through an Outbox")

    def __delitem__(self, key: bytes) -> None:
        raise TypeError("write through an Outbox")

    def __iter__(self) -> Iterator[bytes]:
        return iter(())

    def __len__(self) -> int:
        return 0
