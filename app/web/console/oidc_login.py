"""Login by the identity provider: sends a browser there (`/oidc/login`), and takes it back (`/oidc/callback`).

What is kept of a login until it comes back is in a signed cookie of that browser, so logins that nobody ends cost no memory,
and one that was begun in another browser isn't taken.
"""

import logging
import secrets
import time
from collections import OrderedDict
from http import HTTPStatus
from typing import Any

import itsdangerous
import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from app.errors import SettingsError
from app.web.console.audit import note_anyway
from app.web.console.context import Console
from app.web.console.login import NOBODY, OIDC, Login, cookie_name, safe_next
from app.web.console.oidc import IdentityProvider, OidcError, ProviderRefused, name_of, role_of
from app.web.console.sessions import GUEST, Guest
from app.web.writer import RETRY_AFTER_S

__all__ = ["OIDC_PATHS", "OidcLogin"]

log = logging.getLogger("headrace.web")

START, CALLBACK = OIDC + "login", OIDC + "callback"
OIDC_PATHS = (START, CALLBACK)
COOKIE = "headrace_oidc"
LOGIN_S = 600
"""So long somebody may take at the provider."""
AT_ONCE = 20
"""Requests to the provider; each ends by console.oidc.timeout_s."""
MOST_USED = 10_000
"""Logins that came back and are remembered until their cookie has run out; above it the oldest go. About 150 bytes each."""
LONGEST_NEXT = 1000
"""A browser takes cookies of 4 KiB."""
LONGEST_ERROR = 200


class Pending(msgspec.Struct, frozen=True, kw_only=True):
    """A login on its way, as its cookie has it."""

    state: str
    nonce: str
    target: str
    """Where to go after it, as it was asked for."""
    kept: dict[str, Any]
    """Authlib's, with PKCE's verifier."""


class OidcLogin:
    """Handles the two paths.

    Raises:
        SettingsError: the client's secret or Authlib isn't there.
    """

    def __init__(self, console: Console, login: Login) -> None:
        self._console, self._login, self._settings = console, login, console.settings.console.oidc
        if not self._settings.client_secret.get_secret_value():
            raise SettingsError("console.oidc needs HEADRACE_CONSOLE__OIDC__CLIENT_SECRET, as the provider shows it")
        self._provider = IdentityProvider(self._settings)
        self._signer = console.sessions.signer("headrace console oidc")
        self._used: OrderedDict[str, float] = OrderedDict()
        """When, by state, monotonic seconds: a login comes back once."""
        self._asking = 0

    async def answer(self, request: Request, address: str) -> Response:
        """The reply to either path; it lets nobody in while it isn't known who may."""
        if request.method != "GET":
            return PlainTextResponse("not served", HTTPStatus.METHOD_NOT_ALLOWED)
        if not self._console.users_known:
            return self._login.users_unknown(request)
        if self._asking >= AT_ONCE:
            return self._login.form(request, 429, "oidc_busy", {"Retry-After": "1"}, provider=self._settings.host)
        self._asking += 1
        try:
            return await (self._start(request) if request.url.path == START else self._back(request, address))
        except OidcError as error:
            return self._failed(request, address, error)
        finally:
            self._asking -= 1

    async def _start(self, request: Request) -> Response:
        target = request.query_params.get("next", "/")
        state, nonce = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
        there, kept = await self._provider.begin(request, state, nonce)
        pending = Pending(state=state, nonce=nonce, target=target if len(target) <= LONGEST_NEXT else "/", kept=kept)
        signed = self._signer.dumps(msgspec.to_builtins(pending))
        reply = RedirectResponse(there, 303)
        cookie = self._login.cookie(request, signed if isinstance(signed, str) else signed.decode(), COOKIE, OIDC)
        reply.headers.append("Set-Cookie", f"{cookie}; Max-Age={LOGIN_S}")
        return reply

    async def _back(self, request: Request, address: str) -> Response:
        if wait_s := self._console.oidc_attempts.wait_s(address, address):
            return self._login.later(request, wait_s)
        pending = self._pending(request)
        if pending is None or not self._first(pending.state):
            reply = self._login.form(request, 400, "oidc_again")
        elif error := request.query_params.get("error"):
            said = f"{error} {request.query_params.get('error_description', '')}"
            shown = "".join(c for c in said if c.isprintable()).strip()[:LONGEST_ERROR]
            log.warning("console: %s refused a login from %s: %s", self._settings.host, address, shown)
            reply = self._login.form(request, 403, "oidc_said", provider=self._settings.host, error=shown)
        else:
            reply = await self._enter(request, address, pending)
        return self._without_cookie(request, reply)

    async def _enter(self, request: Request, address: str, pending: Pending) -> Response:
        if request.query_params.get("iss", self._settings.issuer) != self._settings.issuer:  # RFC 9207
            raise ProviderRefused("the reply is of another issuer")
        claims = await self._provider.claims(request, pending.kept, pending.nonce)
        name, role = name_of(claims), role_of(claims, self._settings)
        if role is None:
            self._console.oidc_attempts.failed(address, address)
            log.warning("console: %s%s from %s has no role", GUEST, name, address)
            detail = {"why": "no role", "subject": claims["sub"]}
            await note_anyway(self._console, NOBODY, address, "login-refused", GUEST + name, detail)
            return self._login.form(request, 403, "oidc_no_role", name=name, provider=self._settings.host)
        guest = Guest(name=name, subject=claims["sub"], role=role)
        return await self._login.enter(request, guest, address, safe_next(pending.target))

    def _pending(self, request: Request) -> Pending | None:
        """The login that this browser is on its way with, if the request belongs to it."""
        signed = request.cookies.get(cookie_name(request, COOKIE), "")
        try:
            pending = msgspec.convert(self._signer.loads(signed, max_age=LOGIN_S), Pending)
        except (itsdangerous.BadData, msgspec.ValidationError, RecursionError):
            return None
        given = request.query_params.get("state", "")
        same = secrets.compare_digest(given.encode("utf-8", "replace"), pending.state.encode())
        return pending if same else None

    def _first(self, state: str) -> bool:
        """Whether a login comes back for the first time; notes that it did."""
        if state in self._used:
            return False
        now = time.monotonic()
        while self._used and (next(iter(self._used.values())) < now - LOGIN_S or len(self._used) >= MOST_USED):
            self._used.popitem(last=False)
        self._used[state] = now
        return True

    def _failed(self, request: Request, address: str, error: OidcError) -> Response:
        log.warning("console: a login by %s from %s failed: %s", self._settings.host, address, error)
        if error.retryable:
            headers = {"Retry-After": str(RETRY_AFTER_S)}
            reply = self._login.form(request, 503, "oidc_down", headers, provider=self._settings.host)
        else:
            if request.url.path == CALLBACK:
                self._console.oidc_attempts.failed(address, address)
            reply = self._login.form(request, 502, "oidc_refused", provider=self._settings.host)
        return self._without_cookie(request, reply)

    def _without_cookie(self, request: Request, reply: Response) -> Response:
        reply.headers.append("Set-Cookie", self._login.cookie(request, "", COOKIE, OIDC))
        return reply
