"""`GET /v1/results` as server-sent events, and as a WebSocket: results as they come, filtered, resumable by the last id.

An id is a place in the stream. SSE: the browser sends it back as `Last-Event-ID`. WebSocket: `?last_id=`; each message is
`{"id": ..., "result": {...}}`. Nothing is kept without bound: a reader that is too slow is closed with a code.
"""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Request, Response, WebSocket, WebSocketDisconnect
from starlette.requests import HTTPConnection
from starlette.types import Receive, Scope, Send

from app.web.gateway.context import Gateway, admitted, gateway_of, need
from app.web.gateway.examples import GET_STREAM
from app.web.gateway.live import (
    BadPlace,
    Filter,
    NotReachable,
    Offered,
    Place,
    Reader,
    SlowReader,
    read_place,
)
from app.web.keys import ApiKey
from app.web.problems import Problem

__all__ = ["router"]

TRY_AGAIN_LATER, GOING_AWAY, POLICY, SLOW = 1013, 1001, 1008, 4408
"""Close codes; 4408 is ours: the reader was too slow, and may come back with its last id."""
FIELDS = ("task", "category", "tier", "entity")
MAX_VALUES = 100
LOOK_S = 1.0
"""A stream looks this often whether the gateway stops."""

router = APIRouter(prefix="/v1", tags=["results"])


@router.get("/results", summary="Results as they come", openapi_extra=GET_STREAM)
async def get_results(request: Request, key: Annotated[ApiKey, need("read")]) -> Response:
    """Server-sent events. Each has an id; a client that comes back with `Last-Event-ID` goes on behind it."""
    gateway = gateway_of(request)
    wanted, place = _asked(request, gateway, request.headers.get("last-event-id", ""))
    if gateway.live.readers >= gateway.settings.gateway.max_streams:
        raise Problem(429, "busy", "too many streams (gateway.max_streams)", headers={"Retry-After": "5"})
    return _Events(gateway, key.id, wanted, place)


@router.websocket("/results")
async def results_socket(socket: WebSocket) -> None:
    """The same over a WebSocket. The key is in the header Authorization; a refusal closes it with code 1008."""
    gateway = gateway_of(socket)
    try:
        key = admitted(socket, "read")
        wanted, place = _asked(socket, gateway, "")
    except Problem as problem:
        await socket.accept()
        await socket.close(POLICY if problem.status != 503 else TRY_AGAIN_LATER, problem.reason)
        return
    if gateway.live.readers >= gateway.settings.gateway.max_streams:
        await socket.accept()
        await socket.close(TRY_AGAIN_LATER, "busy")
        return
    await socket.accept()
    with contextlib.suppress(WebSocketDisconnect):
        # What the client sends is read and dropped, so that its close is seen.
        await _until_one_ends(
            _send_results(socket, gateway, key.id, wanted, place), _gone(socket.receive, "websocket.disconnect")
        )


async def _until_one_ends(*sides: Coroutine[Any, Any, None]) -> None:
    """Runs both until one ends, and cuts off the other.

    Raises:
        Exception: what the one that ended met.
    """
    tasks = [asyncio.create_task(side) for side in sides]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome


class _RevokedError(Exception):
    """The key with which the stream began isn't one any more."""


ENDINGS: dict[type[Exception], tuple[int, str]] = {
    SlowReader: (SLOW, "slow reader"),
    NotReachable: (TRY_AGAIN_LATER, "Kafka isn't reachable"),
    _RevokedError: (POLICY, "unknown-key"),
}
"""Code and reason with which a stream is closed."""


async def _send_results(socket: WebSocket, gateway: Gateway, key_id: str, wanted: Filter, place: Place | None) -> None:
    limits = gateway.settings.gateway
    code, why = GOING_AWAY, "stopping"
    try:
        async with gateway.live.reading(wanted, place) as reader:
            async for offered in _offers(gateway, key_id, reader):
                text = _message(offered, reader)
                async with asyncio.timeout(limits.send_timeout_s):
                    await socket.send_text(text)
    except TimeoutError:
        code, why = ENDINGS[SlowReader]
    except tuple(ENDINGS) as error:
        code, why = ENDINGS[type(error)]
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(1):
            await socket.close(code, why)


def _message(offered: Offered | None, reader: Reader) -> str:
    if offered is None:
        return f'{{"id":"{reader.mark}"}}'
    if not offered.value:
        return f'{{"id":"{offered.place}","gap":true}}'
    return f'{{"id":"{offered.place}","result":{offered.value.decode("utf-8", "replace")}}}'


async def _offers(gateway: Gateway, key_id: str, reader: Reader) -> Any:
    """Results, and None every keep_alive_s without any; ends when the gateway stops.

    Raises:
        SlowReader: more waits than the reader may keep.
        NotReachable: Kafka went away while it caught up.
        _RevokedError: the key was revoked.
    """
    async for offered in gateway.live.catch_up(reader):
        if not gateway.ring.holds(key_id):
            raise _RevokedError
        yield offered
    quiet_s = 0.0
    while not gateway.draining:
        found = await reader.take(LOOK_S)
        if not gateway.ring.holds(key_id):
            raise _RevokedError
        quiet_s = 0.0 if found is not None else quiet_s + LOOK_S
        if found is not None:
            yield found
        elif quiet_s >= gateway.settings.gateway.keep_alive_s:
            quiet_s = 0.0
            yield None


def _asked(connection: HTTPConnection, gateway: Gateway, last_id: str) -> tuple[Filter, Place | None]:
    """Filter and place of a request.

    Raises:
        Problem: 422, an id or filter that can't be.
    """
    query = connection.query_params
    chosen: dict[str, frozenset[str]] = {}
    for name in FIELDS:
        values = query.getlist(name)
        if len(values) > MAX_VALUES:
            raise Problem(422, "bad-field", f"at most {MAX_VALUES} values", field=name)
        chosen[name] = frozenset(values)
    unknown = set(query) - {*FIELDS, "last_id"}
    if unknown:
        raise Problem(422, "bad-field", f"filters are {', '.join(FIELDS)}", field=min(unknown))
    text = last_id or query.get("last_id", "")
    partitions = gateway.result_partitions
    if not text:
        return Filter(**chosen), None
    try:
        return Filter(**chosen), read_place(text, partitions)
    except BadPlace as error:
        raise Problem(422, "bad-last-id", str(error), field="last-event-id") from None


class _Events(Response):
    """The stream as an ASGI response of its own: bounded in what waits, and in how long a send may take."""

    media_type = "text/event-stream"

    def __init__(self, gateway: Gateway, key_id: str, wanted: Filter, place: Place | None) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._gateway, self._key_id, self._wanted, self._place = gateway, key_id, wanted, place

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await _until_one_ends(self._send(send), _gone(receive, "http.disconnect"))

    async def _send(self, send: Send) -> None:
        last = b""
        try:
            await self._write(send, b"retry: 2000\n\n")
            async with self._gateway.live.reading(self._wanted, self._place) as reader:
                async for offered in _offers(self._gateway, self._key_id, reader):
                    await self._write(send, _event(offered, reader))
        except tuple(ENDINGS) as error:
            code, why = ENDINGS[type(error)]
            last = b"event: closed\ndata: " + msgspec.json.encode({"code": code, "reason": why}) + b"\n\n"
        except TimeoutError:
            return  # it takes nothing at all: the connection is closed without a word
        await self._write(send, last, more=False)

    async def _write(self, send: Send, text: bytes, more: bool = True) -> None:
        async with asyncio.timeout(self._gateway.settings.gateway.send_timeout_s):
            await send({"type": "http.response.body", "body": text, "more_body": more})


def _event(offered: Offered | None, reader: Reader) -> bytes:
    """An event without data only moves the client's last id, by the specification of EventSource."""
    if offered is None:
        mark = reader.mark
        return f"id: {mark}\n: alive\n\n".encode() if mark else b": alive\n\n"
    if not offered.value:
        return b"id: " + offered.place.encode() + b"\nevent: gap\ndata: {}\n\n"
    data = offered.value.replace(b"\r", b"").replace(b"\n", b"\ndata: ")
    return b"id: " + offered.place.encode() + b"\nevent: result\ndata: " + data + b"\n\n"


async def _gone(receive: Receive, word: str) -> None:
    """Reads, and drops, until the client has gone: `word` is the message that says so."""
    while (await receive())["type"] != word:
        pass
