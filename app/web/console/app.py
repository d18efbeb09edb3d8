"""Builds what `headrace web` serves: gateway and console in one process, or the console alone. One of them a process."""

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from nicegui import Client, core, ui
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from app.errors import SettingsError
from app.settings import Settings
from app.web.console.context import Console, close_page, visit_of
from app.web.console.guard import Guard
from app.web.console.layout import ConsolePage, frame
from app.web.console.pagelist import PAGES, Page
from app.web.gateway.api import build
from app.web.gateway.context import Gateway
from app.web.loops import running

__all__ = ["both", "console_alone", "served", "shell"]

log = logging.getLogger("headrace.web")

GATEWAY_PATHS = ("/healthz", "/readyz", "/metrics", "/openapi.json")
RECONNECT_S = 30.0
"""A page whose connection broke for less goes on where it was; NiceGUI's 3 s is less than a proxy's restart."""
LINK_POLL_S = 0.1


def both(settings: Settings, url: str, say: Callable[[str], None]) -> tuple[ASGIApp, Gateway]:
    """Gateway and console.

    Raises:
        SettingsError: the console may not be served so.
    """
    gateway_app = build(settings)
    gateway: Gateway = gateway_app.state.gateway
    console = _console(settings, url, gateway)
    pages = served(console)

    @contextlib.asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        async with gateway_app.router.lifespan_context(gateway_app), _running(console, say):
            yield

    return Split(gateway_app, GATEWAY_PATHS, pages, Starlette(lifespan=lifespan)), gateway


def console_alone(settings: Settings, url: str, say: Callable[[str], None]) -> tuple[ASGIApp, Console]:
    """The console, with `/healthz` and `/readyz`.

    Raises:
        SettingsError: it may not be served so.
    """
    console = _console(settings, url, None)

    @contextlib.asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        async with contextlib.aclosing(console.workers), _running(console, say):
            yield

    async def healthz(_: Request) -> JSONResponse:
        return JSONResponse({"ok": True})

    async def readyz(_: Request) -> JSONResponse:
        why = console.not_ready
        return JSONResponse({"ready": not why, "why": why}, HTTPStatus.SERVICE_UNAVAILABLE if why else HTTPStatus.OK)

    operations = Starlette(lifespan=lifespan, routes=[Route("/healthz", healthz), Route("/readyz", readyz)])
    return Split(operations, ("/healthz", "/readyz"), served(console), operations), console


class Split:
    """Leads a request to the gateway or to the console by its path, at next to no cost for the gateway."""

    def __init__(self, gateway: ASGIApp, paths: tuple[str, ...], console: ASGIApp, lifespan: ASGIApp) -> None:
        self._gateway, self._paths, self._console, self._lifespan = gateway, paths, console, lifespan

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            chosen = self._lifespan
        else:
            path: str = scope["path"]
            chosen = self._gateway if path.startswith("/v1") or path in self._paths else self._console
        await chosen(scope, receive, send)


def _console(settings: Settings, url: str, gateway: Gateway | None) -> Console:
    console = Console(settings, url, gateway)
    if settings.console.secret.get_secret_value():
        return console
    if not console.loopback:
        raise SettingsError(
            f"gateway.host {settings.gateway.host} is reachable by others, so the console needs HEADRACE_CONSOLE__SECRET "
            "(32 characters or more; `openssl rand -hex 32` makes one); or serve `--only gateway`, or use 127.0.0.1"
        )
    log.info("console: no HEADRACE_CONSOLE__SECRET, so logins end with this process")
    return console


def served(console: Console) -> Guard:
    """NiceGUI's application with all pages, behind the guard."""
    return Guard(console, shell())


@functools.cache
def shell() -> FastAPI:
    """NiceGUI's application with all pages: there is one in a process."""
    outer = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    for page in PAGES:
        _route(page)
    _bind_sockets()
    ui.run_with(
        outer, title="headrace", binding_refresh_interval=None, reconnect_timeout=RECONNECT_S, show_welcome_message=False,
        dark=None, favicon="🏁",
    )  # fmt: skip
    core.sio.eio.cors_allowed_origins = []  # no header lets other origins read; the guard refuses them
    return outer


def _route(page: Page) -> None:
    async def show(client: Client) -> None:
        visit = visit_of(client)
        assert visit is not None  # the guard makes one, or refuses
        with frame(visit, page):
            await page.build(visit)

    ConsolePage(page.path)(show)


def _bind_sockets() -> None:
    """Lets a socket speak for the one page that it shook hands for, and that be a page of its own session.

    NiceGUI (3.18) takes the id of the page in each message for it, whichever socket the message comes from.
    """
    handlers = core.sio.handlers["/"]
    core.sio.on("handshake", functools.partial(_shake_hands, handlers["handshake"]))
    for name in ("event", "javascript_response", "ack", "log"):
        core.sio.on(name, functools.partial(_from_page, handlers[name]))


async def _shake_hands(handle: Callable[[str, Any], Awaitable[bool]], sid: str, message: dict[str, Any]) -> bool:
    client = Client.instances.get(str(message.get("client_id")))
    visit = visit_of(client) if client else None
    own = core.sio.get_environ(sid)["asgi.scope"].get("headrace_session")  # the guard knows it by the cookie
    return visit is not None and visit.session.id == own and await handle(sid, message)


def _from_page(handle: Callable[[str, Any], None], sid: str, message: dict[str, Any]) -> None:
    """What a page's browser sends, for pages whose session still holds; roles are checked by each handler."""
    client = Client.instances.get(str(message.get("client_id")))
    visit = visit_of(client) if client else None
    if client is None or visit is None or client.id not in core.sio.rooms(sid):
        return
    if visit.console.sessions.role(visit.session) is not None:
        handle(sid, message)
    elif visit.console.sessions.over(visit.session):
        close_page(client)


@contextlib.asynccontextmanager
async def _running(console: Console, say: Callable[[str], None]) -> AsyncIterator[None]:
    async with shell().router.lifespan_context(shell()), running([*console.loops(), _show_link(console, say)]):
        yield


async def _show_link(console: Console, say: Callable[[str], None]) -> None:
    """Says where the console is, and with which link the first person gets in; once users are known to be or not to be."""
    while not console.users_known:  # noqa: ASYNC110  # no event tells that Kafka is there and current
        await asyncio.sleep(LINK_POLL_S)
    if console.settings.console.token.get_secret_value():
        return  # who set it shows it
    if console.link_open:
        say(f"no console users yet; this link lets one browser in as admin: {console.url}/?token={console.link_token}")
    elif console.nobody_logs_in:
        say(f"console at {console.url}; nobody can log in yet: headrace users add NAME --role admin")
    else:
        say(f"console at {console.url}")
