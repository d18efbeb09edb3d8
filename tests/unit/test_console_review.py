"""The Review page without a browser: what is written, in which order, and what happens when it can't be."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from nicegui import Client, ui

from app.web.announce import Worker
from app.web.console.app import shell
from app.web.console.context import Console
from app.web.console.desk import CLAIM_S, SETTLES_S, SHARED_S, Desk
from app.web.console.guard import Guard
from app.web.console.looks import Looks
from app.web.console.pages.decisions import UNDO_KEPT
from app.web.console.pages.review import FRESH_S, LOOKS_AGAIN_S, View
from app.web.console.roles import allowed
from app.web.workers import Answer, Workers
from tests.helpers.asgi import ListWriter
from tests.helpers.console import console_app
from tests.unit.test_console_roles import page_of


class Queue(Workers):
    """One worker, in whose queue these events wait."""

    def __init__(self, *ids: str) -> None:
        self.ids, self.asked = list(ids), list[str]()
        self.decided: dict[str, dict[str, Any]] = {}
        """What State has of decisions."""
        self.rows: list[Any] | None = None
        """What State has of any review, instead: nothing while it is being restored."""
        self.down = False
        """It fails when it is asked for State."""
        self.answers = asyncio.Event()
        self.answers.set()

    @property
    def alive(self) -> list[Worker]:
        return [Worker(id="w", url="http://w", host="h", pid=1, role="all", started_ms=1, beat_ms=1)]

    async def _ask(self, worker: Worker, path: str, params: dict[str, str]) -> Answer:
        self.asked.append(f"{path} {params.get('task', '')}".strip())
        await self.answers.wait()
        if path != "/reviews":
            found = [{"value": {"decision": self.decided.get(params["key"])}}]
            body: Any = {"rows": found if self.rows is None else self.rows}
            return Answer(worker, 500 if self.down else 200, json.dumps(body).encode())
        rows = [
            {
                "at_ms": n,
                "review": {
                    "event_id": event_id, "event_type": "note", "event_time_ms": 1, "entity": "u", "task": "gone", "text": "hm",
                    "categories": ["happy", "unhappy"], "cause": "no-answer", "attempts": 1, "created_ms": n,
                    "source": {"topic": "raw-events", "partition": 0, "offset": n},
                },
            }
            for n, event_id in enumerate(self.ids)
        ]  # fmt: skip
        body = {"reviews": rows, "waiting": len(rows), "restoring": []}
        return Answer(worker, 200, json.dumps(body).encode())


class Served:
    """A console whose writer keeps what is written, and the pages of its users."""

    def __init__(self, app: Guard, console: Console) -> None:
        self.app, self.console = app, console
        self.writer = ListWriter(console.settings)
        self.writer.partitions = lambda topic: 1  # type: ignore[method-assign]  # no Kafka tells it
        console.writer, self.queue = self.writer, Queue("e0", "e1", "e2")
        console.desk = Desk(console.settings, self.queue, self.writer)

    async def page(self, user: str) -> tuple[Client, View]:
        client, visit = await page_of(self.app, self.console, user)
        with client:
            view = View(visit)
            view.draw()
            await view.refill()
        return client, view

    def slow_kafka(self) -> asyncio.Event:
        """Nothing is written before it is set."""
        kafka, send = asyncio.Event(), self.writer.send_aside

        async def slow(*record: Any) -> None:
            await kafka.wait()
            await send(*record)

        self.writer.send_aside = slow  # type: ignore[method-assign]  # as if Kafka took its time
        return kafka

    @property
    def written(self) -> list[tuple[str, Any]]:
        """Topic, and what is told of each record."""
        found = []
        for topic, _, value in self.writer.aside:
            record = json.loads(value or b"null")
            told = record.get("action") or ("undo" if record.get("undo") else record["category"])
            found.append((topic, f"{told} {record.get('target') or record['event_id']}"))
        return found


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    app, console = console_app()
    async with shell().router.lifespan_context(shell()):
        yield Served(app, console)


def key(name: str, *, down: bool = True, ctrl: bool = False) -> Any:
    return SimpleNamespace(
        action=SimpleNamespace(keydown=down), key=SimpleNamespace(name=name),
        modifiers=SimpleNamespace(ctrl=ctrl, alt=False, meta=False),
    )  # fmt: skip


async def test_a_decision_is_audited_before_it_is_written_and_the_next_event_is_shown_before_both(
    served: Served,
) -> None:
    client, view = await served.page("reviewer")
    kafka = served.slow_kafka()
    assert view.now is not None
    with client:
        deciding = asyncio.ensure_future(view._pressed(key("2")))
        await asyncio.sleep(0)
        assert (view.now.event_id, served.writer.aside) == ("e1", [])
        kafka.set()
        await deciding
    assert served.written == [("console-audit", "decide review/e0"), ("review-decisions", "unhappy e0")]
    decision = json.loads(served.writer.aside[1][2] or b"")
    assert (decision["reviewer"], decision["category"]) == ("reviewer", "unhappy")


async def test_undo_at_once_is_written_behind_the_decision_and_shows_the_event_again(served: Served) -> None:
    client, view = await served.page("reviewer")
    with client:
        await asyncio.gather(view._pressed(key("1")), view._pressed(key("u")), view._pressed(key("u")))
    assert served.written == [
        ("console-audit", "decide review/e0"), ("review-decisions", "happy e0"),
        ("console-audit", "undo review/e0"), ("review-decisions", "undo e0"),
    ]  # fmt: skip
    assert view.now is not None
    assert (view.now.event_id, [each.event_id for each in view.ahead][:2], view.decisions.done) == (
        "e0",
        ["e1", "e2"],
        [],
    )


async def test_what_cannot_be_audited_is_not_decided_and_waits_again(served: Served) -> None:
    client, view = await served.page("reviewer")
    served.writer.down = True
    with client:
        await view._pressed(key("1"))
    assert (served.writer.aside, view.decisions.done) == ([], [])
    rows = (await served.console.desk.waiting("other")).reviews
    assert [row["review"]["event_id"] for row in rows] == ["e0", "e2"]  # e1 is what the page shows now


async def test_keys_that_mean_something_else_decide_nothing(served: Served) -> None:
    client, view = await served.page("reviewer")
    with client:
        for event in (key("1", down=False), key("1", ctrl=True), key("9"), key("Enter"), key("g"), key("1")):
            await view._pressed(event)  # 1 right after g leads to another page
        await view._pressed(key("s"))
    assert served.writer.aside == []
    assert view.now is not None
    assert view.now.event_id == "e1"
    assert view.later == {"e0"}


@pytest.mark.parametrize("user", ["viewer", "operator"])
async def test_who_may_not_review_decides_nothing_and_takes_nothing_from_others(served: Served, user: str) -> None:
    client, view = await served.page(user)
    assert view.now is not None
    with client:
        await allowed("reviewer")(view._decider(view.now, "happy"))()
        await allowed("reviewer")(view._pressed)(key("1"))
    assert served.writer.aside == []
    _, other = await served.page("reviewer")
    assert other.now is not None
    assert other.now.event_id == "e0"


def pass_time(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """The desk's clock goes on by so much."""
    later = time.monotonic() + seconds
    monkeypatch.setattr("app.web.console.desk.time", SimpleNamespace(monotonic=lambda: later))


DECISION = {"event_id": "e0", "category": "happy", "reviewer": "bea", "decided_ms": 7}


async def test_who_looks_for_long_loses_an_event_that_somebody_else_took(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, view = await served.page("reviewer")
    pass_time(monkeypatch, CLAIM_S + 1)
    _, other = await served.page("admin")
    assert other.now is not None
    assert other.now.event_id == "e0"
    with client:
        await view._pressed(key("1"))
    assert (served.writer.aside, view.decisions.done) == ([], [])
    assert view.now is not None
    assert view.now.event_id == "e1"


@pytest.mark.parametrize(("decided", "written"), [(DECISION, 0), (None, 2)])
async def test_an_event_looked_at_for_long_is_decided_unless_somebody_did(
    served: Served, monkeypatch: pytest.MonkeyPatch, decided: dict[str, Any] | None, written: int
) -> None:
    client, view = await served.page("reviewer")
    pass_time(monkeypatch, CLAIM_S + 1)
    if decided is not None:
        served.queue.decided["e0"] = decided
    with client:
        await view._pressed(key("1"))
    assert len(served.writer.aside) == written
    assert view.now is not None
    assert view.now.event_id == "e1"


@pytest.mark.parametrize("rows", [None, []])
async def test_nothing_is_decided_while_it_is_not_known_whether_somebody_did(
    served: Served, monkeypatch: pytest.MonkeyPatch, rows: list[Any] | None
) -> None:
    client, view = await served.page("reviewer")
    pass_time(monkeypatch, CLAIM_S + 1)
    served.queue.rows, served.queue.down = rows, rows is None
    with client:
        await view._pressed(key("1"))
    assert served.writer.aside == []
    assert view.now is not None
    assert view.now.event_id == "e0"


@pytest.mark.parametrize("theirs", [False, True])
async def test_a_late_undo_takes_back_what_was_decided_here_and_nothing_newer(
    served: Served, monkeypatch: pytest.MonkeyPatch, theirs: bool
) -> None:
    client, view = await served.page("reviewer")
    with client:
        await view._pressed(key("1"))
        served.queue.decided["e0"] = DECISION if theirs else json.loads(served.writer.aside[1][2] or b"")
        pass_time(monkeypatch, SETTLES_S + 1)
        await view._pressed(key("u"))
    assert [told for _, told in served.written[2:]] == ([] if theirs else ["undo review/e0", "undo e0"])
    assert [done.undoing for done in view.decisions.done] == ([False] if theirs else [])


async def test_keys_are_the_dialog_s_while_one_is_open(served: Served) -> None:
    client, view = await served.page("reviewer")
    with client:
        with ui.dialog(value=True) as dialog:
            ui.label("keys")
        await view._pressed(key("1"))
        assert served.writer.aside == []
        dialog.close()
        await view._pressed(key("1"))
    assert len(served.writer.aside) == 2


async def test_another_task_that_is_chosen_meanwhile_is_what_is_fetched(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, view = await served.page("reviewer")
    served.queue.asked.clear()
    served.queue.answers.clear()
    with client:
        filling = asyncio.ensure_future(view.refill())
        await asyncio.sleep(0)
        monkeypatch.setattr(view, "task", SimpleNamespace(value="mood"))
        await view._again()
        assert (view.now, view.waiting) == (None, None)
        served.queue.answers.set()
        await filling
    assert served.queue.asked == ["/reviews", "/reviews mood"]
    assert view.now is not None


async def test_what_comes_next_is_fetched_again_before_others_may_have_decided_it(served: Served) -> None:
    client, view = await served.page("reviewer")
    served.queue.asked.clear()
    with client:
        await view._look()
        assert served.queue.asked == []
        view._fetched -= FRESH_S
        served.queue.ids = ["e0", "e2"]
        served.console.desk._looks = Looks(SHARED_S)
        await view._look()
    assert [each.event_id for each in view.ahead] == ["e2"]
    assert FRESH_S + LOOKS_AGAIN_S + SHARED_S < SETTLES_S


async def test_decisions_that_leave_the_list_before_kafka_took_them_are_written_too(served: Served) -> None:
    client, view = await served.page("reviewer")
    kafka = served.slow_kafka()
    assert view.now is not None
    ids = [f"many-{n}" for n in range(UNDO_KEPT + 5)]
    with client:
        taken = [
            view.decisions.take(msgspec.structs.replace(view.now, event_id=each), "happy", None, "") for each in ids
        ]
        writing = asyncio.gather(*map(view.decisions.write, taken))
        await asyncio.sleep(0)
        kafka.set()
        await writing
    assert [told for topic, told in served.written if topic == "review-decisions"] == [f"happy {each}" for each in ids]
    assert [done.stored for done in view.decisions.done] == [True] * UNDO_KEPT


async def test_a_note_that_ends_within_a_character_is_kept_as_far_as_it_is_text(served: Served) -> None:
    client, view = await served.page("reviewer")
    with client:
        view.note.value = "so \ud83d"
        await view._pressed(key("1"))
    assert json.loads(served.writer.aside[1][2] or b"")["note"] == "so ?"


async def test_who_only_looks_does_not_see_what_others_have_decided_for_ever(served: Served) -> None:
    client, view = await served.page("viewer")
    assert view.now is not None
    served.queue.ids = ["e1", "e2"]
    with client:
        await view.refill()
    assert view.now.event_id == "e1"
