"""A changelog written anew from a local copy: which copy may serve, and what others take it for (app.delivery.reseed)."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.structs import TopicPartition

from app.delivery import reseed as module
from app.delivery.changelog import Copy
from app.delivery.database import RESEEDING
from app.delivery.maps import Map
from app.delivery.offline import OfflineState
from app.delivery.positions import Log
from app.delivery.reseed import matches_input, reseed
from app.delivery.restore import judge
from app.delivery.state import APPLIED, decode_applied
from app.errors import ChangelogLost
from tests.unit.test_changelog_copy import marker, record

PLAIN: Map[int] = Map("plain", b"p", int)
INPUT = TopicPartition("t", 0)


@pytest.fixture
def copy(tmp_path: Path) -> Any:
    """Its marker says: input read up to offset 9; the changelog up to 5."""
    state = OfflineState(tmp_path, "s", "c", [PLAIN])
    state.apply(0, [(b"pa", b"\x01"), (APPLIED, marker(9, "old life"))], 5)
    yield Copy(state, TopicPartition("c", 0), start=0, end=0)
    state.store.close()


def lane_of(copy: Copy) -> Any:
    stage = SimpleNamespace(state=copy.state, start="earliest")
    return SimpleNamespace(stage=stage, tp=INPUT, producer="its own")


def delivery_of(committed: int | None) -> Any:
    async def asked(tp: TopicPartition) -> int | None:
        return committed

    return SimpleNamespace(committed=asked, settings=SimpleNamespace(kafka=None))


@pytest.fixture(autouse=True)
def topic(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """An input of 100 records, that at offset 9 the one of the marker."""
    said: dict[str, Any] = {"start": 0, "end": 100, "at_marker": (1, 2), "compacted": False}

    async def log_of(kafka: object, tp: object, applied: object, committed: int | None, start: str) -> Log:
        return Log(committed=committed, initial=0, **said)

    monkeypatch.setattr(module, "log_of", log_of)
    return said


@pytest.mark.parametrize(
    ("committed", "right"),
    [(10, True), (None, True), (3, True), (11, False), (500, False)],
    ids=["as the marker", "forgotten", "set back", "a record further", "far ahead"],
)
async def test_a_copy_that_the_group_has_gone_past_does_not_serve(
    copy: Copy, committed: int | None, right: bool
) -> None:
    """It was left behind when the partition moved: State would go back, and outputs be written twice."""
    assert await matches_input(delivery_of(committed), lane_of(copy)) is right


@pytest.mark.parametrize(
    ("log", "committed", "right"),
    [
        ({"at_marker": (1, 3)}, 10, False),
        ({"at_marker": None}, 10, False),
        ({"at_marker": None, "compacted": True}, 10, True),
        ({"at_marker": None, "compacted": True}, None, False),
        ({"at_marker": None, "start": 50}, 10, True),
        ({"at_marker": None, "start": 50}, 7, False),
    ],
    ids=["another record", "a hole", "compacted away", "compacted, forgotten", "expired", "expired, set back"],
)
async def test_a_copy_whose_record_the_input_lacks_serves_where_it_may_be_gone_and_the_group_stands_there(
    copy: Copy, topic: dict[str, Any], log: dict[str, Any], committed: int | None, right: bool
) -> None:
    topic.update(log)
    assert await matches_input(delivery_of(committed), lane_of(copy)) is right


async def test_a_changelog_written_anew_has_another_life(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies that others hold of the old one stand at offsets that mean nothing in it: they must find out."""
    written: dict[bytes, bytes | None] = {}

    async def write_rows(producer: object, topic: str, partition: int, rows: Iterator[Any]) -> int:
        written.update(rows)
        return 3

    monkeypatch.setattr(module, "write_rows", write_rows)
    await reseed(delivery_of(10), lane_of(copy), copy)
    fresh = decode_applied(written[APPLIED] or b"")
    assert written[b"pa"] == b"\x01"
    assert (fresh.offset, fresh.timestamp_ms, fresh.crc) == (9, 1, 2)
    assert fresh.incarnation != "old life"
    assert copy.state.applied(0) == fresh
    database = copy.state.database(0)
    assert (database.changelog_offset, database.get(RESEEDING), copy.end) == (3, None, 4)
    other = Copy(copy.state, copy.tp, end=100)
    other.unsure = []
    assert other.sure([record(3, APPLIED, marker(20, "old life"))], at_end=False) is None


async def test_a_copy_is_kept_when_its_partition_is_taken_away_while_its_changelog_is_lost(copy: Copy) -> None:
    delivery: Any = SimpleNamespace(lane_of=lambda changelog: None)
    with pytest.raises(ChangelogLost):
        await judge(delivery, copy)
    assert copy.state.database(0).changelog_offset == 5, "the only copy was set aside"


@pytest.mark.parametrize(("end", "noted", "anew"), [(6, False, False), (5, False, True), (90, True, True)])
async def test_a_changelog_that_lacks_what_the_copy_holds_is_written_anew(
    copy: Copy, end: int, noted: bool, anew: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that has grown past the copy: the lane that noticed has noted it."""
    done: list[Copy] = []

    async def reseeded(delivery: object, lane: object, of: Copy) -> None:
        done.append(of)

    monkeypatch.setattr("app.delivery.restore.reseed", reseeded)
    if noted:
        copy.state.database(0).note(RESEEDING, b"1")
    copy.end = end
    delivery = delivery_of(10)
    delivery.lane_of = lambda changelog: lane_of(copy)
    await judge(delivery, copy)
    assert done == ([copy] if anew else [])
    assert copy.next == (end if anew else 0)
