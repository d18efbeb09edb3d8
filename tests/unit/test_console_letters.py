"""The page of dead letters: what an action on a whole group moves, tells first, and leaves in the audit topic."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from nicegui import ui

from agents.redrive import Tally
from app.errors import BrokerError
from app.logic.redrive import Selection
from app.settings import load
from app.web.console.app import shell
from app.web.console.context import Console
from app.web.console.guard import Guard
from app.web.console.pages.letters import View
from app.web.letters import Found, Group, Letters, Row, Wanted
from app.web.scan import Budget
from tests.helpers.asgi import ListWriter
from tests.helpers.console import add_user, console_app
from tests.unit.test_console_roles import page_of


def group(topic: str = "raw-events", count: int = 3, *, mixed: bool = False) -> Group:
    return Group(
        reason="bad-time",
        field="event_time",
        stage="ingest-raw-events",
        topic=topic,
        count=count,
        last_ms=9,
        mixed=mixed,
    )


class Fake(Letters):
    """Finds these groups, would move `would` records, and keeps what was asked."""

    def __init__(self, console: Console, *groups: Group) -> None:
        super().__init__(console.settings)
        self.groups, self.would, self.asked = list(groups), 5, list[tuple[str, Selection]]()
        self.fails = self.holds = False
        """`holds`: counting and moving go on until they are stopped."""
        self.reading, self.go_on = 0, asyncio.Event()
        """Scans and looks that go on, and what they wait for."""
        self.go_on.set()

    async def _read(self) -> None:
        self.reading += 1
        try:
            await self.go_on.wait()
        finally:
            self.reading -= 1

    async def scan(self, wanted: Wanted, budget: Budget, show: Callable[[Found], None]) -> Found:
        found = Found(by_key={each.key: each for each in self.groups})
        show(found)
        await self._read()
        found.done = True
        return found

    def _tally(self) -> Tally:
        tally = Tally(already=1)
        tally.selected["bad-time", "ingest-raw-events", "raw-events"] = self.would
        tally.moved["bad-time", "ingest-raw-events", "raw-events"] = self.would
        return tally

    async def _held(self, stop: asyncio.Event) -> Tally:
        """What was moved before it was stopped."""
        await stop.wait()
        tally = Tally(stopped=True)
        tally.moved["bad-time", "ingest-raw-events", "raw-events"] = 2
        return tally

    async def look(self, selection: Selection, **rules: Any) -> Tally:
        await self._read()
        self.asked.append((f"look {rules.get('discard', False)} {rules['may_review']}", selection))
        return self._tally()

    async def redrive(self, selection: Selection, **rules: Any) -> Tally:
        if self.fails:
            raise BrokerError("it was cut off")
        self.asked.append((f"redrive {rules['may_review']}", selection))
        return await self._held(rules["stop"]) if self.holds else self._tally()

    async def discard(self, selection: Selection, **rules: Any) -> Tally:
        self.asked.append(("discard", selection))
        return await self._held(rules["stop"]) if self.holds else self._tally()


class Served:
    """A console, and what its pages asked before they acted."""

    def __init__(self, app: Guard, console: Console) -> None:
        self.app, self.console, self.writer = app, console, ListWriter(console.settings)
        console.writer, self.questions, self.answer = self.writer, list[str](), True
        self.meanwhile: Callable[[], object] = lambda: None
        """Happens while the question is shown."""

    async def confirmed(self, visit: Any, question: str, detail: str, yes: str) -> bool:
        self.questions.append(detail)
        self.meanwhile()
        return self.answer

    async def page(self, user: str, *groups: Group) -> tuple[View, Fake]:
        client, visit = await page_of(self.app, self.console, user)
        letters = self.console.letters = Fake(self.console, *groups)
        with client:
            view = View(visit)
            view.draw()
            await view.scan()
        return view, letters

    @property
    def audited(self) -> list[tuple[str, str, dict[str, Any]]]:
        records = [json.loads(value or b"") for _, _, value in self.writer.aside]
        return [(record["action"], record["target"], record["detail"]) for record in records]


@pytest.fixture
async def served(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    app, console = console_app()
    found = Served(app, console)
    monkeypatch.setattr("app.web.console.pages.letters.confirmed", found.confirmed)
    async with shell().router.lifespan_context(shell()):
        yield found


def choose(view: View, number: int = 0) -> None:
    event: Any = type("Event", (), {"args": [None, {"id": number}]})
    with view.actions.client:
        view._choose(event)


async def act(view: View, what: str) -> None:
    with view.actions.client:
        await getattr(view, what)()


def offered(view: View) -> set[str]:
    """The actions that a person can click on."""
    shown = [each for each in view.actions.descendants() if isinstance(each, ui.button) and each.visible]
    return {str(each.props["data-mark"]) for each in shown} if view.actions.visible else set()


@pytest.mark.parametrize("what", ["_redrive", "_discard"])
async def test_what_a_dry_run_counts_is_confirmed_and_nothing_moves_without(served: Served, what: str) -> None:
    view, letters = await served.page("operator", group(count=3))
    choose(view)
    served.answer = False
    await act(view, what)
    assert [asked for asked, _ in letters.asked] == [f"look {what == '_discard'} False"]
    assert served.questions[0].startswith("5 ")
    assert served.audited == []
    letters.would = 0
    await act(view, what)
    assert len(served.questions) == 1


async def test_an_action_is_about_the_topic_of_the_group_too(served: Served) -> None:
    view, letters = await served.page("operator", group(), group("other"))
    choose(view, 1)
    await act(view, "_discard")
    assert [(asked, selection.topics) for asked, selection in letters.asked] == [
        ("look True False", {"other"}), ("discard", {"other"}),
    ]  # fmt: skip


async def test_the_audit_topic_has_what_was_selected_and_what_became_of_it(served: Served) -> None:
    view, letters = await served.page("operator", group())
    choose(view)
    await act(view, "_redrive")
    selection = {
        "reasons": ["bad-time"], "stages": ["ingest-raw-events"], "fields": ["event_time"], "topics": ["raw-events"],
        "until_ms": 10,
    }  # fmt: skip
    moved = [{"reason": "bad-time", "stage": "ingest-raw-events", "to": "raw-events", "count": 5}]
    assert served.audited == [
        ("redrive", "dead-letter", {"role": "operator", "count": 5, "selection": selection}),
        ("redrive-done", "dead-letter", {"moved": moved, "left": {"already": 1}}),
    ]
    served.writer.aside.clear()
    with view.actions.client:
        await view.scan()
    letters.fails = True
    await act(view, "_redrive")
    assert [(action, detail.get("failed")) for action, _, detail in served.audited] == [
        ("redrive", None), ("redrive-done", "BrokerError"),
    ]  # fmt: skip


async def until(met: Callable[[], object]) -> None:
    """Lets what goes on go on, as far as this."""
    async with asyncio.timeout(10):
        while not met():
            await asyncio.sleep(0)


@pytest.mark.parametrize(("what", "said"), [("_redrive", "Stopped: 2 sent back"), ("_discard", "Stopped: 2 discarded")])
async def test_an_action_that_is_stopped_says_how_many_were_moved_and_leaves_it_in_the_audit_topic(
    served: Served, monkeypatch: pytest.MonkeyPatch, what: str, said: str
) -> None:
    told: list[str] = []
    monkeypatch.setattr(ui, "notify", lambda text, **_: told.append(text))
    view, letters = await served.page("operator", group())
    choose(view)
    assert not view.working.visible
    letters.holds = True
    acting = asyncio.ensure_future(act(view, what))
    await until(lambda: len(letters.asked) == 2)
    with view.actions.client:
        await view.look()  # another search hides the group, not what is going on
        assert (view.actions.visible, view.working.visible, view.halt.enabled) == (False, True, True)
        await view._halt()
    assert not view.halt.enabled
    await acting
    assert told[-1].startswith(said)
    assert (view.working.visible, view._changing) == (False, None)
    action, _, detail = served.audited[-1]
    assert (action, detail["stopped"], detail["moved"][0]["count"]) == (f"{what[1:]}-done", True, 2)


async def test_what_another_page_moves_is_shown_and_can_be_stopped_by_operators(served: Served) -> None:
    view, letters = await served.page("operator", group())
    begun, tell = asyncio.Event(), letters._shown(None)
    stop = asyncio.Event()

    async def work() -> Tally:
        tell(30, 120)
        begun.set()
        await stop.wait()
        return Tally(stopped=True)

    moving = asyncio.ensure_future(letters._in_turn(work, stop))
    await begun.wait()
    with view.actions.client:
        view._show_others()
        assert (view.working.visible, view.bar.value, view.halt.enabled) == (True, 0.25, True)
        await view._halt()
    assert (await moving).stopped
    assert [(action, target) for action, target, _ in served.audited] == [("stop", "dead-letter")]
    with view.actions.client:
        view._show_others()
    assert not view.working.visible
    viewer, _ = await served.page("viewer", group())
    assert not [each for each in viewer.working.client.elements.values() if isinstance(each, ui.timer)]


async def test_counting_that_is_stopped_asks_and_moves_nothing(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    view, letters = await served.page("operator", group())
    choose(view)

    async def held(selection: Selection, **rules: Any) -> Tally:
        letters.asked.append(("look", selection))
        return await letters._held(rules["stop"])

    monkeypatch.setattr(letters, "look", held)
    acting = asyncio.ensure_future(act(view, "_redrive"))
    await until(lambda: letters.asked)
    with view.actions.client:
        await view._halt()
    await acting
    assert (served.questions, served.audited, view._changing) == ([], [], None)


async def test_a_run_that_waits_for_another_can_be_stopped_and_the_other_goes_on() -> None:
    letters, begun, go_on = Letters(load()), list[str](), asyncio.Event()

    async def work(name: str) -> Tally:
        begun.append(name)
        await go_on.wait()
        return Tally()

    def run(name: str, stop: asyncio.Event | None = None) -> asyncio.Future[Tally]:
        return asyncio.ensure_future(letters._in_turn(lambda: work(name), stop or asyncio.Event()))

    stop = asyncio.Event()
    first, second, third = run("first"), run("second", stop), run("third")
    await until(lambda: begun)
    stop.set()
    assert (await second).stopped
    third.cancel()
    with pytest.raises(asyncio.CancelledError):
        await third
    assert begun == ["first"]
    go_on.set()
    assert not (await first).stopped
    assert not (await run("fourth")).stopped
    assert begun == ["first", "fourth"]


async def test_what_goes_to_the_reviewers_is_offered_to_who_may_decide_alone(served: Served) -> None:
    decisions = group("review-decisions")
    view, letters = await served.page("operator", decisions)
    choose(view)
    assert offered(view) == {"discard-all"}
    view, letters = await served.page("admin", decisions)
    choose(view)
    assert offered(view) == {"redrive-all", "discard-all"}
    await act(view, "_redrive")
    assert [asked for asked, _ in letters.asked] == ["look False True", "redrive True"]


async def test_nothing_is_done_with_groups_that_there_were_too_many_of(served: Served) -> None:
    view, letters = await served.page("operator", group(mixed=True))
    choose(view)
    assert offered(view) == set()
    await act(view, "_discard")
    assert letters.asked == []


async def test_buttons_that_are_in_use_stay_while_a_scan_goes_on(served: Served) -> None:
    view, _ = await served.page("operator", group())
    choose(view)
    before = list(view.actions.descendants())
    with view.actions.client:
        await view.scan()
    assert list(view.actions.descendants()) == before
    assert not any(each.is_deleted for each in before)
    assert view.title.text.endswith(": 3")


async def test_a_new_search_offers_nothing_of_the_one_before_until_it_found_it_again(served: Served) -> None:
    view, _ = await served.page("operator", group())
    choose(view)
    with view.actions.client:
        await view.look()
        assert (offered(view), view.group) == (set(), None)
        await view.scan()
    assert offered(view) == {"redrive-all", "discard-all"}


async def test_who_only_looks_is_offered_nothing(served: Served) -> None:
    view, _ = await served.page("viewer", group())
    choose(view)
    assert offered(view) == set()


@pytest.mark.parametrize("what", ["_redrive", "_discard"])
async def test_who_is_no_operator_any_more_when_the_question_is_answered_moves_nothing(
    served: Served, what: str
) -> None:
    view, letters = await served.page("operator", group())
    choose(view)
    served.meanwhile = lambda: add_user(served.console, "operator", "viewer")
    await act(view, what)
    assert [asked.split()[0] for asked, _ in letters.asked] == ["look"]
    assert served.audited == []


async def test_a_click_means_the_group_that_is_drawn_and_not_one_that_overtook_it_since(served: Served) -> None:
    one, other = group("one", 3), group("other", 2)
    view, _ = await served.page("operator", one, other)
    for n in range(5):
        row = Row(position=f"0/{n}", at_ms=n, event_id="", key="", message="", attempt=0, size_bytes=1)
        other.take(row)  # a scan goes on
    choose(view, 0)
    assert view.group is one


async def test_reading_ends_with_the_page_and_with_a_new_search(served: Served) -> None:
    view, letters = await served.page("operator", group())
    choose(view)
    letters.go_on.clear()
    with view.actions.client:
        for _ in range(3):
            await view.look()
        await asyncio.sleep(0)
        choose(view)
        acting = asyncio.ensure_future(act(view, "_redrive"))
        for _ in range(5):
            await asyncio.sleep(0)
    assert letters.reading == 2
    view.actions.client.delete()
    with pytest.raises(asyncio.CancelledError):
        await acting
    for _ in range(5):
        await asyncio.sleep(0)
    assert letters.reading == 0
    await view.look()
    await asyncio.sleep(0)
    assert letters.reading == 0
