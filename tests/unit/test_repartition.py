"""How State is divided (app.delivery.repartition), without a broker."""

import importlib
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from app.commands.tables_repartition import plan_for
from app.commands.tables_state import line_of, row_of
from app.delivery.maps import COPY, STAY, Map, PackedMap
from app.delivery.offline import OfflineState
from app.delivery.outbox import Outbox
from app.delivery.partitions import partition_for
from app.delivery.repartition import Plan, child_rows, parent_rows, place
from app.delivery.state import APPLIED, Applied, decode_applied
from app.errors import StateError
from tables.panes import CLOSING, FIRED, HINTS, MARK, PANES, Closing, Hint, Mark
from tables.seen import SEEN

BY_KEY: Map[int] = Map("by-key", b"k", int, moves=lambda key: key)
STAYS: Map[int] = Map("stays", b"t", int, moves=STAY)
SAID_NOTHING: Map[int] = Map("silent", b"n", int)
PACKED: PackedMap[int] = PackedMap("packed", b"s", b"S", int, moves=COPY)
PLAN = Plan(old=2, new=6)


@pytest.fixture
def made(tmp_path: Path) -> Any:
    states: list[OfflineState] = []

    def make(*maps: Map[Any]) -> OfflineState:
        states.append(OfflineState(tmp_path / str(len(states)), "s", "s-changelog", maps))
        return states[-1]

    yield make
    for state in states:
        state.store.close()


def fill(state: OfflineState, partition: int, out: Outbox, offset: int = 9) -> None:
    out.changelog[APPLIED] = msgspec.msgpack.encode(Applied(offset, 1, 2, "life"))
    state.apply(partition, list(out.changelog.items()), offset)


def divided(state: OfflineState, plan: Plan = PLAN) -> dict[int, dict[bytes, bytes]]:
    """Changelog rows of every partition afterwards."""
    found: dict[int, dict[bytes, bytes]] = {}
    for parent in range(plan.old):
        for child in plan.children(parent):
            found[child] = {k: v for k, v in child_rows(state, parent, child, plan) if v is not None}
        rows = dict(state.database(parent).scan(b"k")) | dict(state.database(parent).scan(b"p"))
        for key, value in parent_rows(state, parent, plan):
            if value is None:
                rows.pop(key)
            else:
                rows[key] = value
        found[parent] = rows
    return found


def test_every_row_is_afterwards_where_its_key_is_and_nowhere_else(made: Any) -> None:
    state = made(BY_KEY)
    keys = [b"u%d" % n for n in range(300)]
    for parent in (0, 1):
        out = Outbox(0)
        for key in keys:
            if partition_for(key, 2) == parent:
                out.put(BY_KEY, key, 1)
        fill(state, parent, out)
    where = [(p, key[1:]) for p, rows in divided(state).items() for key in rows if key[:1] == b"k"]
    assert Counter(key for _, key in where) == Counter(keys)
    assert all(p == partition_for(key, 6) for p, key in where)


def test_ids_are_copied_to_every_partition_that_may_hold_their_entity(made: Any) -> None:
    state = made(PACKED)
    out = Outbox(0)
    out.put_packed(PACKED, 5000, 3, [(b"x", b"\x01")])
    fill(state, 1, out)
    (record,) = [key for key in out.changelog if key[:1] == b"S"]
    assert PLAN.children(1) == [3, 5]
    for child in (3, 5):
        rows = dict(child_rows(state, 1, child, PLAN))
        (copied,) = [key for key in rows if key[:1] == b"S"]
        assert copied != record, "a batch of the child at the same offset would overwrite it"
        assert PACKED.bucket(copied) == PACKED.bucket(record)
        assert rows[copied] == out.changelog[record]


def test_ids_that_are_copied_again_keep_numbers_of_their_own() -> None:
    own = PACKED.record(5000, 3)
    first = PACKED.renumbered(own, Plan(old=2, new=6).series)
    again = PACKED.renumbered(own, Plan(old=6, new=12).series)
    assert PACKED.renumbered(first, Plan(old=6, new=12).series) == first
    assert len({own, first, again}) == 3


def test_a_new_partition_begins_at_its_first_record_whatever_the_source_says(made: Any) -> None:
    state = made(BY_KEY)
    fill(state, 0, Outbox(0))
    marker = decode_applied(dict(child_rows(state, 0, 2, PLAN))[APPLIED] or b"")
    assert marker.offset == -1
    assert marker.incarnation != "life"


def test_what_stays_is_written_to_no_child(made: Any) -> None:
    state = made(STAYS)
    out = Outbox(0)
    out.put(STAYS, b"a", 1)
    fill(state, 0, out)
    assert [key for key, _ in child_rows(state, 0, 2, PLAN)] == [APPLIED]
    assert list(parent_rows(state, 0, PLAN)) == []


def test_a_map_that_says_nothing_is_refused(made: Any) -> None:
    state = made(SAID_NOTHING)
    out = Outbox(0)
    out.put(SAID_NOTHING, b"a", 1)
    fill(state, 0, out)
    with pytest.raises(StateError, match="silent"):
        list(child_rows(state, 0, 2, PLAN))


def test_rows_of_producers_with_another_partitioner_are_refused(made: Any) -> None:
    state = made(BY_KEY)
    out = Outbox(0)
    for key in (b"u%d" % n for n in range(50)):
        if place(key, 2, "crc32") == 0:
            out.put(BY_KEY, key, 1)
    fill(state, 0, out)
    with pytest.raises(StateError, match="don't use murmur2"):
        list(parent_rows(state, 0, PLAN))
    list(parent_rows(state, 0, Plan(old=2, new=6, partitioner="crc32")))


def test_windows_go_with_their_entities_and_are_counted_anew(made: Any) -> None:
    state = made(SEEN, PANES, CLOSING, FIRED, HINTS, MARK)
    aggregate = b"12345678"
    entities = [key for key in (b"u%d" % n for n in range(60)) if partition_for(key, 2) == 0]
    out = Outbox(0)
    for entity in entities:
        out.changelog[PANES.row(aggregate + b"\x00" * 8 + entity)] = b"pane"
        out.put(HINTS, entity, Hint(1, "rule", 7))
    out.put(CLOSING, b"a", Closing(aggregate, 30_000, None, len(entities)))
    out.put(MARK, b"", Mark(60_000, 41))
    fill(state, 0, out)
    total = 0
    for child in (2, 4):
        rows = dict(child_rows(state, 0, child, PLAN))
        panes = [key for key in rows if key[:1] == b"p"]
        closing = CLOSING.decode(rows[CLOSING.row(b"a")] or b"")
        assert (closing.panes, closing.next_ms) == (len(panes), 30_000)
        assert MARK.decode(rows[MARK.row(b"")] or b"") == Mark(60_000, -1)
        assert {HINTS.decode(v or b"").offset for k, v in rows.items() if k[:1] == b"h"} <= {-1}
        total += len(panes)
    left = dict(parent_rows(state, 0, PLAN))
    assert CLOSING.decode(left[CLOSING.row(b"a")] or b"").panes == len(entities) - total
    assert 0 < total < len(entities)


@pytest.mark.parametrize(("have", "begun", "count", "says"), [(4, None, 6, "multiple"), (8, None, 4, "multiple")])
def test_counts_that_do_not_divide_are_refused(have: int, begun: int | None, count: int, says: str) -> None:
    with pytest.raises(StateError, match=says):
        plan_for(a_stage(), have, begun, count, "murmur2")


def test_a_run_that_was_cut_off_goes_on_from_the_old_count() -> None:
    assert plan_for(a_stage(), 6, 2, 6, "murmur2") == PLAN
    assert plan_for(a_stage(), 6, None, 6, "murmur2") is None


def a_stage() -> Any:
    from types import SimpleNamespace

    return SimpleNamespace(state=SimpleNamespace(name="s"))


@pytest.mark.parametrize("key", [b"plain", "schlüssel".encode(), b"\xff\x00\x80", b""])
def test_an_exported_row_is_read_back_as_it_was(key: bytes) -> None:
    value = HINTS.encode(Hint(5, "rule", 3))
    assert row_of(HINTS, line_of(HINTS, 0, key, value)) == (key, value)


def test_every_map_says_what_happens_to_its_rows() -> None:
    found = [
        each
        for file in sorted((Path(__file__).parents[2] / "tables").glob("*.py"))
        for each in vars(importlib.import_module(f"tables.{file.stem}")).values()
        if isinstance(each, Map)
    ]
    assert len(found) >= 10
    assert [each.name for each in found if each.moves is None] == []
