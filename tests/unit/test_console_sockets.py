"""Sockets of pages, with a real server and client: each speaks for the one page it was opened for."""

import asyncio
import socket
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
import socketio
import uvicorn
from nicegui import Client

from app.web.console.app import shell
from app.web.console.context import Console
from app.web.console.guard import Guard
from app.web.server import Socket
from tests.helpers.console import browser, console_app


@pytest.fixture
async def served() -> AsyncIterator[tuple[Guard, Console, int]]:
    app, console = console_app()
    listening = socket.create_server(("127.0.0.1", 0))
    async with shell().router.lifespan_context(shell()):
        server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None, ws=Socket))
        task = asyncio.create_task(server.serve([listening]))
        yield app, console, listening.getsockname()[1]
        server.should_exit = True
        await task


class Page:
    """A page that a user has open, and its socket."""

    def __init__(self, app: Guard, console: Console, port: int, user: str) -> None:
        self._app, self._console, self._port, self._user = app, console, port, user
        self.socket = socketio.AsyncClient(reconnection=False)

    async def open(self) -> Client:
        async with browser(self._app, self._console, self._user, host=f"127.0.0.1:{self._port}") as http:
            cookie = http.cookies["headrace_session"]
            self._cookie = f"headrace_session_{self._port}={cookie}"
            assert (await http.get("/settings", headers={"cookie": self._cookie})).status_code == 200
        return list(Client.instances.values())[-1]

    def shake(self, client: Client) -> dict[str, Any]:
        return {"client_id": client.id, "tab_id": str(uuid.uuid4()), "document_id": "d", "next_message_id": 0}

    async def connect(self, **query: object) -> None:
        asked = "&".join(f"{name}={value}" for name, value in query.items())
        await self.socket.connect(
            f"http://127.0.0.1:{self._port}?{asked}", socketio_path="/_nicegui_ws/socket.io",
            headers={"Cookie": self._cookie}, transports=["websocket"], wait_timeout=10,
        )  # fmt: skip


async def test_a_socket_speaks_for_the_page_alone_that_it_shook_hands_for(
    served: tuple[Guard, Console, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    admin, viewer = Page(*served, "admin"), Page(*served, "viewer")
    page, other = await admin.open(), await viewer.open()
    heard: list[str] = []
    for client, name in ((page, "admin"), (other, "viewer")):
        monkeypatch.setattr(client, "handle_event", lambda _, name=name: heard.append(name))
    await admin.connect(implicit_handshake="true", **admin.shake(page))
    await viewer.connect()
    assert await viewer.socket.call("handshake", viewer.shake(page), timeout=10) is False
    assert await viewer.socket.call("handshake", viewer.shake(other), timeout=10) is True
    await viewer.socket.emit("event", {"client_id": page.id, "id": 1})
    await viewer.socket.emit("event", {"client_id": other.id, "id": 1})
    await admin.socket.emit("event", {"client_id": page.id, "id": 1})
    async with asyncio.timeout(10):
        while not {"admin", "viewer"} <= set(heard):
            await asyncio.sleep(0.01)
    assert sorted(heard) == ["admin", "viewer"]
    for each in (admin, viewer):
        await each.socket.disconnect()
