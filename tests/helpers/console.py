"""The console's application in this process, with users and without Kafka."""

import time
from typing import Any

import httpx

from app.settings import Settings, load
from app.web.console.app import served
from app.web.console.context import Console
from app.web.console.guard import Guard
from app.web.console.sessions import COOKIE
from app.web.users import ROLES, Role, User
from tests.helpers.asgi import ListWriter

__all__ = ["add_user", "browser", "console_app", "settings_with"]

ORIGIN = "http://console"


def settings_with(gateway: dict[str, Any] | None = None, **console: Any) -> Settings:
    """The settings, with some of the console's and the gateway's changed."""
    tree = load()
    return tree.model_copy(
        update={
            "console": tree.console.model_copy(update=console),
            "gateway": tree.gateway.model_copy(update=gateway or {}),
        }
    )


def console_app(settings: Settings | None = None) -> tuple[Guard, Console]:
    """The application with one user a role, called as it, and all users known."""
    console = Console(settings or settings_with(), ORIGIN)
    console.writer = ListWriter(console.settings)
    console.users.current_at = time.monotonic() + 3600
    for role in ROLES:
        add_user(console, role, role)
    return served(console), console


def add_user(console: Console, name: str, role: Role, password: str = "") -> User:
    user = User(name=name, role=role, password=password, created_ms=0, changed_ms=0)
    console.book.entries[name] = user
    return user


def browser(app: Guard, console: Console, user: str = "", **headers: str) -> httpx.AsyncClient:
    """A client that is logged in as a user; empty: that isn't."""
    cookies = {COOKIE: console.sessions.begin(console.book.entries[user])[1]} if user else {}
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    return httpx.AsyncClient(
        transport=transport, base_url=ORIGIN, cookies=cookies, headers={"accept": "text/html", **headers}
    )
