"""The parts of the console that its pages share, and the one who looks at a page."""

import asyncio
import contextvars
import functools
import logging
import secrets
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from aiokafka.errors import KafkaError
from nicegui import Client, context
from starlette.requests import Request

from app.settings import Settings
from app.settings_origins import in_force
from app.settings_web import LOOPBACK
from app.web.console import show
from app.web.console.attempts import Attempts
from app.web.console.desk import Desk
from app.web.console.sessions import Session, Sessions
from app.web.console.snapshots import Snapshots
from app.web.console.texts import Language, not_allowed, text
from app.web.console.traces import Traces
from app.web.follow import Follower
from app.web.gateway.context import Gateway
from app.web.letters import Letters
from app.web.users import Role, UserBook
from app.web.workers import Workers
from app.web.writer import Writer

__all__ = ["Console", "Visit", "close_page", "visit_now", "visit_of", "visiting", "zone_of"]

log = logging.getLogger("headrace.web")

SWEEP_S = 1.0
TIDY_S = 5.0
"""Ends of sessions that couldn't be written are tried again this often."""


class Console:
    """The parts, without anything that runs yet.

    Args:
        settings: the tree.
        url: where this process listens.
        gateway: of the same process; its Kafka clients are shared.
    """

    def __init__(self, settings: Settings, url: str, gateway: Gateway | None = None) -> None:
        self.settings, self.url = settings, url
        self.in_force = in_force(settings)
        self.book = UserBook()
        self.users = Follower(settings, settings.topic("console-users"), self.book)
        self.sessions = Sessions(settings.console, self.book, lambda: self.users_known, lambda: self.users.was_read)
        self._unsaved: dict[str, bytes] = {}
        """Ends of sessions that Kafka hasn't acked yet: key and value of their records."""
        self.attempts = Attempts(settings.console.login_failures, settings.console.login_wait_s)
        self.link_attempts = Attempts(settings.console.login_failures, settings.console.login_wait_s)
        """Apart from logins: whoever guesses links must not keep users from their passwords."""
        self.oidc_attempts = Attempts(settings.console.login_failures, settings.console.login_wait_s)
        """Apart from both: of logins by the identity provider. Who it is isn't known before, so the address is the name too."""
        self.writer = gateway.writer if gateway else Writer(settings)
        self.workers = gateway.workers if gateway else Workers(settings)
        self.letters = Letters(settings)
        self.desk = Desk(settings, self.workers, self.writer)
        self.traces = Traces(self.workers)
        self._announced = Follower(settings, settings.topic("workers"), self.workers)
        self._shared = gateway is not None
        self.snapshots = Snapshots(settings, self.workers, self.writer)
        self.link_token = settings.console.token.get_secret_value() or secrets.token_urlsafe(32)
        self.link_used = False
        self.draining = False

    @property
    def loopback(self) -> bool:
        return self.settings.gateway.host in LOOPBACK

    def secure_cookies(self, https: bool) -> bool:
        """Whether browsers may send cookies over HTTPS alone; `https`: this one came so."""
        wanted = self.settings.console.secure_cookies
        return wanted == "on" or (wanted == "auto" and (https or not self.loopback))

    @property
    def not_ready(self) -> str:
        """Why logins would fail now; empty when they wouldn't."""
        if self.draining:
            return "stopping"
        if not self.writer.reachable:
            return "Kafka isn't reachable"
        return "" if self.users_known else "users aren't known"

    @property
    def users_known(self) -> bool:
        """Else nobody new gets in, and nobody may do more than look."""
        return self.users.current

    @property
    def nobody_logs_in(self) -> bool:
        """There are no users, and no identity provider."""
        return self.users_known and not self.book.entries and not self.settings.console.oidc.issuer

    @property
    def link_open(self) -> bool:
        """Whether the link in the terminal lets somebody in: on loopback, as long as nobody else can get in, once."""
        return self.loopback and self.nobody_logs_in and not self.link_used

    def loops(self) -> list[Coroutine[Any, Any, None]]:
        """What runs beside the pages."""
        own = [] if self._shared else [self.writer.run(), self._announced.run()]
        return [self.users.run(), self._sweep(), self._keep_ends(), self.snapshots.run(), *own]

    async def _sweep(self) -> None:
        """Closes the pages of sessions that don't hold any more. Waits for nothing: that would keep them open."""
        while True:
            for client in list(Client.instances.values()):
                visit = visit_of(client)
                if visit is not None and visit.console is self and self.sessions.over(visit.session):
                    close_page(client)
            await asyncio.sleep(SWEEP_S)

    async def _keep_ends(self) -> None:
        """Writes ends of sessions until Kafka has them, and lets those of old sessions go."""
        while True:
            await self.save_ends()
            await asyncio.sleep(TIDY_S)

    async def save_ends(self) -> bool:
        """Tries once, up to the first that fails; False: some aren't written yet."""
        try:
            for key, value in [*self._unsaved.items(), *((key, None) for key in self.sessions.forgotten())]:
                await self.writer.send_aside(self.settings.topic("console-users"), key.encode(), value)
                self._unsaved.pop(key, None)
        except (KafkaError, TimeoutError) as error:
            log.debug("console: ends of sessions can't be written (%s)", type(error).__name__)
        return not self._unsaved

    async def end_session(self, session: Session) -> None:
        """Logs out, in all its pages. Its record is written until Kafka has it: else it would hold after a restart."""
        key, value = self.sessions.end(session)
        self._unsaved[key] = value
        for client in list(Client.instances.values()):
            visit = visit_of(client)
            if visit is not None and visit.session.id == session.id:
                close_page(client)
        if not await self.save_ends():
            log.warning(
                "console: the logout of %s isn't in Kafka yet: it would not outlast a restart now", session.user
            )


def close_page(client: Client) -> None:
    """Takes a page away: the browser loads it anew, which leads to the login, and no handler of it is reachable."""
    if not client.storage.get("closing"):
        client.storage["closing"] = True
        client.run_javascript("location.reload()")
        asyncio.get_running_loop().call_later(SWEEP_S, functools.partial(_delete, client))


def _delete(client: Client) -> None:
    if not client.is_deleted:
        client.delete()


@dataclass(slots=True, kw_only=True)
class Visit:
    """One who looks at one page: who, in which language and zone, and the console's parts."""

    console: Console
    session: Session
    request: Request
    language: Language
    zone: ZoneInfo
    dark: bool | None
    """None: as the system is."""
    address: str

    def t(self, key: str, **values: object) -> str:
        """A text in the viewer's language."""
        return text(self.language, key, **values)

    @property
    def query(self) -> dict[str, str]:
        """Parameters of the page's address."""
        return dict(self.request.query_params)

    def not_allowed(self, role: Role) -> str:
        """What to say to a viewer who doesn't have a role that is needed."""
        return not_allowed(self.language, role)

    def may(self, role: Role) -> bool:
        """Whether the viewer may do what a role is needed for, at this moment."""
        return self.console.sessions.may(self.session, role)

    def time(self, at_ms: float | None) -> str:
        """A time in the viewer's zone; a dash without one."""
        if at_ms is None:
            return "–"
        try:
            return datetime.fromtimestamp(at_ms / 1000, self.zone).strftime("%Y-%m-%d %H:%M:%S")
        except (OverflowError, ValueError, OSError):
            return str(at_ms)

    def age(self, at_ms: float) -> str:
        """How long ago, in seconds, minutes, hours or days."""
        return show.seconds(max(0.0, time.time() - at_ms / 1000))

    def link(self, path: str, **query: str) -> str:
        """The address of a page of ours as this browser reaches it, also behind a proxy that strips a prefix."""
        prefix: str = self.request.scope.get("headrace_prefix", "")
        return prefix + path + (f"?{urlencode(query)}" if query else "")


visiting: contextvars.ContextVar[Visit | None] = contextvars.ContextVar("visiting", default=None)
"""The visit that a request is of. Handlers of a page's events have `visit_now`."""


def visit_of(client: Client) -> Visit | None:
    """The visit that a page was made for; None: of no page of ours."""
    try:
        found = client.request.scope.get("state", {}).get("visit")
    except RuntimeError:  # it was made for no request
        return None
    return found if isinstance(found, Visit) else None


def visit_now() -> Visit | None:
    """The visit of the page whose handler runs."""
    return visit_of(context.client)


def zone_of(name: str) -> ZoneInfo:
    """A time zone as a browser names it; UTC for what isn't one."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return ZoneInfo("UTC")
