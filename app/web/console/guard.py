"""In front of every page, file and socket of the console: who is it, may they, and which headers go with the reply."""

import re
from http import HTTPStatus
from urllib.parse import parse_qs, urlsplit

from nicegui import Client
from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.web.console.context import Console, Visit, visit_of, visiting, zone_of
from app.web.console.login import LOGIN, Login, cookie_name, language_of, plain_page
from app.web.console.oidc_login import OIDC_PATHS, OidcLogin
from app.web.console.pagelist import page_at
from app.web.console.sessions import Session
from app.web.console.texts import not_allowed, text
from app.web.writer import RETRY_AFTER_S

__all__ = ["Guard"]

CSP = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; object-src 'none'; base-uri 'none'; "
    "frame-ancestors 'none'; form-action 'self'"
)
"""Vue compiles templates in the browser, so it needs eval (https://github.com/zauberzeug/nicegui/pull/5345)."""
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
SOCKET, FILES = "/_nicegui_ws/", "/_nicegui/"
SAFE_METHODS = ("GET", "HEAD")
POLICY_VIOLATION = 1008

_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+){0,8}")


class Guard:
    """Around NiceGUI's application. Without a session nothing is reachable but the login.

    Args:
        console: what sessions are known to.
        app: NiceGUI's.

    Raises:
        SettingsError: the login by the identity provider lacks something.
    """

    def __init__(self, console: Console, app: ASGIApp) -> None:
        self._console, self._app, self._login = console, app, Login(console)
        self._oidc = OidcLogin(console, self._login) if console.settings.console.oidc.issuer else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection = HTTPConnection(scope)
        prefix = connection.headers.get("x-forwarded-prefix", "").rstrip("/")
        scope["headrace_prefix"] = prefix if _PREFIX.fullmatch(prefix) else ""
        sessions = self._console.sessions
        signed = sessions.signed(connection.cookies.get(cookie_name(connection)))
        session = signed if signed is not None and sessions.role(signed) else None
        scope["headrace_session"] = session.id if session else ""
        if scope["type"] == "websocket":
            if session is None or not self._same_origin(connection) or not self._own_client(connection, session):
                await send({"type": "websocket.close", "code": POLICY_VIOLATION})
                return
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        unknown = session is None and signed is not None and not sessions.over(signed)
        reply = self._not_known_yet(request) if unknown else await self._refusal(request, session)
        if reply is None:
            assert session is not None
            visit = self._visit(request, session)
            scope.setdefault("state", {})["visit"] = visit
            visiting.set(visit)
        await (reply or self._app)(scope, receive, self._with_headers(scope, send))

    async def _refusal(self, request: Request, session: Session | None) -> Response | None:
        """The reply to who may not, or to the login; None: NiceGUI answers."""
        path, address = request.url.path, _address(request)
        if request.method not in SAFE_METHODS and not self._same_origin(request):
            return PlainTextResponse(text("en", "foreign"), HTTPStatus.FORBIDDEN)
        if path == LOGIN:
            if request.method == "POST":
                return await self._login.submit(request, address)
            return self._login.show(request) if request.method in SAFE_METHODS else _not_allowed()
        if self._oidc is not None and path in OIDC_PATHS:
            return await self._oidc.answer(request, address)
        if path == "/" and request.method == "GET" and "token" in request.query_params:
            return await self._login.by_link(request, session, address)
        if session is None:
            return (
                self._login.to_login(request)
                if _is_page(request)
                else PlainTextResponse("log in first", HTTPStatus.UNAUTHORIZED)
            )
        if path.startswith(SOCKET) and not self._same_origin(request):
            return PlainTextResponse(text("en", "foreign"), HTTPStatus.FORBIDDEN)
        if not self._own_client(request, session):
            return PlainTextResponse("a page of another session", HTTPStatus.FORBIDDEN)
        if request.method not in SAFE_METHODS and not path.startswith(FILES):
            return _not_allowed()
        page_there = page_at(path)
        if page_there is not None and not self._console.sessions.may(session, page_there.role):
            language = language_of(request)
            said = not_allowed(language, page_there.role)
            return plain_page(request, HTTPStatus.FORBIDDEN, f"<p>{said}</p>")
        return None

    def _not_known_yet(self, request: Request) -> Response:
        """The reply to who has a cookie of ours, as long as it can't be known whether it holds: it must not go for that."""
        if _is_page(request):
            return self._login.not_known_yet(request)
        headers = {"Retry-After": str(RETRY_AFTER_S)}
        return PlainTextResponse("users aren't known", HTTPStatus.SERVICE_UNAVAILABLE, headers)

    def _same_origin(self, connection: HTTPConnection) -> bool:
        """Whether a page of this console sent it, by what browsers say and scripts can't forge.

        Where a browser says nothing of it (an old one, or no browser), cookies of ours aren't sent across sites either.
        """
        origin = connection.headers.get("origin")
        if origin is not None:
            known = self._console.settings.console.origins
            return origin in known if known else urlsplit(origin).netloc == connection.headers.get("host", "")
        return connection.headers.get("sec-fetch-site", "same-origin") in ("same-origin", "none")

    @staticmethod
    def _own_client(connection: HTTPConnection, session: Session) -> bool:
        """Whether the page that a socket or an upload is for, if any, was made for this session."""
        named = [*parse_qs(connection.url.query).get("client_id", []), *connection.url.path.split("/")]
        visits = [visit_of(client) for each in named if (client := Client.instances.get(each)) is not None]
        return all(visit is not None and visit.session.id == session.id for visit in visits)

    def _visit(self, request: Request, session: Session) -> Visit:
        dark = {"1": True, "0": False}.get(request.cookies.get("headrace_dark", ""))
        return Visit(
            console=self._console, session=session, request=request, dark=dark, address=_address(request),
            language=language_of(request),
            zone=zone_of(request.cookies.get("headrace_zone", "UTC")),
        )  # fmt: skip

    def _with_headers(self, scope: Scope, send: Send) -> Send:
        kept = scope["path"].startswith(FILES)

        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.setdefault("Content-Security-Policy", CSP)
                for name, value in HEADERS.items():
                    headers[name] = value
                if scope["scheme"] == "https":
                    headers["Strict-Transport-Security"] = "max-age=31536000"
                if not (kept and message["status"] == HTTPStatus.OK):
                    headers["Cache-Control"] = "no-store"
            await send(message)

        return send_on


def _address(connection: HTTPConnection) -> str:
    return connection.client.host if connection.client else ""


def _is_page(request: Request) -> bool:
    return request.method == "GET" and not request.url.path.startswith((SOCKET, FILES))


def _not_allowed() -> Response:
    return PlainTextResponse("not served", HTTPStatus.METHOD_NOT_ALLOWED)
