"""The table of ids that a benchmark writes to the changelog: what isn't really there would make its figures worthless."""

import itertools
import json
from collections import Counter
from pathlib import Path
from zlib import crc32

import pytest

from app.delivery.offline import OfflineState
from app.delivery.state import APPLIED
from tables.seen import SEEN
from tests.bench.data import Expected, _mixed, placed, records
from tests.bench.large import _unlike
from tests.bench.packed import IdTable, changelog_records, event

NOW_MS = 1_796_000_000_000
TABLE = IdTable(state="ingest-raw", partitions=3, ids=2000, batch=90, now_ms=NOW_MS)


@pytest.fixture
def restored(tmp_path: Path) -> OfflineState:
    state = OfflineState(tmp_path, TABLE.state, "changelog", [SEEN])
    for partition in range(TABLE.partitions):
        state.store.reopen(partition, bulk=True)
        state.apply_bulk(partition, changelog_records(TABLE, partition, b"marker"), 100)
        state.settle(partition)
    return state


def test_restored_table_holds_each_id_once_and_those_asked_for_again(restored: OfflineState) -> None:
    rows = [key for p in range(3) for key, _ in restored.database(p).scan(SEEN.prefix)]
    limit = SEEN.age_limit(NOW_MS - TABLE.horizon_ms)
    old = sum(b.ids for p in range(3) for b in TABLE.batches(p) if SEEN.record(b.at_ms, b.first) < limit)
    assert len(rows) == len(set(rows)) == TABLE.ids + old
    assert old == sum(-(-part // 72) for part in (667, 667, 666))
    assert restored.database(0).get(APPLIED) == b"marker"
    known = TABLE.known(300, seed=1)
    assert len(set(known)) == len(known) == 300
    assert {partition for partition, _ in known} == {0, 1, 2}
    for partition, value in known:
        raw = restored.database(partition).get(SEEN.row(json.loads(value)["event_id"].encode()))
        assert raw is not None
        seen = SEEN.decode(raw)
        assert seen.crc == crc32(value)
        assert NOW_MS - TABLE.horizon_ms + 3_600_000 < seen.at_ms < NOW_MS


def test_old_ids_are_what_expiry_removes(restored: OfflineState) -> None:
    limit = SEEN.age_limit(NOW_MS - TABLE.horizon_ms)
    expired = {
        key
        for p in range(3)
        for record, packed in restored.database(p).scan(SEEN.records)
        if record < limit
        for key, _ in SEEN.unpack(packed)
    }
    assert {i.encode() for i in TABLE.old(90)} == expired


def test_known_events_come_evenly_between_the_others_each_in_its_partition() -> None:
    known = [(n % 3, event(f"known-{n}")) for n in range(40)]
    expected = Expected()
    got = list(_mixed(records(360, expected), known, 400, placed(3)))
    places = [n for n, (_, _, value) in enumerate(got) if b"known-" in value]
    assert [(place, value) for _, place, value in got if b"known-" in value] == known
    assert len(got) == 400
    assert max(b - a for a, b in itertools.pairwise(places)) == 10
    owners = dict(placed(3))
    assert all(owners[key] == place for key, place, _ in got)


def test_a_duplicate_that_was_missed_or_taken_for_another_event_is_told() -> None:
    expected = Expected(events=100, clean={"a", "b"}, noise={"c"}, broken=Counter({1: 7}))
    assert _unlike(expected, {"duplicate": 90.0, "noise": 1.0}) == []
    assert _unlike(expected, {"duplicate": 89.0}) == ["89 duplicates and 0 conflicts of 90"]
    assert _unlike(expected, {"duplicate": 89.0, "conflict": 1.0}) == ["89 duplicates and 1 conflicts of 90"]
