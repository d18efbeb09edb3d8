"""Live results: filters, places, slow readers, and the hand-over from what was to what comes."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.settings import load
from app.web.gateway import live
from app.web.gateway.live import (
    BadPlace,
    Filter,
    Filtered,
    Live,
    NotReachable,
    Reader,
    SlowReader,
    read_place,
    write_place,
)
from app.web.gateway.streams import _Events, _gone, _offers, _RevokedError, _send_results
from app.web.keys import new_key
from tests.helpers.asgi import client, gateway_app

ANY = Filter()
RESULT = b'{"task":"shop","category":"order","tier":"rule","entity":"u1"}'


@given(st.dictionaries(st.integers(0, 99), st.integers(0, 10**17), min_size=1, max_size=24))
def test_a_place_is_read_as_it_was_written(place: dict[int, int]) -> None:
    assert read_place(write_place(place), 100) == place


@pytest.mark.parametrize(
    "forged",
    [
        "",
        "x",
        "0",
        "0-",
        "-1-5",
        "0-5.",
        "0-5 ",
        "0-5\n",
        "0-5.99-1",
        "0-" + "9" * 30,
        "٣-1",
        "0-1" + ".0-1" * 5000,
        "0-1.0-2",
    ],
)
def test_a_forged_id_is_refused(forged: str) -> None:
    with pytest.raises(BadPlace):
        read_place(forged, 4)


@pytest.mark.parametrize(
    ("wanted", "taken"),
    [
        (ANY, True),
        (Filter(task=frozenset({"shop"}), tier=frozenset({"deep", "rule"})), True),
        (Filter(task=frozenset({"shop"}), tier=frozenset({"deep"})), False),
        (Filter(entity=frozenset({"u2"})), False),
        (Filter(category=frozenset({"order"})), True),
    ],
)
def test_a_filter_takes_what_meets_all_of_it(wanted: Filter, taken: bool) -> None:
    assert wanted.takes(Filtered("shop", "order", "rule", "u1")) == taken


async def test_a_reader_that_takes_too_little_gets_what_waits_and_is_then_told() -> None:
    reader = Reader(ANY, {0: 0}, 3)
    for offset in range(1, 10):
        reader.offer(0, offset, RESULT, Filtered())
    for offset in (1, 2, 3):
        offered = await reader.take(1)
        assert offered is not None
        assert offered.place == f"0-{offset}"
    with pytest.raises(SlowReader):
        await reader.take(1)


async def test_the_mark_moves_over_what_a_filter_left_out() -> None:
    reader = Reader(Filter(task=frozenset({"other"})), {0: 0, 1: 7}, 3)
    for offset in range(1, 100):
        reader.offer(0, offset, RESULT, Filtered(task="shop"))
    assert await reader.take(0.01) is None
    assert reader.mark == "0-99.1-7"


class Log:
    """A topic in memory, with a consumer's face: position, seek, getmany; it grows while it is read."""

    def __init__(self, start: int, end: int) -> None:
        self.start, self.end, self.at = start, end, 0
        self.growth: list[int] = []
        self.grown: Any = None

    async def beginning_offsets(self, tps: Any) -> Any:
        return dict.fromkeys(tps, self.start)

    async def end_offsets(self, tps: Any) -> Any:
        return dict.fromkeys(tps, self.end)

    def assign(self, tps: Any) -> None:
        """One partition is all there is."""

    def seek(self, tp: Any, offset: int) -> None:
        self.at = offset

    async def position(self, tp: Any) -> int:
        return self.at

    async def getmany(self, tp: Any, timeout_ms: int) -> Any:
        if self.growth:  # others write meanwhile, and the live consumer hands it on
            for _ in range(self.growth.pop(0)):
                self.end += 1
                self.grown(self.record(self.end - 1))
        await asyncio.sleep(0)
        upto = min(self.end, self.at + 3)
        records = [self.record(offset) for offset in range(max(self.at, self.start), upto)]
        self.at = upto
        return {tp: records}

    @staticmethod
    def record(offset: int) -> Any:
        return SimpleNamespace(partition=0, offset=offset, value=b'{"task":"%d"}' % offset)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 30), st.integers(0, 40), st.lists(st.integers(0, 4), max_size=30), st.integers(0, 12))
async def test_whoever_comes_back_gets_each_result_once_while_more_are_written(
    behind: int, size: int, growth: list[int], gap: int
) -> None:
    log = Log(0, size)
    hub = Live(load(), lambda: 1)
    hub._place = {0: size}
    hub._there.set()
    log.growth, log.grown = list(growth), hub._hand_on
    before, live.JOIN_GAP = live.JOIN_GAP, gap
    original = live.probe

    @contextlib.asynccontextmanager
    async def in_memory(kafka: Any) -> AsyncIterator[Any]:
        yield log

    live.probe = in_memory  # type: ignore[assignment]  # read from memory
    try:
        first = max(0, size - behind)
        got = []
        async with hub.reading(ANY, {0: first}) as reader:
            async for offered in hub.catch_up(reader):
                got.append(offered)
            for _ in range(5):
                hub._hand_on(log.record(log.end))
                log.end += 1
            while (found := await reader.take(0.001)) is not None:
                got.append(found)
        assert [offered.value for offered in got] == [b'{"task":"%d"}' % n for n in range(first, log.end)]
        assert [offered.place for offered in got] == [f"0-{n + 1}" for n in range(first, log.end)]
        assert hub.readers == 0
    finally:
        live.JOIN_GAP, live.probe = before, original


async def test_a_place_that_retention_has_passed_is_said_and_one_behind_the_end_is_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = Log(10, 20)
    hub = Live(load(), lambda: 1)
    hub._place = {0: 20}
    hub._there.set()

    @contextlib.asynccontextmanager
    async def in_memory(kafka: Any) -> AsyncIterator[Any]:
        yield log

    monkeypatch.setattr(live, "probe", in_memory)
    async with hub.reading(ANY, {0: 3}) as reader:
        got = [offered async for offered in hub.catch_up(reader)]
    assert (got[0].value, got[0].place, len(got)) == (b"", "0-10", 11)
    async with hub.reading(ANY, {0: 10**15}) as reader:
        assert [offered async for offered in hub.catch_up(reader)] == []
        hub._hand_on(log.record(20))
        found = await reader.take(1)
        assert found is not None
        assert found.place == "0-21"


async def test_requests_for_streams_are_checked_before_one_begins() -> None:
    app, writer = gateway_app(max_streams=0)
    writer._partitioners = {"ai-results": SimpleNamespace(count=4)}  # type: ignore[dict-item]  # only the count is read
    async with client(app, "read") as http:
        for query, field in (("colour=red", "colour"), ("last_id=9", "last-event-id"), ("task=x&" * 101, "task")):
            reply = await http.get(f"/v1/results?{query}")
            assert (reply.status_code, reply.json()["field"]) == (422, field)
        reply = await http.get("/v1/results", headers={"last-event-id": "0-1.77-1"})
        assert (reply.status_code, reply.json()["reason"]) == (422, "bad-last-id")
        reply = await http.get("/v1/results")
        assert (reply.status_code, "retry-after" in reply.headers) == (429, True)


async def test_a_revoked_key_ends_the_stream_that_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    app, _ = gateway_app()
    gateway = app.state.gateway
    _, key = new_key(["read"], "test", 0)
    gateway.ring.entries[key.id] = key

    async def nothing(reader: Any) -> AsyncIterator[Any]:
        for each in ():
            yield each

    monkeypatch.setattr(gateway.live, "catch_up", nothing)
    monkeypatch.setattr("app.web.gateway.streams.LOOK_S", 0.01)
    reader = Reader(ANY, {0: 0}, 3)
    reader.offer(0, 1, RESULT, Filtered())
    offers = _offers(gateway, key.id, reader)
    assert (await anext(offers)).place == "0-1"
    gateway.ring.entries[key.id] = msgspec.structs.replace(key, revoked_ms=1)
    with pytest.raises(_RevokedError):
        await anext(offers)


async def test_a_client_that_has_gone_is_asked_nothing_more() -> None:
    messages = [{"type": "websocket.receive"}, {"type": "websocket.disconnect"}]

    async def receive() -> Any:
        return messages.pop(0)

    await _gone(receive, "websocket.disconnect")
    assert messages == []


@pytest.mark.parametrize(
    ("error", "code", "why"),
    [(SlowReader(), 4408, "slow reader"), (NotReachable(), 1013, "Kafka isn't reachable"),
     (_RevokedError(), 1008, "unknown-key")],
)  # fmt: skip
async def test_a_stream_that_ends_says_why_in_either_protocol(error: Exception, code: int, why: str) -> None:
    @contextlib.asynccontextmanager
    async def reading(*_: Any) -> AsyncIterator[None]:
        raise error
        yield

    sent: list[bytes] = []
    closed: list[tuple[int, str]] = []

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    async def close(*given: Any) -> None:
        closed.append(given)

    gateway: Any = SimpleNamespace(settings=load(), live=SimpleNamespace(reading=reading))
    await _Events(gateway, "key", Filter(), None)({}, asyncio.Event().wait, send)  # type: ignore[arg-type]
    socket: Any = SimpleNamespace(close=close)
    await _send_results(socket, gateway, "key", Filter(), None)
    event, data = sent[-1].decode().splitlines()[:2]
    assert (event, json.loads(data.removeprefix("data: "))) == ("event: closed", {"code": code, "reason": why})
    assert closed == [(code, why)]
