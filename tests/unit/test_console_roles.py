"""Handlers of pages: who may set them off is asked when they run, and what isn't audited isn't done."""

import json
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import AsyncMock

import pytest
from nicegui import Client, core

from app.web.console.app import shell
from app.web.console.audit import audit
from app.web.console.context import Console, Visit, visit_of
from app.web.console.guard import Guard
from app.web.console.roles import allowed
from tests.helpers.asgi import ListWriter
from tests.helpers.console import add_user, browser, console_app


@pytest.fixture
async def served() -> AsyncIterator[tuple[Guard, Console, ListWriter]]:
    app, console = console_app()
    console.writer = writer = ListWriter(console.settings)
    async with shell().router.lifespan_context(shell()):
        yield app, console, writer


async def page_of(app: Guard, console: Console, user: str) -> tuple[Client, Visit]:
    """A page that this user has open."""
    async with browser(app, console, user) as http:
        assert (await http.get("/settings")).status_code == 200
    client = list(Client.instances.values())[-1]
    visit = visit_of(client)
    assert visit is not None
    return client, visit


async def test_a_role_is_looked_at_when_the_handler_runs(served: tuple[Guard, Console, ListWriter]) -> None:
    app, console, _ = served
    client, _ = await page_of(app, console, "operator")
    done: list[str] = []
    handler = allowed("operator")(lambda: done.append("once"))
    with client:
        await handler()
        console.book.entries["operator"] = add_user(console, "operator", "operator").changed(role="viewer")
        await handler()
    assert done == ["once"]
    client, _ = await page_of(app, console, "viewer")
    with client:
        for role in ("operator", "reviewer", "admin"):
            await allowed(role)(lambda: done.append("twice"))()
        await allowed("viewer")(lambda: done.append("seen"))()
    assert done == ["once", "seen"]


async def test_what_is_done_is_audited_before_and_not_done_without(served: tuple[Guard, Console, ListWriter]) -> None:
    app, console, writer = served
    client, visit = await page_of(app, console, "admin")
    done: list[int] = []

    @allowed("operator")
    async def redrive(count: int) -> None:
        await audit(visit, "redrive", "dead-letter/3/17", {"count": count})
        done.append(count)

    with client:
        await redrive(3)
        writer.down = True
        await redrive(4)
    assert done == [3]
    ((topic, key, value),) = writer.aside
    assert (topic, key) == (console.settings.topic("console-audit"), b"admin")
    record = json.loads(value or b"")
    assert record["at_ms"] > 0
    assert record["detail"] == {"role": "admin", "count": 3}
    assert (record["user"], record["action"], record["target"]) == ("admin", "redrive", "dead-letter/3/17")


async def test_a_page_of_a_session_that_ended_hears_nothing_more(
    served: tuple[Guard, Console, ListWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    app, console, writer = served
    client, visit = await page_of(app, console, "admin")
    heard: list[Any] = []
    monkeypatch.setattr(client, "handle_event", heard.append)
    monkeypatch.setattr(core.sio, "rooms", lambda sid: [sid, client.id] if sid == "own" else [sid])
    client.tab_id = "connected"
    message = {"client_id": client.id, "id": 1}
    hear = core.sio.handlers["/"]["event"]
    hear("of another page", message)
    assert heard == []
    hear("own", message)
    assert heard == [message]
    await console.end_session(visit.session)
    assert writer.aside[-1][1].decode() == f"session:{visit.session.id}"
    hear("own", message)
    hear("own", {"client_id": "unknown"})
    hear("own", {})
    assert heard == [message]
    assert client.storage["closing"] is True


async def test_a_socket_shakes_hands_for_pages_of_its_own_session_alone(
    served: tuple[Guard, Console, ListWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    app, console, _ = served
    client, visit = await page_of(app, console, "admin")
    _, other = await page_of(app, console, "viewer")
    session = other.session.id
    monkeypatch.setattr(
        core.sio, "get_environ", lambda sid: {"asgi.scope": {"headrace_session": session}, "QUERY_STRING": ""}
    )
    monkeypatch.setattr(core.sio, "enter_room", entered := AsyncMock())
    hands = {"client_id": client.id, "tab_id": "t", "document_id": "d", "next_message_id": 0}
    shake = core.sio.handlers["/"]["handshake"]
    assert await shake("sid", hands) is False
    assert not client.has_socket_connection
    assert await shake("sid", hands | {"client_id": "unknown"}) is False
    session = visit.session.id
    assert await shake("sid", hands) is True
    assert client.has_socket_connection
    entered.assert_awaited_once()
    client.handle_disconnect("sid")


async def test_a_removed_user_s_pages_are_closed(served: tuple[Guard, Console, ListWriter]) -> None:
    import asyncio

    app, console, _ = served
    client, _ = await page_of(app, console, "reviewer")
    other, _ = await page_of(app, console, "viewer")
    sweep = asyncio.create_task(console._sweep())
    await asyncio.sleep(0)
    assert not client.storage.get("closing")
    sweep.cancel()
    del console.book.entries["reviewer"]
    sweep = asyncio.create_task(console._sweep())
    await asyncio.sleep(0)
    assert client.storage.get("closing") is True
    assert not other.storage.get("closing")
    sweep.cancel()
