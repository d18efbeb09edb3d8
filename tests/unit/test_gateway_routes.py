"""Walks the route table: nothing answers without a key, or with one that may do something else."""

from typing import Any, get_args

import pytest
from fastapi import FastAPI
from starlette.routing import BaseRoute, Route

from app.settings_web import Scope
from app.web.gateway.api import OPEN_PATHS
from tests.helpers.asgi import client, gateway_app, token

NEEDS: dict[tuple[str, str], Scope] = {
    ("POST", "/v1/events"): "produce",
    ("GET", "/v1/results"): "read",
    ("GET", "/v1/results/{event_id}"): "read",
    ("GET", "/v1/tables"): "read",
    ("GET", "/v1/tables/{state}/{map}"): "read",
    ("GET", "/metrics"): "read",
}
"""A new route is added here, or the test fails: somebody has thought about who may call it."""


def routes(app: FastAPI) -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = set()
    for path, methods in app.openapi()["paths"].items():
        found |= {(method.upper(), path) for method in methods}
    return found


def walk(table: list[BaseRoute]) -> list[str]:
    """Paths of the table itself, also of what isn't in the OpenAPI document."""
    paths: list[str] = []
    for route in table:
        inner = getattr(route, "routes", None) or getattr(getattr(route, "original_router", None), "routes", None)
        paths += walk(list(inner)) if inner else [str(getattr(route, "path", route)).replace(":path}", "}")]
    return paths


def test_every_route_has_a_scope_or_is_open_on_purpose() -> None:
    app, _ = gateway_app()
    known = {path for _, path in NEEDS} | set(OPEN_PATHS)
    assert {path for _, path in routes(app)} | set(walk(app.routes)) == known
    assert {pair for pair in routes(app) if pair[1] not in OPEN_PATHS} == set(NEEDS)


@pytest.mark.parametrize(("method", "path"), NEEDS)
async def test_a_route_refuses_who_has_no_key_or_too_small_a_scope(method: str, path: str) -> None:
    app, writer = gateway_app()
    needed = NEEDS[method, path]
    async with client(app) as http:
        for given in ({}, {"Authorization": "Bearer hr_000000000000_" + "x" * 43}, {"Authorization": "Basic eDp5"}):
            reply = await http.request(method, path, headers=given)
            assert (reply.status_code, reply.json()["status"]) == (401, 401)
            assert "bearer" in reply.headers["www-authenticate"].lower()
    for scope in get_args(Scope):
        async with client(app, scope) as http:
            reply = await http.request(method, path)
        allowed = scope in (needed, "admin")
        assert (reply.status_code == 403) != allowed, scope
        assert reply.status_code != 401
    assert writer.rows == []


async def test_open_paths_tell_nothing_but_health_and_the_document() -> None:
    app, _ = gateway_app()
    async with client(app) as http:
        for path in OPEN_PATHS:
            assert (await http.get(path)).status_code == 200, path
        for path in ("/docs", "/redoc", "/", "/v1/events/", "/v1/../metrics", "//metrics", "/V1/EVENTS"):
            assert (await http.get(path, follow_redirects=False)).status_code in (404, 401, 405), path


def test_every_route_in_the_document_says_who_may_call_it() -> None:
    app, _ = gateway_app()
    assert isinstance(app.routes[0], Route)
    document = app.openapi()
    for method, path in NEEDS:
        assert document["paths"][path][method.lower()]["security"] == [{"HTTPBearer": []}], path
    example = document["paths"]["/v1/events"]["post"]["requestBody"]["content"]["application/json"]["examples"]
    assert set(example) == {"one", "list"}


async def test_the_websocket_refuses_who_has_no_key_or_too_small_a_scope() -> None:
    app, _ = gateway_app()
    for authorization, reason in (
        (b"", "unknown-key"),
        (b"Bearer x", "unknown-key"),
        (f"Bearer {token(app, ['produce', 'review'])}".encode(), "scope-missing"),
    ):
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "websocket.connect"}

        async def send(message: Any, into: list[dict[str, Any]] = sent) -> None:
            into.append(message)

        scope = {
            "type": "websocket", "path": "/v1/results", "raw_path": b"/v1/results", "query_string": b"", "scheme": "ws",
            "headers": [(b"authorization", authorization)], "root_path": "", "subprotocols": [],
        }  # fmt: skip
        await app(scope, receive, send)
        assert [message["type"] for message in sent] == ["websocket.accept", "websocket.close"]
        assert (sent[1]["code"], sent[1]["reason"]) == (1008, reason)
