"""What the handlers of one gateway share, and who may call them."""

import re
import secrets
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.requests import HTTPConnection

from app.settings import Settings
from app.settings_web import Scope
from app.web.follow import Follower
from app.web.gateway.intake import Intake
from app.web.gateway.live import Live
from app.web.gateway.rates import Rates
from app.web.gateway.replies import Replies
from app.web.keys import ApiKey, KeyRing
from app.web.problems import Problem
from app.web.workers import Workers
from app.web.writer import RETRY_AFTER_S, Writer

__all__ = ["Gateway", "admitted", "gateway_of", "need", "passed_on", "request_id_of"]

_bearer = HTTPBearer(auto_error=False, description="An API key, made by `headrace keys create`.")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[\x21-\x7e]{0,400})?")


class Gateway:
    """The parts, without anything that runs yet."""

    def __init__(self, settings: Settings) -> None:
        self.settings, limits = settings, settings.gateway
        self.ring = KeyRing()
        self.replies = Replies(limits.idempotency_s, limits.idempotency_keys)
        self.replies_topic = settings.topic("gateway-replies")
        self.keys = Follower(settings, settings.topic("api-keys"), self.ring)
        self.others = Follower(settings, self.replies_topic, self.replies)
        self.writer = Writer(settings)
        self.rates = Rates(limits.rate_per_s, limits.burst_s)
        self.intakes = {source.name: Intake(source, settings) for source in settings.sources if source.format != "text"}
        self.default_source = limits.source or settings.sources[0].name
        self.workers = Workers(settings)
        self.announced = Follower(settings, settings.topic("workers"), self.workers)
        self.live = Live(settings, lambda: self.result_partitions)
        self.draining = False
        self.waiting = 0
        """Requests that wait for a result."""

    @property
    def not_ready(self) -> str:
        """Why requests would fail now; empty when they wouldn't."""
        if self.draining:
            return "stopping"
        if not self.writer.reachable:
            return "Kafka isn't reachable"
        return "" if self.keys.current else "API keys aren't known"

    @property
    def result_partitions(self) -> int:
        """Of `ai-results`.

        Raises:
            Problem: 503, Kafka hasn't been reached yet.
        """
        return self.writer.partitions(self.settings.topic("ai-results"))

    def intake(self, source: str) -> Intake:
        """The reader of a source.

        Raises:
            Problem: there is none of that name.
        """
        found = self.intakes.get(source or self.default_source)
        if found is None:
            raise Problem(404, "no-such-source", "no source of that name takes events over HTTP", field="source")
        return found

    def admit(self, token: str, scope: Scope) -> ApiKey:
        """The key of a token that may do what is asked.

        Raises:
            Problem: 401, 403, or 503 while keys can't be known.
        """
        if not self.keys.current:
            raise Problem(
                503,
                "keys-unknown",
                "API keys can't be read from Kafka now",
                headers={"Retry-After": str(RETRY_AFTER_S)},
            )
        key = self.ring.find(token)
        if key is None:
            raise Problem(
                401, "unknown-key", "the API key is unknown or revoked" if token else "send `Authorization: Bearer KEY`",
                headers={"WWW-Authenticate": 'Bearer realm="headrace"'},
            )  # fmt: skip
        if not key.allows(scope):
            raise Problem(403, "scope-missing", f"this needs a key with scope {scope}")
        return key


def gateway_of(connection: HTTPConnection) -> Gateway:
    found: Gateway = connection.app.state.gateway
    return found


def need(scope: Scope) -> Any:
    """A route's dependency: the caller's key, which must have the scope."""

    async def admit(
        request: Request, given: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
    ) -> ApiKey:
        return gateway_of(request).admit(given.credentials if given else "", scope)

    checked: Callable[..., Awaitable[ApiKey]] = admit
    return Depends(checked)


def admitted(connection: HTTPConnection, scope: Scope) -> ApiKey:
    """The caller's key, for handlers that FastAPI doesn't call (see `need`).

    Raises:
        Problem: as `Gateway.admit`.
    """
    kind, _, token = connection.headers.get("authorization", "").partition(" ")
    return gateway_of(connection).admit(token.strip() if kind.lower() == "bearer" else "", scope)


def request_id_of(connection: HTTPConnection) -> str:
    """The caller's request id if it is a sane one, else a new one; the same for the whole request."""
    state = connection.scope.setdefault("state", {})
    if "request_id" not in state:
        given = connection.headers.get("x-request-id", "")
        state["request_id"] = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(16)
    found: str = state["request_id"]
    return found


def passed_on(request: Request) -> list[tuple[str, bytes | None]]:
    """Headers of the request that every record of it gets."""
    headers: list[tuple[str, bytes | None]] = [("headrace.request-id", request_id_of(request).encode())]
    trace = request.headers.get("traceparent", "").encode("latin-1", "replace")
    if _TRACEPARENT.fullmatch(trace):
        headers.append(("traceparent", trace))
        state = request.headers.get("tracestate", "").encode("latin-1", "replace")
        if 0 < len(state) <= 512:
            headers.append(("tracestate", state))
    return headers
