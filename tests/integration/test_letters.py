"""Dead letters as the console sees them, on a real broker: found within a budget, edited, sent back, discarded."""

import asyncio
import time
from typing import Any

import pytest

from app.logic.redrive import Selection
from app.settings import Settings
from app.web.letters import Found, Letters, Wanted
from app.web.scan import Budget
from tests.integration.test_redrive import bury, moved, redrive, settings

__all__ = ["settings"]

pytestmark = pytest.mark.integration


async def scanned(letters: Letters, budget: Budget | None = None, **wanted: Any) -> Found:
    return await letters.scan(Wanted(**wanted), budget or Budget(), lambda found: None)


async def test_groups_count_all_and_show_the_newest_first(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.web.scan.PIECE", 3)
    monkeypatch.setattr("app.web.scan.LARGEST_PIECE", 3)
    monkeypatch.setattr("app.web.letters.ROWS_KEPT", 3)
    letters = Letters(settings)
    empty = await scanned(letters)
    assert (empty.groups, empty.progress.total, empty.done, empty.partial) == ([], 0, True, "")
    await bury(settings, [b'{"event_id":"a%d"}' % n for n in range(30)], reason="bad-time")
    await bury(settings, [b"\xff", None], reason="not-utf8")
    steps: list[tuple[int, bool]] = []
    found = await letters.scan(Wanted(), Budget(), lambda found: steps.append((found.progress.read, found.done)))
    assert len(steps) > 3
    assert steps == sorted(steps)
    assert (found.progress.read, found.partial, found.done) == (32, "", True)
    assert [(group.reason, group.count, group.topic) for group in found.groups] == [
        ("bad-time", 30, settings.topic("raw-events")), ("not-utf8", 2, settings.topic("raw-events")),
    ]  # fmt: skip
    assert len(found.groups[0].rows) == 3
    times = [row.at_ms for row in found.groups[0].rows]
    assert times == sorted(times, reverse=True)
    assert {row.size_bytes for row in found.groups[1].rows} == {1, None}
    assert [(group.reason, group.count) for group in (await scanned(letters, text="a17")).groups] == [("bad-time", 1)]


@pytest.mark.parametrize(
    ("budget", "why"), [(Budget(rows=10), "records"), (Budget(bytes=100), "bytes"), (Budget(seconds=0), "seconds")]
)
async def test_a_scan_that_reaches_its_budget_keeps_what_it_found_and_says_why(
    settings: Settings, budget: Budget, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.web.scan.PIECE", 5)
    await bury(settings, [b'{"event_id":"a%d"}' % n for n in range(40)])
    found = await scanned(Letters(settings), budget)
    assert (found.partial, found.done, found.progress.total) == (why, True, 40)
    assert found.progress.read < 40
    assert found.progress.read or why == "seconds"
    assert sum(group.count for group in found.groups) == found.progress.read


async def test_a_scan_goes_back_as_far_as_it_was_asked_to(settings: Settings) -> None:
    await bury(settings, [b"old"] * 4)
    times = [row.at_ms for group in (await scanned(Letters(settings))).groups for row in group.rows]
    later = max(times) + 1
    while int(time.time() * 1000) < later:
        await asyncio.sleep(0.001)
    await bury(settings, [b"new"] * 6)
    found = await scanned(Letters(settings), since_ms=later)
    assert [(group.count, found.progress.read, found.progress.total) for group in found.groups] == [(6, 6, 6)]


async def test_an_edited_one_goes_to_its_stage_with_attempt_and_origin_and_is_not_shown_any_more(
    settings: Settings,
) -> None:
    await bury(settings, [b'{"event_id":"a%d"}' % n for n in range(4)])
    letters = Letters(settings)
    (group,) = (await scanned(letters)).groups
    position = next(row.position for row in group.rows if row.event_id == "a2")
    opened = await letters.open(position)
    assert opened is not None
    assert (opened.text, opened.letter.topic_partition, opened.marker) == ('{"event_id":"a2"}', 2, None)
    assert dict(opened.headers)["headrace.reason"] == b"bad-time"
    done = await letters.redrive(
        Selection(ids={position}), may_review=False, edited={position: b'{"event_id":"a2","mended":1}'}
    )
    assert done.moved.total() == 1
    (record,) = await moved(settings)
    assert (record.key, record.value, record.partition) == (b"k2", b'{"event_id":"a2","mended":1}', 2)
    assert dict(record.headers) == {
        "note": None, "headrace.redrive-attempt": b"1",
        "headrace.redrive-origin": f"{settings.topic('raw-events')}/2/2".encode(),
    }  # fmt: skip
    again = await letters.redrive(Selection(ids={position}), may_review=False, edited={position: b"{}"})
    assert (again.moved.total(), again.already) == (0, 1)
    assert [group.count for group in (await scanned(letters)).groups] == [3]
    assert [group.count for group in (await scanned(letters, handled=True)).groups] == [4]
    sent = await letters.open(position)
    assert sent is not None
    assert sent.marker is not None
    assert (sent.marker.to, sent.marker.attempt) == (settings.topic("raw-events"), 1)


async def test_what_is_discarded_is_not_shown_and_no_redrive_moves_it(settings: Settings) -> None:
    await bury(settings, [b"{}"] * 5, reason="bad-time")
    await bury(settings, [b"{}"] * 3, reason="too-deep")
    letters, progress = Letters(settings), list[tuple[int, int]]()
    group = next(group for group in (await scanned(letters)).groups if group.reason == "too-deep")
    selection = group.selection(Wanted())
    assert selection is not None
    assert (await letters.look(selection, may_review=False, discard=True)).selected.total() == 3
    done = await letters.discard(selection, progress=lambda *at: progress.append(at))
    assert done.selected.total() == 3
    assert progress[-1] == (8, 8)
    assert [(group.reason, group.count) for group in (await scanned(letters)).groups] == [("bad-time", 5)]
    rest = await redrive(settings).run()
    assert (rest.moved.total(), rest.already) == (5, 3)
    assert len(await moved(settings)) == 5
    assert (await scanned(letters)).groups == []


@pytest.mark.parametrize("position", ["", "x", "0/x", "9/0", "0/99999", "0/-1", "../0", "0/1/2"])
async def test_a_place_without_a_record_opens_nothing(settings: Settings, position: str) -> None:
    await bury(settings, [b"{}"])
    assert await Letters(settings).open(position) is None
