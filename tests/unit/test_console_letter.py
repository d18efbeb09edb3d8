"""One dead letter on its page: what is sent back, and who may."""

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from nicegui import ui

from agents.redrive import Tally, targets_of
from app.logic.dead import dead_headers
from app.logic.redrive import Selection, examine
from app.settings import load
from app.web.console.app import shell
from app.web.console.context import Console, Visit
from app.web.console.guard import Guard
from app.web.console.pages.letter import LetterPanel, edited_value
from app.web.letters import Letters, Opened
from models.events import Bad, Received
from tests.helpers.asgi import ListWriter
from tests.helpers.console import console_app
from tests.unit.test_console_roles import page_of


def opened(value: bytes | None, topic: str = "raw-events", reason: str = "bad-decision") -> Opened:
    raw = Received(topic, 0, 3, 1000, b"k", value)
    headers = dead_headers(raw, Bad(reason=reason, field=topic, message="<b>m</b>"), "review")
    letter = examine(Received("dead-letter", 1, 7, 5000, b"k", value, headers), targets_of(load()))
    return Opened(letter=letter, headers=headers, marker=None)


class Fake(Letters):
    """Holds one, and keeps what was to be sent."""

    def __init__(self, console: Console, held: Opened) -> None:
        super().__init__(console.settings)
        self.held, self.sent = held, list[tuple[Selection, Mapping[str, bytes | None]]]()

    async def open(self, position: str) -> Opened | None:
        return self.held if position == self.held.letter.position else None

    async def redrive(self, selection: Selection, **rules: Any) -> Tally:
        self.sent.append((selection, rules["edited"]))
        return Tally()


@pytest.fixture
async def served(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Guard, Console, ListWriter]]:
    app, console = console_app()
    console.writer = writer = ListWriter(console.settings)

    async def yes(*asked: Any) -> bool:
        return True

    monkeypatch.setattr("app.web.console.pages.letter.confirmed", yes)
    async with shell().router.lifespan_context(shell()):
        yield app, console, writer


async def shown(served: tuple[Guard, Console, ListWriter], user: str, held: Opened) -> tuple[LetterPanel, Fake, Visit]:
    """The panel with this dead letter, as a user sees it."""
    app, console, _ = served
    client, visit = await page_of(app, console, user)
    letters = console.letters = Fake(console, held)

    async def changed() -> None: ...

    with client:
        panel = LetterPanel(visit, changed)
        await panel.open("1/7")
    return panel, letters, visit


def marks(panel: LetterPanel) -> set[str]:
    return {str(each.props.get("data-mark", "")) for each in panel.card.descendants()} - {""}


def editors(panel: LetterPanel) -> list[Any]:
    return [each for each in panel.card.descendants() if isinstance(each, ui.textarea)]


@pytest.mark.parametrize(
    ("value", "typed", "sent"),
    [
        (b'{"a": 1}', '{"a": 1}', None),
        (b"a\r\nb\rc", "a\nb\nc", None),  # as a browser gives it back
        (b"a\r\nb\rc", "a\r\nb\rc", None),  # as it stands where nobody typed
        (b"a\r\nb", "a\nb!", b"a\r\nb!"),
        (b"a\r\nb\nc", "a\nb\nc!", b"a\nb\nc!"),
        (None, "", None),
        (None, "{}", b"{}"),
        (b"{}", "", b""),
        (b"{}", "\ud83d", b"?"),
    ],
)
def test_only_what_was_changed_is_sent_as_changed(value: bytes | None, typed: str, sent: bytes | None) -> None:
    assert edited_value(opened(value), typed) == sent


@pytest.mark.parametrize(("user", "may"), [("viewer", False), ("reviewer", False), ("operator", True), ("admin", True)])
async def test_only_who_operates_can_edit_send_and_discard(served: Any, user: str, may: bool) -> None:
    panel, _, _ = await shown(served, user, opened(b"{}"))
    assert ("redrive" in marks(panel), "discard" in marks(panel), bool(editors(panel))) == (may, may, may)


async def test_bytes_that_are_no_text_are_shown_and_not_edited(served: Any) -> None:
    panel, _, _ = await shown(served, "operator", opened(b"\xff<script>"))
    assert editors(panel) == []
    texts = [each.text for each in panel.card.descendants() if isinstance(each, ui.label)]
    assert "\\xff<script>" in texts
    assert any("ff 3c 73 63 72 69 70 74 3e" in text for text in texts)


async def test_a_decision_is_sent_only_by_who_may_decide_too(served: Any) -> None:
    held = opened(b"{}", topic="review-decisions")
    _, _, writer = served
    panel, letters, _ = await shown(served, "operator", held)
    assert "redrive" not in marks(panel)
    with panel.card.client:
        await panel._redrive(held, b'{"category": "mine"}')
    assert (letters.sent, writer.aside) == ([], [])
    panel, letters, _ = await shown(served, "admin", held)
    with panel.card.client:
        await panel._redrive(held, b'{"category": "mine"}')
    assert letters.sent == [(Selection(ids={"1/7"}), {"1/7": b'{"category": "mine"}'})]
    assert [key for _, key, _ in writer.aside] == [b"admin", b"admin"]


@pytest.mark.parametrize(
    ("topic", "reason", "may"),
    [
        ("raw-events", "bad-time", True),
        ("model-requests", "stage-failed", True),
        ("ai-results", "bad-result", False),
        ("ai-results", "output-too-large", False),
        ("model-requests", "output-too-large", False),
        ("agg-events", "output-too-large", False),
        ("budget", "bad-lease", False),
    ],
)
async def test_what_a_stage_made_is_sent_as_it_is_and_never_made_up(
    served: Any, topic: str, reason: str, may: bool
) -> None:
    panel, _, _ = await shown(served, "admin", opened(b"{}", topic, reason))
    assert "redrive" in marks(panel)
    assert bool(editors(panel)) is may


async def test_what_became_of_it_is_audited_too(served: Any) -> None:
    held = opened(b"{}")
    panel, _, _ = await shown(served, "operator", held)
    with panel.card.client:
        await panel._redrive(held, None)
    actions = [json.loads(value or b"")["action"] for _, _, value in served[2].aside]
    assert actions == ["redrive", "redrive-done"]


async def test_what_cannot_be_audited_is_not_sent(served: Any) -> None:
    held = opened(b"{}")
    panel, letters, _ = await shown(served, "operator", held)
    served[2].down = True
    with panel.card.client:
        await panel._redrive(held, None)
    assert letters.sent == []
