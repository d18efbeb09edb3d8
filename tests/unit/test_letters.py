"""Grouping of dead letters, and what an action on a group is about. The reading is in tests/integration/test_letters.py."""

import asyncio
from typing import Any

import pytest

from agents.markers import Marker
from agents.redrive import Tally
from app.logic.dead import dead_headers
from app.logic.redrive import DeadLetter, Selection, examine
from app.settings import load
from app.web.letters import Group, Letters, Wanted
from models.events import Bad, Received


def letter(n: int, reason: str = "bad-time", field: str = "event_time", value: bytes | None = b"{}") -> DeadLetter:
    raw = Received("raw-events", 0, n, 1000, b"k%d" % n, value)
    headers = dead_headers(raw, Bad(reason=reason, field=field, message=f"about {n}"), "ingest-raw-events")
    return examine(Received("dead-letter", 0, n, 5000 + n, raw.key, value, headers), {"raw-events"})


@pytest.fixture
def letters() -> Letters:
    return Letters(load())


def grouped(letters: Letters, found: list[DeadLetter], **wanted: Any) -> list[Group]:
    groups: dict[tuple[str, ...], Group] = {}
    for each in found:
        letters._group(groups, each, Wanted(**wanted))
    return list(groups.values())


def test_reason_and_field_make_a_group_with_its_times(letters: Letters) -> None:
    one, other = grouped(letters, [letter(3), letter(1), letter(2), letter(4, field="id")])
    assert (one.reason, one.field, one.count, one.first_ms, one.last_ms) == ("bad-time", "event_time", 3, 5001, 5003)
    assert (other.field, other.count) == ("id", 1)


def test_a_group_s_action_takes_all_of_it_up_to_the_newest_that_was_seen(letters: Letters) -> None:
    (group,) = grouped(letters, [letter(1), letter(2)])
    selection = group.selection(Wanted())
    assert selection is not None
    assert [selection.takes(letter(n)) for n in (0, 1, 2, 3)] == [True, True, True, False]
    assert not selection.takes(letter(1, reason="too-deep"))
    assert not selection.takes(letter(1, field=""))


def test_with_a_search_text_it_takes_what_was_found_and_nothing_where_that_is_not_all_shown(
    letters: Letters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.web.letters.ROWS_KEPT", 2)
    wanted = {"text": "about"}
    (group,) = grouped(letters, [letter(1), letter(2)], **wanted)
    selection = group.selection(Wanted(**wanted))
    assert selection is not None
    assert selection.ids == {"0/1", "0/2"}
    (group,) = grouped(letters, [letter(n) for n in range(9)], **wanted)
    assert group.count == 9
    assert [row.position for row in group.rows] == ["0/8", "0/7"]
    assert len(group.kept) < 4
    assert group.selection(Wanted(**wanted)) is None


@pytest.mark.parametrize("text", ["k7", "about 7", "0/7", "<b>7"])
def test_a_text_is_searched_in_key_message_position_and_value(letters: Letters, text: str) -> None:
    found = [letter(6), letter(7, value=b"<b>7"), letter(8, value=None)]
    (group,) = grouped(letters, found, text=text)
    assert [row.position for row in group.rows] == ["0/7"]


def test_what_was_dealt_with_is_left_out_unless_the_record_at_its_place_is_another(letters: Letters) -> None:
    letters._markers._known = {
        "0/1": Marker(letter_ms=5001, at_ms=1, to="raw-events", attempt=1),
        "0/2": Marker(letter_ms=1, at_ms=1, to="", attempt=0),
    }
    (group,) = grouped(letters, [letter(1), letter(2)])
    assert [row.position for row in group.rows] == ["0/2"]
    (group,) = grouped(letters, [letter(1), letter(2)], handled=True)
    assert {row.position for row in group.rows} == {"0/1", "0/2"}


def test_headers_of_strangers_make_no_more_groups_than_can_be_shown(
    letters: Letters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.web.letters.MAX_GROUPS", 5)
    groups = grouped(letters, [letter(n, field=f"f{n}") for n in range(50)])
    assert [group.count for group in groups] == [1, 1, 1, 1, 1, 45]
    assert [group.selection(Wanted()) is None for group in groups] == [False] * 5 + [True]


def test_what_names_nothing_is_a_group_of_its_own_beside_those_that_there_were_too_many_of(
    letters: Letters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.web.letters.MAX_GROUPS", 1)
    foreign = examine(Received("dead-letter", 0, 0, 5000, None, b"x", []), {"raw-events"})
    one, rest = grouped(letters, [foreign, letter(1)])
    assert (one.reason, one.mixed, one.count, rest.mixed, rest.count) == ("", False, 1, True, 1)
    selection = one.selection(Wanted())
    assert selection is not None
    assert (selection.takes(foreign), selection.takes(letter(1))) == (True, False)


def test_a_group_s_action_leaves_what_would_go_to_another_topic(letters: Letters) -> None:
    raw = Received("other", 0, 1, 1000, b"k", b"{}")
    headers = dead_headers(raw, Bad(reason="bad-time", field="event_time", message="m"), "ingest-raw-events")
    elsewhere = examine(Received("dead-letter", 0, 1, 5001, b"k", b"{}", headers), {"raw-events", "other"})
    one, other = grouped(letters, [letter(1), elsewhere])
    assert (one.topic, other.topic) == ("raw-events", "other")
    selection = one.selection(Wanted())
    assert selection is not None
    assert (selection.takes(letter(1)), selection.takes(elsewhere)) == (True, False)


class Held:
    """A run that goes on until it is stopped."""

    def __init__(self, *_: Any, stop: asyncio.Event | None = None, **rules: Any) -> None:
        self._stop = stop or asyncio.Event()

    async def run(self) -> Tally:
        await self._stop.wait()
        return Tally(stopped=True)

    discard = run


@pytest.mark.parametrize("action", ["redrive", "discard"])
async def test_a_run_whose_page_stops_nothing_is_stopped_by_another(
    letters: Letters, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    monkeypatch.setattr("app.web.letters.Redrive", Held)
    selection = Selection(ids={"0/1"})
    acts = {
        "redrive": lambda: letters.redrive(selection, may_review=False),
        "discard": lambda: letters.discard(selection),
    }
    async with asyncio.timeout(5):
        acting = asyncio.ensure_future(acts[action]())
        while letters.moving is None:
            await asyncio.sleep(0)
        letters.moving.stop.set()
        assert (await acting).stopped
