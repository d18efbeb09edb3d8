"""Maps, outbox, overlay and the local copy (app.delivery)."""

from pathlib import Path
from typing import Any, ClassVar

import pytest

from app.delivery.database import Database, prefix_end
from app.delivery.maps import Map, PackedMap
from app.delivery.outbox import Outbox
from app.delivery.state import State, View
from app.errors import StateError

PLAIN: Map[int] = Map("plain", b"p", int)
PACKED: PackedMap[int] = PackedMap("packed", b"k", b"K", int, bucket_s=10)


class FakeState:
    """A State without Faust: just what View and State._expand use."""

    _packed: ClassVar = {b"K": PACKED}
    _expire = staticmethod(State._expire)
    apply = State.apply

    def __init__(self, folder: Path) -> None:
        self.folder, self._database = folder, Database(folder / "0.db")

    def database(self, partition: int) -> Database:
        return self._database


@pytest.fixture
def state(tmp_path: Path) -> Any:
    made = FakeState(tmp_path)
    yield made
    made._database.close()


def committed(state: Any, out: Outbox, offset: int) -> None:
    state.database(0).write(out.local.items(), offset)


def test_reads_see_writes_in_flight(state: Any) -> None:
    view, out = View(state, 0), Outbox(0)
    out.put(PLAIN, b"a", 1)
    view.hold(out.local, 1)
    assert view.get(PLAIN, b"a") == 1
    assert [k for k, _ in view.scan(PLAIN)] == [b"a"]


def test_a_delete_in_flight_hides_the_stored_row(state: Any) -> None:
    view, out = View(state, 0), Outbox(0)
    out.put(PLAIN, b"a", 1)
    committed(state, out, 1)
    gone = Outbox(0)
    gone.delete(PLAIN, b"a")
    view.hold(gone.local, 2)
    assert view.get(PLAIN, b"a") is None
    assert list(view.scan(PLAIN)) == []


def test_release_keeps_what_a_later_batch_wrote_even_with_an_equal_value(state: Any) -> None:
    view, first, second = View(state, 0), Outbox(0), Outbox(0)
    first.put(PLAIN, b"a", 1)
    second.put(PLAIN, b"a", 1)
    view.hold(first.local, 1)
    view.hold(second.local, 2)
    view.release(1)
    assert view.get(PLAIN, b"a") == 1


def test_scan_merges_overlay_and_store_in_key_order(state: Any) -> None:
    view, stored, flying = View(state, 0), Outbox(0), Outbox(0)
    for key in (b"a", b"c", b"e"):
        stored.put(PLAIN, key, 1)
    committed(state, stored, 1)
    for key in (b"b", b"c", b"f"):
        flying.put(PLAIN, key, 2)
    view.hold(flying.local, 1)
    assert [(k, v) for k, v in view.scan(PLAIN)] == [(b"a", 1), (b"b", 2), (b"c", 2), (b"e", 1), (b"f", 2)]


def test_a_packed_record_from_the_changelog_becomes_rows(state: Any) -> None:
    out = Outbox(0)
    out.put_packed(PACKED, 5000, 1, [(b"x", b"\x01"), (b"y", b"\x02")])
    assert len(out.changelog) == 1
    state.apply(0, out.changelog.items(), 3)
    view = View(state, 0)
    assert (view.get(PACKED, b"x"), view.get(PACKED, b"y")) == (1, 2)
    assert state.database(0).changelog_offset == 3


def test_restore_and_local_write_of_a_packed_record_give_the_same_rows(state: Any, tmp_path: Path) -> None:
    out = Outbox(0)
    out.put_packed(PACKED, 5000, 1, [(b"x", b"\x01")])
    committed(state, out, 3)
    other = FakeState(tmp_path / "other")
    other.apply(0, out.changelog.items(), 3)
    rows = [dict(s.database(0).scan(b"k")) | dict(s.database(0).scan(b"K")) for s in (state, other)]
    other._database.close()
    assert rows[0] == rows[1]


def test_expiry_leaves_a_row_that_a_newer_record_owns(state: Any) -> None:
    old, new, view = Outbox(0), Outbox(0), View(state, 0)
    old.put_packed(PACKED, 5000, 1, [(b"x", b"\x01"), (b"y", b"\x02")])
    committed(state, old, 1)
    new.put_packed(PACKED, 95_000, 2, [(b"x", b"\x09")])
    committed(state, new, 2)
    (record, packed) = next(iter(view.scan_rows(b"K", b"K")))
    gone = Outbox(0)
    gone.expire_packed(PACKED, record, packed, view.get_raw(PACKED, [b"x", b"y"]))
    state.apply(0, gone.changelog.items(), 3)  # as another worker restores it
    assert (view.get(PACKED, b"x"), view.get(PACKED, b"y")) == (9, None)
    assert len(list(view.scan_rows(b"K", b"K"))) == 1


def test_age_limit_spares_the_running_bucket() -> None:
    assert PACKED.record(59_999, 1) < PACKED.age_limit(60_000) <= PACKED.record(60_000, 0)


def test_a_folder_in_use_is_refused_by_name(state: Any) -> None:
    with pytest.raises(StateError, match=str(state.folder)):
        Database(state.folder / "0.db")


def test_prefix_end_is_the_first_key_behind() -> None:
    assert prefix_end(b"a\xff") == b"b"
    assert prefix_end(b"\xff") == b""
