"""The page Tables without a browser: what is shown when answers come late, and which windows of many."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from nicegui import ui

from app.web.announce import Worker
from app.web.console.app import shell
from app.web.console.pages.tables import View
from app.web.console.pages.windows import SHOWN_WINDOWS
from app.web.workers import Answer, Workers
from tests.helpers.console import console_app
from tests.unit.test_console_roles import page_of

STATE = {
    "state": "classify", "topic": "model-requests", "bytes": 1, "partitions": [0], "restoring": [], "stopped": {},
    "maps": [{"name": "open", "help": ""}, {"name": "seen", "help": ""}],
}  # fmt: skip


class Slow(Workers):
    """One worker, whose answers come when they are let go."""

    def __init__(self) -> None:
        self.held: list[tuple[str, asyncio.Event]] = []
        self.holds = False
        self.windows: list[dict[str, Any]] = []

    @property
    def alive(self) -> list[Worker]:
        return [Worker(id="w", url="http://w", host="h", pid=1, role="all", started_ms=1, beat_ms=1)]

    async def _ask(self, worker: Worker, path: str, params: dict[str, str]) -> Answer:
        if self.holds:
            go_on = asyncio.Event()
            self.held.append((f"{path} {params.get('start', '')}".strip(), go_on))
            await go_on.wait()
        if path == "/tables":
            body: Any = [STATE]
        elif path.startswith("/windows/"):
            body = {"windows": self.windows}
        else:
            row = {"partition": 0, "key": f"{path} {params.get('start', '')}", "value": 1, "hex": "00"}
            body = {"rows": [row], "next": {"partition": 0, "start": "01"}}
        return Answer(worker, 200, json.dumps(body).encode())


@pytest.fixture
async def drawn() -> AsyncIterator[tuple[View, Slow]]:
    """The page before anything is loaded."""
    app, console = console_app()
    async with shell().router.lifespan_context(shell()):
        client, visit = await page_of(app, console, "viewer")
        console.workers = workers = Slow()
        with client:
            view = View(visit)
            view.draw()
        yield view, workers


@pytest.fixture
async def page(drawn: tuple[View, Slow]) -> tuple[View, Slow]:
    view, workers = drawn
    with view.body.client:
        await view.load()
    return view, workers


def keys(view: View) -> list[str]:
    return [str(row["key"]).strip() for row in view.rows]


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_an_answer_that_comes_late_is_not_shown_as_that_of_another_table(page: tuple[View, Slow]) -> None:
    view, workers = page
    assert keys(view) == ["/tables/classify/open"]
    workers.holds = True
    with view.body.client:
        asking = [asyncio.ensure_future(view._page())]
        await turns()
        view.table, view.starts = "classify/seen", [""]
        asking.append(asyncio.ensure_future(view._page()))
        await turns()
        (_, first), (_, second) = workers.held
        second.set()
        await turns()
        first.set()
        await asyncio.gather(*asking)
    assert keys(view) == ["/tables/classify/seen"]


async def test_two_clicks_before_the_next_page_is_there_lead_one_page_on(page: tuple[View, Slow]) -> None:
    view, workers = page
    workers.holds = True
    with view.body.client:
        clicks = [asyncio.ensure_future(view._forward()), asyncio.ensure_future(view._forward())]
        await turns()
        for _, go_on in workers.held:
            go_on.set()
        await asyncio.gather(*clicks)
    assert view.starts == ["", "0:01"]
    assert keys(view) == ["/tables/classify/open 01"]


async def test_of_many_windows_the_newest_of_all_aggregates_are_shown(page: tuple[View, Slow]) -> None:
    view, workers = page
    workers.windows = [
        {
            "aggregate": aggregate, "start_ms": start, "end_ms": start + 9, "counts": {}, "events": 1, "other": 0,
            "features": {}, "intents": [], "sequence": [], "cut": 0,
        }
        for aggregate, start in [("a", 1_000_000), *(("b", 1000 * n) for n in range(SHOWN_WINDOWS + 1))]
    ]  # fmt: skip
    with view.body.client:
        view.of.value = "u"
        await view._windows()
    titles = [
        each.text for each in view.body.descendants() if isinstance(each, ui.label) and "text-subtitle1" in each.classes
    ]
    assert [title[:1] for title in titles] == ["a", *"b" * (SHOWN_WINDOWS - 1)]


async def test_who_asks_for_windows_before_the_tables_are_known_sees_them_and_can_choose_a_table_later(
    drawn: tuple[View, Slow],
) -> None:
    view, workers = drawn
    workers.holds = True
    with view.body.client:
        loading = asyncio.ensure_future(view.load())
        view.of.value = "u"
        asking = asyncio.ensure_future(view._windows())
        await turns()
        assert [path for path, _ in workers.held] == ["/tables", "/windows/u"]
        for _, go_on in reversed(workers.held):
            go_on.set()
            await turns()
        await asyncio.gather(loading, asking)
        assert marks(view) == {"no-windows"}
        assert list(view.choice.options) == ["classify/open", "classify/seen"]
        workers.holds = False
        view.choice.value = "classify/seen"
        await turns()
    assert keys(view) == ["/tables/classify/seen"]
    assert any("1 partition" in each.text for each in view.said.descendants() if isinstance(each, ui.label))


async def test_who_asks_for_a_key_before_the_tables_are_known_is_shown_it(drawn: tuple[View, Slow]) -> None:
    view, workers = drawn
    workers.holds = True
    with view.body.client:
        loading = asyncio.ensure_future(view.load())
        await turns()
        view.search.value = "k"
        finding = asyncio.ensure_future(view._find())
        workers.holds = False
        for _, go_on in workers.held:
            go_on.set()
        await asyncio.gather(loading, finding)
    assert keys(view) == ["/tables/classify/open"]
    assert (view.key, marks(view) & {"failed", "forward"}) == ("k", set())


def marks(view: View) -> set[str]:
    return {str(each.props.get("data-mark", "")) for each in view.body.descendants()} - {""}
