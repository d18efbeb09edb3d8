"""Local copies: damage, folders set aside, bulk writing (app.delivery.store)."""

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.delivery.database import COPY_OF, Database
from app.delivery.store import Store
from app.errors import StateDamaged, StateDiskFull, StateError
from tests.helpers.disk import NoDisk, fill, mount, unmount
from tests.helpers.processes import wait_until


def filled(path: Path) -> None:
    database = Database(path)
    for number in range(20):
        database.write([(b"k%d-%d" % (number, row), os.urandom(100)) for row in range(1000)], number)
    database.flush()
    database.close()


def spoil(path: Path) -> None:
    """Turns bits in the first half of the largest data file."""
    file = max(path.glob("*.sst"), key=lambda f: f.stat().st_size)
    content = bytearray(file.read_bytes())
    for place in range(500, len(content) // 2, 400):
        content[place] ^= 0xFF
    file.write_bytes(content)


@pytest.fixture
def store(tmp_path: Path) -> Any:
    topic = SimpleNamespace(get_topic_name=lambda: "s-changelog", topics=["s-changelog"])
    table = SimpleNamespace(name="s", changelog_topic=topic)
    made = Store.__new__(Store)
    made._open, made.table_name, made.table = {}, "s", table
    made.app = SimpleNamespace(conf=SimpleNamespace(tabledir=tmp_path))
    yield made
    made.close()


@pytest.mark.parametrize("harm", ["manifest", "cut", "gone", "current"])
def test_a_folder_that_rocksdb_can_not_open_is_damaged(tmp_path: Path, harm: str) -> None:
    folder = tmp_path / "0.db"
    filled(folder)
    data, manifest = next(folder.glob("*.sst")), next(folder.glob("MANIFEST*"))
    if harm == "manifest":
        manifest.write_bytes(os.urandom(300))
    elif harm == "cut":
        data.write_bytes(data.read_bytes()[:1000])
    elif harm == "gone":
        data.unlink()
    else:
        (folder / "CURRENT").write_bytes(b"?")
    with pytest.raises(StateDamaged, match=str(folder)):
        Database(folder)


def test_a_locked_folder_is_not_damaged(tmp_path: Path) -> None:
    holder = Database(tmp_path / "0.db")
    with pytest.raises(StateError) as caught:
        Database(tmp_path / "0.db")
    holder.close()
    assert not isinstance(caught.value, StateDamaged)


@pytest.mark.parametrize("read", ["get", "scan"])
def test_bits_that_turned_are_found_at_the_read_and_remembered(tmp_path: Path, read: str) -> None:
    folder = tmp_path / "0.db"
    filled(folder)
    spoil(folder)
    database = Database(folder)
    keys = [b"k%d-%d" % (n, row) for n in range(20) for row in range(0, 1000, 10)]
    with pytest.raises(StateDamaged):
        list(database.scan(b"k") if read == "scan" else database.get_many(keys))
    database.close()
    with pytest.raises(StateDamaged, match="was found damaged"):
        Database(folder)


def test_a_damaged_folder_is_set_aside_by_name_and_begun_anew(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    filled(store.folder(0))
    next(store.folder(0).glob("MANIFEST*")).write_bytes(b"?")
    assert store.database(0).changelog_offset is None
    (aside,) = store.folder(0).parent.glob("*.aside-*")
    assert str(aside) in caplog.text
    assert list(aside.glob("*.sst"))


def test_only_the_newest_two_folders_set_aside_are_kept(store: Store) -> None:
    for number in range(4):
        store.database(0).write([(b"n", b"%d" % number)], number)
        store.set_aside(0, "test")
    kept = sorted(store.folder(0).parent.glob("*.aside-*"))
    values = []
    for folder in kept:
        database = Database(folder)
        values.append(database.get(b"n"))
        database.close()
    assert values == [b"2", b"3"]


def test_a_new_copy_says_what_it_is_a_copy_of(store: Store) -> None:
    assert store.database(3).get(COPY_OF) == b"s-changelog/3"


def test_rows_that_are_removed_leave_the_disk(store: Store) -> None:
    database = store.database(0)
    keys = [[b"s" + os.urandom(16) for _ in range(2000)] for _ in range(100)]
    for number, part in enumerate(keys):
        database.write([*[(key, b"v" * 40) for key in part], (b"S%d" % number, os.urandom(100_000))], number)
    database.flush()
    full = database.size_bytes()
    for number, part in enumerate(keys):
        database.write([*[(key, None) for key in part], (b"S%d" % number, None)], 100 + number)
    database.flush()
    wait_until(lambda: database.size_bytes() < full / 20, 90, "the files shrink")


def test_what_was_written_in_bulk_is_there_after_a_normal_open(store: Store) -> None:
    store.reopen(0, bulk=True)
    store.database(0).write([(b"k%d" % n, b"v") for n in range(5000)], 7)
    store.reopen(0)
    database = store.database(0)
    assert (database.changelog_offset, database.bulk) == (7, False)
    assert sum(1 for _ in database.scan(b"k")) == 5000


def test_a_database_that_exists_is_opened_with_our_options(store: Store) -> None:
    """For a family that isn't named rocksdict takes the options of its file: the memtable stayed the bulk one."""
    for bulk, memtable in ((False, "SkipList"), (True, "VectorRep"), (False, "SkipList")):
        store.reopen(0, bulk=bulk)
        store.database(0)
        newest = max(store.folder(0).glob("OPTIONS-*"))
        assert f"memtable_factory={memtable}" in newest.read_text().replace("{id=", "")


def test_a_database_that_holds_next_to_nothing_takes_next_to_no_write_buffer(tmp_path: Path) -> None:
    database = Database(tmp_path / "0.db")
    database.write([(b"key", b"value")], 1)
    assert 0 < database.size_bytes() < 500_000  # a worker with 24 partitions has 120 of them, and 64 MiB for all
    database.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    try:
        mount(folder, 64)
    except NoDisk as reason:
        pytest.skip(str(reason))
    yield folder
    unmount(folder)


def test_full_disk_is_said_and_the_same_copy_is_written_when_there_is_room(small_disk: Path) -> None:
    database = Database(small_disk / "0.db")
    database.write([(b"before", b"1")], 1)
    filler = fill(small_disk)

    def write_on() -> None:
        for number in range(2, 400):  # what RocksDB had set aside for its log is used up first
            database.write([(b"k%d" % number, os.urandom(200_000))], number)
            database.flush()

    with pytest.raises(StateDiskFull, match="is full; make room") as raised:
        write_on()
    assert raised.value.retryable
    with pytest.raises(StateDiskFull):
        Database(small_disk / "1.db")
    filler.unlink()
    database.close()
    again = Database(small_disk / "0.db")
    again.write([(b"after", b"2")], 500)
    assert (again.get(b"before"), again.get(b"after"), again.changelog_offset) == (b"1", b"2", 500)
    again.close()
