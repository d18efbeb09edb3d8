"""The login: a plain form without scripts, and the link that the first person gets in by."""

import asyncio
import html
import logging
import math
import secrets
from collections.abc import Mapping
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from app.web.console.audit import note_anyway
from app.web.console.context import Console
from app.web.console.sessions import COOKIE, Guest, Session
from app.web.console.texts import LANGUAGES, Language, chosen, text
from app.web.users import User, verify_password
from app.web.writer import RETRY_AFTER_S

__all__ = ["LOGIN", "NOBODY", "OIDC", "Login", "cookie_name", "language_of", "plain_page", "safe_next"]

log = logging.getLogger("headrace.web")

LOGIN = "/login"
OIDC = "/oidc/"
"""Begins the paths of the login by the identity provider."""
NOBODY = "(nobody)"
"""Whose audit records are of who isn't logged in. No user can be called so."""
MAX_FORM_BYTES = 8 << 10
FORM_TIMEOUT_S = 10.0
HASHES_AT_ONCE, HASHES_WAITING = 2, 20
"""Each takes 64 MiB and a core for a fifth of a second."""

CSP = "default-src 'none'; style-src 'unsafe-inline'; img-src 'self'; base-uri 'none'; frame-ancestors 'none'; form-action 'self'"

PAGE = """<!doctype html>
<html lang="{lang}"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>headrace</title><style>
body {{ font: 16px/1.5 system-ui, sans-serif; display: grid; place-items: center; min-height: 95vh; margin: 0 }}
main {{ width: min(22rem, 90vw) }} label {{ display: block; margin: .8rem 0 }}
input, button {{ font: inherit; width: 100%; box-sizing: border-box; padding: .5rem; border-radius: 4px }}
input {{ border: 1px solid #8888 }}
button {{ background: #1565c0; color: #fff; border: 0; cursor: pointer }}
.other {{ display: block; margin: 1rem 0; padding: .5rem; border: 1px solid #1565c0; border-radius: 4px }}
.other {{ text-align: center; text-decoration: none; color: inherit }}
.why {{ color: #d32f2f }} code {{ background: #8882; padding: .2rem .4rem; border-radius: 4px }}
</style></head><body><main><h1>headrace</h1>{body}</main></body></html>"""

FORM = """<p class="why" role="alert">{why}</p><form method="post" action="{action}">
<label>{user}<input name="user" autocomplete="username" autocapitalize="none" maxlength="64" required autofocus></label>
<label>{password}<input name="password" type="password" autocomplete="current-password" maxlength="1024" required></label>
<input type="hidden" name="next" value="{next}"><button>{log_in}</button></form>"""

OTHER = '<a class="other" href="{address}">{log_in_by}</a>'
"""A link and no form: the policy lets forms lead nowhere else, not even by a redirect."""


def plain_page(request: Request, status: int, body: str, headers: Mapping[str, str] | None = None) -> Response:
    """A page without scripts. `body` is HTML: escape what is put in."""
    lang = LANGUAGES[language_of(request)]
    return HTMLResponse(PAGE.format(lang=lang, body=body), status, {"Content-Security-Policy": CSP, **(headers or {})})


def language_of(request: Request) -> Language:
    """The language to speak to whoever sent this."""
    return chosen(request.cookies.get("headrace_language"), request.headers.get("accept-language", ""))


def safe_next(target: str) -> str:
    """Where to go after the login: a path of this console, whatever was asked for."""
    plain = target.isprintable() and "\\" not in target and len(target) <= 2000
    return target if plain and target.startswith("/") and not target.startswith(("//", LOGIN, OIDC)) else "/"


def cookie_name(connection: HTTPConnection, name: str = COOKIE) -> str:
    """What the session's cookie, or another of ours, is called here.

    Browsers send a host's cookies to all its ports and paths: consoles of one host must not take each other's.
    """
    try:
        port = urlsplit(f"//{connection.headers.get('host', '')}").port
    except ValueError:
        port = None
    prefix: str = connection.scope.get("headrace_prefix", "")
    return name + (f"_{port}" if port else "") + prefix.replace("/", "+")


class Login:
    """Handles `/login`, and `/?token=`."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._turns = asyncio.Semaphore(HASHES_AT_ONCE)
        self._waiting = 0

    def show(self, request: Request) -> Response:
        """The form; what was asked for before is gone to after it."""
        return self.form(request, 200) if self._console.users_known else self.users_unknown(request)

    async def submit(self, request: Request, address: str) -> Response:
        """Checks user and password. Failures are counted before the password is looked at."""
        try:
            given = await _form_of(request)
        except (ValueError, TimeoutError):
            return self.form(request, 400, "wrong")
        console, name = self._console, given.get("user", "")
        if not console.users_known:
            return self.users_unknown(request)
        wait_s = console.attempts.wait_s(name, address)
        if wait_s or self._waiting >= HASHES_WAITING:
            return self.later(request, wait_s)
        console.attempts.failed(name, address)
        user = console.book.entries.get(name)
        if not await self._verified(user, given.get("password", "")):
            log.warning("console: a login as %r from %s failed", name[:64], address)
            if wait_s := console.attempts.wait_s(name, address):
                detail = {"wait_s": round(wait_s)}
                await note_anyway(console, NOBODY, address, "login-locked", name[:64], detail)
            return self.form(request, 401, "wrong")
        console.attempts.succeeded(name, address)
        return await self.enter(request, user, address, safe_next(given.get("next", "/")))

    async def _verified(self, user: User | None, password: str) -> bool:
        self._waiting += 1
        try:
            async with self._turns:
                return await verify_password(user, password)
        finally:
            self._waiting -= 1

    async def by_link(self, request: Request, session: Session | None, address: str) -> Response:
        """The link of the terminal: on loopback, once, while nobody else can get in.

        The token is looked at only when it could let somebody in, and never for a page of another origin: any page can
        make a browser ask for this address.
        """
        console = self._console
        if session is not None:
            return RedirectResponse(_prefixed(request, "/"), 303)
        if not console.users_known:
            return self.users_unknown(request)
        if not console.link_open:
            return self.form(request, 401, "link_used" if console.link_used else "")
        if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return self.form(request, 403, "foreign")
        if wait_s := console.link_attempts.wait_s("", address):
            return self.later(request, wait_s)
        given = request.query_params.get("token", "")
        if not secrets.compare_digest(given.encode("utf-8", "replace"), console.link_token.encode()):
            console.link_attempts.failed("", address)
            return self.form(request, 401, "wrong_link")
        console.link_used = True
        return await self.enter(request, None, address, "/")

    async def enter(self, request: Request, who: User | Guest | None, address: str, target: str) -> Response:
        """A new session, whatever the browser had before. `target` is a path of ours, by `safe_next`."""
        session, cookie = self._console.sessions.begin(who)
        detail = {"role": who.role, "subject": who.subject} if isinstance(who, Guest) else {}
        await note_anyway(self._console, session.user, address, "login", detail=detail)
        reply = RedirectResponse(_prefixed(request, target), 303)
        reply.headers.append("Set-Cookie", self.cookie(request, cookie))
        return reply

    def cookie(self, request: Request, value: str, name: str = COOKIE, path: str = "") -> str:
        """The header that sets a cookie of ours, the session's if not said otherwise; empty: that takes it away."""
        path = str(request.scope.get("headrace_prefix", "")) + path or "/"
        parts = [f"{cookie_name(request, name)}={value}", f"Path={path}", "HttpOnly", "SameSite=Lax"]
        https = request.url.scheme == "https" or request.headers.get("origin", "").startswith("https://")
        if request.url.path.startswith(OIDC):
            https = https or self._console.settings.console.oidc.public_url.startswith("https://")
        if self._console.secure_cookies(https):
            parts.append("Secure")
        if not value:
            parts.append("Max-Age=0")
        return "; ".join(parts)

    def to_login(self, request: Request) -> Response:
        """Leads there, and back afterwards; takes a cookie away that doesn't hold."""
        asked = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        target = "" if asked == "/" else "?" + urlencode({"next": asked[:2000]})
        reply = RedirectResponse(_prefixed(request, LOGIN) + target, 303)
        if cookie_name(request) in request.cookies:
            reply.headers.append("Set-Cookie", self.cookie(request, ""))
        return reply

    def not_known_yet(self, request: Request) -> Response:
        """To who may well be logged in, as long as the users aren't read: the page is loaded again by itself."""
        said = text(language_of(request), "session_unknown")
        headers = {"Retry-After": str(RETRY_AFTER_S), "Refresh": str(RETRY_AFTER_S)}
        return plain_page(request, 503, f"<p>{said}</p>", headers)

    def users_unknown(self, request: Request) -> Response:
        """To whoever wants in while it isn't known who may."""
        return self.form(request, 503, "users_unknown", headers={"Retry-After": str(RETRY_AFTER_S)})

    def later(self, request: Request, wait_s: float) -> Response:
        """To who has to wait; 0: for others."""
        seconds = max(1, math.ceil(wait_s))
        why = "wait" if wait_s else "busy"
        return self.form(request, 429, why, headers={"Retry-After": str(seconds)}, seconds=seconds)

    def form(
        self, request: Request, status: int, why: str = "", headers: Mapping[str, str] | None = None, **values: object
    ) -> Response:
        """The login with a word of why it is shown, if any."""
        language = language_of(request)
        said = text(language, why, **values) if why else ""
        wanted = safe_next(request.query_params.get("next", "/"))
        body = FORM.format(
            why=html.escape(said), user=text(language, "user"), password=text(language, "password"),
            log_in=text(language, "log_in"), action=html.escape(_prefixed(request, LOGIN)),
            next=html.escape(wanted),
        )  # fmt: skip
        oidc = self._console.settings.console.oidc
        if oidc.issuer:
            address = f"{oidc.public_url.rstrip('/')}{OIDC}login?{urlencode({'next': wanted})}"
            by = text(language, "log_in_by", provider=oidc.host)
            body += OTHER.format(address=html.escape(address), log_in_by=html.escape(by))
        elif self._console.nobody_logs_in:
            body += f"<p>{text(language, 'no_users')}</p><p><code>headrace users add NAME --role admin</code></p>"
        return plain_page(request, status, body, headers)


def _prefixed(request: Request, path: str) -> str:
    """A path of ours as the browser sees it, behind a proxy that strips a prefix."""
    return str(request.scope.get("headrace_prefix", "")) + quote(path, safe="/?&=%:@!$'()*+,;~#")


async def _form_of(request: Request) -> dict[str, str]:
    """The fields of a form.

    Raises:
        ValueError: it is too large, or no form.
        TimeoutError: it didn't come.
    """
    body = b""
    async with asyncio.timeout(FORM_TIMEOUT_S):
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_FORM_BYTES:
                raise ValueError("too large")
    fields = parse_qs(body.decode("utf-8"), keep_blank_values=True, max_num_fields=10)
    return {name: values[0] for name, values in fields.items()}
