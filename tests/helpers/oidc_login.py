"""A console that an identity provider's people may use, and a browser that goes there and back."""

import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import httpx

from app.settings_web import OidcSettings
from app.web.console.context import Console
from app.web.console.guard import Guard
from app.web.console.sessions import COOKIE, Session
from tests.helpers.asgi import ListWriter
from tests.helpers.console import console_app, settings_with
from tests.helpers.oidc import CLIENT, SECRET, Provider

__all__ = [
    "PUBLIC",
    "at",
    "at_provider",
    "audited",
    "console_of",
    "cookies",
    "gone_there",
    "hurry",
    "log_in",
    "session_of",
]

PUBLIC = "http://127.0.0.1:8080"


def console_of(provider: Provider, **oidc: Any) -> tuple[Guard, Console]:
    """A console that lets the provider's people in."""
    given = {
        "issuer": provider.issuer, "client_id": CLIENT, "client_secret": SECRET, "public_url": PUBLIC,
        "roles": {"ops": "operator"}, **oidc,
    }  # fmt: skip
    return console_app(settings_with(oidc=OidcSettings(**given)))


@contextlib.asynccontextmanager
async def at(app: Guard, **headers: str) -> AsyncIterator[httpx.AsyncClient]:
    """A browser at the console's public address."""
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(
        transport=transport, base_url=PUBLIC, headers={"accept": "text/html", **headers}
    ) as http:
        yield http


async def at_provider(address: str) -> str:
    """What a browser does there; where it is sent back to."""
    async with aiohttp.ClientSession() as there, there.get(address, allow_redirects=False) as reply:
        assert reply.status == 302, await reply.text()
        return reply.headers["location"]


async def gone_there(http: httpx.AsyncClient, **query: str) -> str:
    """Begins a login, and comes as far as the way back."""
    reply = await http.get("/oidc/login", params=query)
    assert reply.status_code == 303, reply.text
    return await at_provider(reply.headers["location"])


async def log_in(http: httpx.AsyncClient, **query: str) -> httpx.Response:
    return await http.get(await gone_there(http, **query))


def session_of(console: Console, reply: httpx.Response) -> Session | None:
    """The session that a reply begins; None: it begins none."""
    for cookie in reply.headers.get_list("set-cookie"):
        name, _, rest = cookie.partition("=")
        if name.startswith(COOKIE):
            return console.sessions.of(rest.split(";")[0])
    return None


def cookies(reply: httpx.Response) -> Iterator[tuple[str, set[str]]]:
    for cookie in reply.headers.get_list("set-cookie"):
        first, *more = cookie.split(";")
        yield first.split("=")[0], {part.strip() for part in more}


def audited(console: Console) -> list[dict[str, Any]]:
    assert isinstance(console.writer, ListWriter)
    return [json.loads(value or b"") for _, _, value in console.writer.aside]


def hurry(app: Guard) -> None:
    """From now on the provider has a fifth of a second."""
    assert app._oidc is not None
    asked = app._oidc._provider
    asked._settings = asked._settings.model_copy(update={"timeout_s": 0.2})
