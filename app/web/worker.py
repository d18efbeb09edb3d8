"""A worker's own web port: its table state as JSON, metrics, health. Plain aiohttp on Faust's web server.

    GET /healthz                          200 while the worker runs and no partition is stopped, else 503 with reasons
    GET /readyz                           200 when State is restored and all partitions of this worker run, else 503
    GET /metrics                          Prometheus
    GET /tables                           every State of this worker: maps, partitions, sizes
    GET /tables/{state}/{map}             rows: ?partition= &start= &limit= ; or ?key=
    GET /tables/{state}/{map}/{key}       one key, looked up in every partition this worker owns
    GET /trace/{event_id}                 what State knows of an event
    GET /windows/{entity}                 an entity's windows that aren't closed, with their sequences
    GET /reviews                          reviews that wait, the oldest first: ?limit= &task= &cause=
    GET /results                          one result: ?event_id= &partition= ; 421 when this worker hasn't the partition

Loopback needs no token; any other bind asks for `Authorization: Bearer` with web.token.
"""

import hmac
import time
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from app import metrics
from app.core import App
from app.web.announce import announce
from app.web.worker_state import StatePages, as_json

__all__ = ["install"]

METRICS_EVERY_S = 5.0
"""Sizes and lags are asked from RocksDB and the consumer at most this often."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def install(app: App) -> None:
    """Adds the routes to the app's web server."""
    app.helpers.append(("announcer", lambda: announce(app)))
    pages, state = Pages(app), StatePages(app)
    faust_web: Any = app.web
    server: web.Application = faust_web.web_app
    token = app.settings.web.token.get_secret_value()
    if token:
        server.middlewares.append(_require(token))
    server.add_routes(
        [
            web.get("/", pages.index),
            web.get("/healthz", pages.healthz),
            web.get("/readyz", pages.readyz),
            web.get("/metrics", pages.metrics),
            web.get("/tables", state.tables),
            web.get("/tables/{state}/{map}", state.rows),
            web.get("/tables/{state}/{map}/{key:.+}", state.row),
            web.get("/trace/{event_id:.+}", state.trace),
            web.get("/windows/{entity:.+}", state.windows),
            web.get("/reviews", state.reviews),
            web.get("/results", state.result),
        ]
    )


def _require(token: str) -> Any:
    expected = f"Bearer {token}".encode()

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").encode()
        if not hmac.compare_digest(given, expected):
            return as_json({"error": "a bearer token is needed (HEADRACE_WEB__TOKEN)"}, 401)
        return await handler(request)

    return check


class Pages:
    """What a worker tells of itself."""

    def __init__(self, app: App) -> None:
        self.app = app
        self._metrics_at = 0.0
        self._lags: set[tuple[str, str]] = set()
        """Stage and partition of the lags that are shown."""

    async def index(self, request: web.Request) -> web.Response:
        return as_json(
            {"headrace": self.app.conf.id, "see": ["/tables", "/trace/EVENT_ID", "/metrics", "/healthz", "/readyz"]}
        )

    async def healthz(self, request: web.Request) -> web.Response:
        lanes = self.app.delivery.lanes.values()
        stopped = [
            {"stage": lane.stage.name, "partition": lane.tp.partition, "why": lane.stopped}
            for lane in lanes
            if lane.stopped
        ]
        waiting = sum(1 for lane in lanes if not lane.ready and not lane.stopped)
        return as_json(
            {
                "ok": not stopped,
                "stopped": stopped,
                "starting": waiting,
                "lanes": len(lanes),
                "missing": self.app.delivery.missing_inputs(),
            },
            503 if stopped else 200,
        )

    async def readyz(self, request: web.Request) -> web.Response:
        """Ready: the group gave this worker its part, State is restored, and what isn't stopped runs."""
        restore = self.app.delivery.restore
        joined = restore is not None and restore.completed.is_set()
        restoring = None
        if restore is not None and restore.progress.running:
            now = restore.progress
            restoring = {"records": now.total, "done": now.done, "rows": now.rows, "left_s": round(now.left_s, 1)}
        starting = sum(1 for lane in self.app.delivery.lanes.values() if not lane.ready and not lane.stopped)
        ready = joined and restoring is None and not starting
        return as_json({"ready": ready, "restoring": restoring, "starting": starting}, 200 if ready else 503)

    async def metrics(self, request: web.Request) -> web.Response:
        now = time.monotonic()
        if now - self._metrics_at > METRICS_EVERY_S:
            self._metrics_at = now
            self._measure()
        return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    def _measure(self) -> None:
        for stage in self.app.delivery.stages.values():
            size = sum(stage.state.database(p).size_bytes() for p in stage.state.store.partitions)
            metrics.STATE_BYTES.labels(stage.state.name).set(size)
        shown: set[tuple[str, str]] = set()
        for lane in self.app.delivery.lanes.values():
            end = self.app.delivery.log_end(lane.tp) if lane.ready else None
            if end is not None:
                labels = (lane.stage.name, str(lane.tp.partition))
                metrics.LAG_RECORDS.labels(*labels).set(max(0, end - lane.inbox.expected + len(lane.inbox)))
                shown.add(labels)
        for labels in self._lags - shown:  # another worker has it now and shows it: it would be counted twice
            metrics.LAG_RECORDS.remove(*labels)
        self._lags = shown
