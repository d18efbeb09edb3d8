"""Builds the gateway's FastAPI application."""

import contextlib
import logging
from collections.abc import AsyncIterator

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app import metrics
from app.settings import Settings
from app.web.gateway import events, results, streams, tables
from app.web.gateway.context import Gateway, gateway_of, need, request_id_of
from app.web.loops import running
from app.web.problems import Problem, problem_response

__all__ = ["OPEN_PATHS", "build"]

log = logging.getLogger("headrace.web")

OPEN_PATHS = ("/healthz", "/readyz", "/openapi.json")
"""Need no key. Everything else does; a test walks the routes."""

NOSNIFF, NO_STORE = (b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store")

REASONS = {404: ("not-found", "there is nothing at this path"), 405: ("bad-method", "the method isn't served here")}

operations = APIRouter(tags=["operations"])


@operations.get("/healthz", summary="Whether the process works")
async def healthz() -> JSONResponse:
    """200 as long as the process answers. Kafka isn't asked: a restart wouldn't bring it back."""
    return JSONResponse({"ok": True})


@operations.get("/readyz", summary="Whether requests would succeed")
async def readyz(request: Request) -> JSONResponse:
    """503 while Kafka isn't reachable, keys aren't known, or the process stops."""
    why = gateway_of(request).not_ready
    return JSONResponse({"ready": not why, "why": why}, 503 if why else 200)


@operations.get("/metrics", summary="Prometheus metrics", dependencies=[need("read")])
async def metrics_page() -> Response:
    """Of this gateway."""
    return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)


class Outermost:
    """Around everything: the request id in each reply, counted statuses, and no error without a reply."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        request_id, begun = request_id_of(request), False

        async def send_on(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode()), NOSNIFF]
                if not any(name == NO_STORE[0] for name, _ in message["headers"]):
                    message["headers"].append(NO_STORE)
                metrics.GATEWAY_REQUESTS.labels(scope["method"][:8], str(message["status"])).inc()
            await send(message)

        try:
            await self.app(scope, receive, send_on)
        except Exception:
            log.exception("gateway: request %s failed", request_id)
            if begun:
                raise
            failed = Problem(500, "internal", "an error on this side; the log has it under the request id")
            await problem_response(failed, request_id)(scope, receive, send_on)


class Shortcut:
    """Leads `POST /v1/events` straight to its endpoint: routing and its layers are half of a small request's time."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != "/v1/events" or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        request = Request(scope, receive, send)
        try:
            response = await events.post_events(request)
        except Problem as problem:
            response = problem_response(problem, request_id_of(request))
        await response(scope, receive, send)


def build(settings: Settings) -> FastAPI:
    """The application; what it needs of Kafka begins with its lifespan."""
    gateway = Gateway(settings)
    app = FastAPI(
        title="headrace gateway", version="1", docs_url=None, redoc_url=None, redirect_slashes=False, lifespan=_lifespan,
        description="Events in, results out. Errors are application/problem+json and name the field at fault.",
    )  # fmt: skip
    app.state.gateway = gateway
    app.include_router(operations)
    for router in (events.router, streams.router, results.router, tables.router):
        app.include_router(router)
    app.add_exception_handler(Problem, _on_problem)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_middleware(Shortcut)
    if settings.gateway.cors_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=settings.gateway.cors_origins, allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type", "Idempotency-Key", "X-Request-Id", "traceparent", "Last-Event-ID"],
            expose_headers=["X-Request-Id", "Retry-After", "RateLimit", "RateLimit-Policy"],
        )  # fmt: skip
    app.add_middleware(Outermost)
    return app


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    gateway: Gateway = app.state.gateway
    loops = (gateway.writer, gateway.keys, gateway.others, gateway.announced, gateway.live)
    async with contextlib.aclosing(gateway.workers), running(loop.run() for loop in loops):
        yield


async def _on_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return problem_response(error, request_id_of(request))


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    reason, detail = REASONS.get(error.status_code, ("refused", str(error.detail)))
    headers = dict(error.headers or {})
    return problem_response(Problem(error.status_code, reason, detail, headers=headers), request_id_of(request))


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"][1:]) or str(first["loc"][0])
    return problem_response(Problem(422, "bad-field", first["msg"], field=field), request_id_of(request))
