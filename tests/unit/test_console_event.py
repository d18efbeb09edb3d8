"""The page Event while an event is on its way: what is new is added, what is open stays open, and it ends."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from nicegui import Client, ui

from app.web.announce import Worker
from app.web.console import traces
from app.web.console.app import shell
from app.web.console.context import Console
from app.web.console.guard import Guard
from app.web.console.pages import event as page
from app.web.console.pages.event import View
from app.web.console.traces import Traces
from app.web.history import writes
from app.web.workers import Answer, Workers
from tests.helpers.console import console_app
from tests.helpers.records import record
from tests.unit.test_console_roles import page_of

AT_MS = 1_790_000_000_000
SOURCE = {"topic": "raw-events", "partition": 0, "offset": 3}
SEEN = {"stage": "ingest", "map": "seen", **SOURCE, "at_ms": AT_MS, "outcome": "asked", "detail": "mood"}
OPEN = {
    "stage": "classify", "map": "open", "topic": "model-requests", "partition": 1, "offset": 8, "at_ms": AT_MS + 5,
    "task": "mood",
}  # fmt: skip
DEEP = {
    "stage": "classify", "map": "answered", "topic": "model-requests", "partition": 1, "at_ms": AT_MS + 900,
    "tier": "deep", "category": "happy", "why": "no light tier",
}  # fmt: skip
REVIEW = {**DEEP, "tier": "review", "category": ""}
WAITS = {
    "stage": "review", "map": "waiting", "topic": "review-decisions", "partition": 2, "at_ms": AT_MS + 900,
    "task": "mood", "cause": "no-answer", "open": True,
}  # fmt: skip
DECIDED = {
    "stage": "review", "map": "decided", "topic": "review-decisions", "partition": 2, "at_ms": AT_MS + 9000,
    "category": "happy", "reviewer": "ada", "note": "", "tier": "review",
}  # fmt: skip


class State(Workers):
    """A worker that tells these steps, one list a look; the last one again and again."""

    def __init__(self, *looks: list[dict[str, Any]]) -> None:
        self.looks, self.asked, self.silent = list(looks), 0, False
        self.go_on = asyncio.Event()
        self.go_on.set()

    @property
    def alive(self) -> list[Worker]:
        return [Worker(id="a", url="http://a", host="h", pid=1, role="all", started_ms=1, beat_ms=1)]

    async def _ask(self, worker: Worker, path: str, params: dict[str, str]) -> Answer:
        await self.go_on.wait()
        self.asked += 1
        if self.silent:
            return Answer(worker, 0, b"", "ConnectError")
        steps = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        return Answer(worker, 200, json.dumps({"event_id": "e", "steps": steps}).encode())


class Topics:
    """Stands for `History`: what was read, and results that may come late."""

    read_at: list[str]
    hidden: int
    """So often a result isn't there yet."""
    now_s: float
    """The page's clock; each look for a result takes a second."""

    def __init__(self, settings: Any) -> None: ...

    async def __aenter__(self) -> "Topics":
        return self

    async def __aexit__(self, *error: Any) -> None: ...

    async def at(self, topic: str, partition: int, offset: int) -> Any:
        its = record(b'{"event_id":"e"}', key=b"k")
        its.topic, its.partition, its.offset = topic, partition, offset
        return its

    async def read(self, step: dict[str, Any]) -> Any:
        if "offset" not in step:
            return None
        Topics.read_at.append(step["map"])
        return await self.at(step["topic"], step["partition"], step["offset"])

    async def written(self, step: dict[str, Any], event_id: str) -> dict[str, Any] | None:
        if writes(step) is None:
            return None
        Topics.read_at.append(f"written {step['map']}")
        Topics.now_s += 1
        if Topics.hidden:
            Topics.hidden -= 1
            return None
        review = step["map"] == "answered" and step["tier"] == "review"
        decided = {"category": step.get("category", "happy"), "tier": step.get("tier", "rule")}
        said = {"cause": "no-answer"} if review else decided
        value = {"event_id": "e", "source": SOURCE, **said}
        return {"topic": "ai-results", "partition": 0, "offset": 1, "timestamp_ms": step["at_ms"], "value": value}


@pytest.fixture
async def served(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Guard, Console]]:
    app, console = console_app()
    Topics.read_at, Topics.hidden, Topics.now_s = [], 0, 0.0
    monkeypatch.setattr(page, "History", Topics)
    monkeypatch.setattr(page, "time", SimpleNamespace(monotonic=lambda: Topics.now_s))
    monkeypatch.setattr(page, "FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(traces, "LOOKS_PER_S", 1e9)
    monkeypatch.setattr(traces, "SHARED_S", 0.0)

    async def connected(client: Client, timeout: float | None = None) -> None: ...

    monkeypatch.setattr(Client, "connected", connected)
    async with shell().router.lifespan_context(shell()):
        yield app, console


async def view_of(served: tuple[Guard, Console], state: State) -> View:
    app, console = served
    client, visit = await page_of(app, console, "viewer")
    console.traces = Traces(state)
    with client:
        return View(visit, "e")


def texts(view: View) -> list[str]:
    """Titles of what is drawn, in order."""
    return [str(each.props["title"]) for each in view.timeline.default_slot.children]


def marked(view: View, mark: str) -> list[ui.element]:
    return [each for each in view.client.elements.values() if each.props.get("data-mark") == mark]


async def until(met: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not met():
            await asyncio.sleep(0)


async def test_steps_come_as_they_happen_and_the_page_ends_with_the_result(served: tuple[Guard, Console]) -> None:
    state = State([], [SEEN], [SEEN, OPEN], [SEEN, DEEP])
    view = await view_of(served, state)
    await view.watch()
    assert texts(view) == [
        "Received", "ingest: a model is asked, task mood", "classify: waited for a model (task mood)",
        "classify: deep: happy (no light tier)",
    ]  # fmt: skip
    assert view.outcome.visible
    assert "happy · deep" in [each.text for each in view.outcome.descendants() if isinstance(each, ui.label)]
    assert view.live.text.startswith("At its end")
    assert not marked(view, "unknown")
    assert state.asked == 4


async def test_what_somebody_has_open_stays_and_topics_are_read_once(served: tuple[Guard, Console]) -> None:
    state = State([SEEN, OPEN], [SEEN, OPEN], [SEEN, OPEN], [DEEP])
    view = await view_of(served, state)
    state.go_on.clear()
    watching = asyncio.ensure_future(view.watch())
    state.go_on.set()
    await until(lambda: len(texts(view)) == 3)
    records = marked(view, "record")
    assert len(records) == 2
    for each in records:
        assert isinstance(each, ui.expansion)
        each.open()
    before = list(view.timeline.default_slot.children)
    await watching
    assert view.timeline.default_slot.children[:3] == before
    assert [each for each in marked(view, "record") if isinstance(each, ui.expansion) and each.value] == records
    assert Topics.read_at == ["seen", "open", "written answered"]


async def test_a_worker_that_is_silent_meanwhile_takes_nothing_away(served: tuple[Guard, Console]) -> None:
    state = State([SEEN, OPEN])
    view = await view_of(served, state)
    with view.client:
        await view._look(Traces(state).look)
        shown = texts(view)
        state.silent = True
        await view._look(Traces(state).look)
    assert texts(view) == shown
    assert marked(view, "silent")
    assert not view._at_its_end


async def test_it_is_not_at_its_end_while_a_worker_that_may_know_more_is_silent(served: tuple[Guard, Console]) -> None:
    state = State([SEEN, DEEP])
    view = await view_of(served, state)
    with view.client:
        await view._look(Traces(state).look)
        assert view._at_its_end
        state.silent = True
        await view._look(Traces(state).look)
        assert not view._at_its_end


async def test_a_result_that_a_killed_worker_s_transaction_hides_is_looked_for_until_that_is_aborted(
    served: tuple[Guard, Console],
) -> None:
    Topics.hidden = round(served[1].settings.delivery.transaction_timeout_s) + 10  # looks, of a second each
    view = await view_of(served, State([SEEN, DEEP]))
    await view.watch()
    assert view._result is not None
    assert Topics.hidden == 0
    Topics.hidden = 2
    view = await view_of(served, State([{**SEEN, "outcome": "rule"}]))
    await view.watch()
    assert Topics.read_at[-4:] == ["seen", "written seen", "written seen", "written seen"]
    Topics.hidden = 1000  # retention has removed it
    view = await view_of(served, State([SEEN, DEEP]))
    await view.watch()
    assert view._result is None
    assert view.live.text.startswith("At its end")


async def test_a_look_that_finds_nothing_of_what_is_hidden_is_no_news(served: tuple[Guard, Console]) -> None:
    Topics.hidden = 2
    view, state = await view_of(served, State()), State([SEEN, DEEP])
    with view.client:
        assert [await view._look(Traces(state).look) for _ in range(4)] == [True, False, True, False]


async def test_a_decision_ends_it_and_one_that_is_taken_back_goes(served: tuple[Guard, Console]) -> None:
    waited = {**WAITS, "open": False}
    state = State([SEEN, REVIEW, WAITS], [SEEN, REVIEW, waited, DECIDED], [SEEN, REVIEW, WAITS])
    view = await view_of(served, state)
    await view.watch()
    assert state.asked == 2
    assert texts(view)[-2:] == ["review: waited for a person (task mood: no-answer)", "review: ada decided happy"]
    with view.client:
        await view._look(Traces(state).look)
    assert texts(view)[-1] == "review: waits for a person (task mood: no-answer)"
    assert not view._at_its_end


async def test_it_stops_when_nothing_is_new_for_long_and_goes_on_when_it_is_asked_to(
    served: tuple[Guard, Console], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "QUIET_S", 0.0)
    state = State([], [SEEN, DEEP])
    view = await view_of(served, state)
    await view.watch()
    assert view.live.text.startswith("Nothing new for 0 minutes")
    assert view.again.visible
    assert marked(view, "unknown")
    with view.client:
        view.begin()
    assert view._looking is not None
    await view._looking
    assert texts(view)[-1] == "classify: deep: happy (no light tier)"
    assert not view.again.visible


async def test_looking_ends_with_the_page(served: tuple[Guard, Console]) -> None:
    state = State([SEEN, OPEN])
    view = await view_of(served, state)
    with view.client:
        view.begin()
    looking = view._looking
    await until(lambda: state.asked > 1)
    view.client.delete()
    assert looking is not None
    with pytest.raises(asyncio.CancelledError):
        await looking


async def test_it_goes_on_when_no_worker_is_alive_for_a_moment(
    served: tuple[Guard, Console], monkeypatch: pytest.MonkeyPatch
) -> None:
    state = State([SEEN, DEEP])
    alive = list(state.alive)
    away = [True, True]
    monkeypatch.setattr(State, "alive", property(lambda _: [] if away and away.pop() else alive))
    view = await view_of(served, state)
    await view.watch()
    assert texts(view)[-1] == "classify: deep: happy (no light tier)"
    assert not marked(view, "failed")


async def test_pages_on_one_event_share_a_look_and_all_wait_for_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    state, rests = State([SEEN]), list[float]()
    monkeypatch.setattr(traces, "SHARED_S", 60.0)
    shared = Traces(state)
    state.go_on.clear()
    one, gone = asyncio.ensure_future(shared.look("e")), asyncio.ensure_future(shared.look("e"))
    other = asyncio.ensure_future(shared.look("other"))
    await asyncio.sleep(0)
    gone.cancel()
    state.go_on.set()
    assert (await one).bodies == (await shared.look("e")).bodies
    await other
    assert state.asked == 2

    async def sleep(seconds: float) -> None:
        rests.append(seconds)

    monkeypatch.setattr(traces, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))
    monkeypatch.setattr(traces, "time", SimpleNamespace(monotonic=lambda: 100.0))
    for _ in range(4):
        await shared.look_again("e")
    assert [rest * traces.LOOKS_PER_S for rest in rests] == [0, 1, 2, 3]


EXCHANGE = {
    "provider": "main", "model": "small", "system": "Say how <b>they</b> feel.", "message": '3: "[EMAIL_1]"',
    "answer": "happy", "finish_reason": "stop", "number": 3, "items": 20, "attempt": 2, "cut": False,
}  # fmt: skip


def said(view: View, mark: str) -> str:
    return "\n".join(each.text for of in marked(view, mark) for each in of.descendants() if isinstance(each, ui.label))


async def test_prompt_and_answer_are_shown_where_they_are_kept_and_that_it_was_one_of_many(
    served: tuple[Guard, Console],
) -> None:
    view = await view_of(served, State([SEEN, {**DEEP, "prompt": {"call_of": "", "exchange": EXCHANGE}}]))
    await view.watch()
    shown = said(view, "prompt")
    assert "for 20 events, of which this is number 3" in shown
    assert said(view, "prompt-message") == '3: "[EMAIL_1]"'
    assert said(view, "prompt-answer") == "happy"
    assert "isn't kept (classify.keep_prompts_s)" not in shown
    assert not marked(view, "prompt-of")


@pytest.mark.parametrize(
    ("call_of", "text"), [("a/b", "Answered with the call for event a/b"), ("", "Answered from the cache; which call")]
)
async def test_an_answer_without_a_call_of_its_own_says_where_it_is_from(
    served: tuple[Guard, Console], call_of: str, text: str
) -> None:
    view = await view_of(served, State([SEEN, {**DEEP, "prompt": {"call_of": call_of, "exchange": None}}]))
    await view.watch()
    (of,) = marked(view, "prompt-of")
    assert isinstance(of, ui.link | ui.label)
    assert of.text.startswith(text)
    assert not marked(view, "prompt")


async def test_nobody_whose_session_is_over_is_shown_a_prompt(
    served: tuple[Guard, Console], monkeypatch: pytest.MonkeyPatch
) -> None:
    view = await view_of(served, State([SEEN, {**DEEP, "prompt": {"call_of": "", "exchange": EXCHANGE}}]))
    served[1].sessions.end(view.visit.session)
    await view.watch()
    assert texts(view)
    assert not marked(view, "prompt")
