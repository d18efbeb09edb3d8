"""A real gateway process on a real broker: what it answers 202 for is stored, whatever happens to it."""

import asyncio
import json
import signal
import socket
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from app.broker.kafka import EmbeddedKafka
from tests.helpers import topics
from tests.helpers.gateway import WebProcess, an_event
from tests.helpers.processes import free_port

pytestmark = pytest.mark.integration


def environment(bootstrap: str, prefix: str, **more: str) -> dict[str, str]:
    return {"HEADRACE_KAFKA__BOOTSTRAP_SERVERS": bootstrap, "HEADRACE_KAFKA__TOPIC_PREFIX": prefix, **more}


@pytest.fixture(scope="module")
def gateway(kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebProcess]:
    """One for the tests that don't end it."""
    env = environment(kafka.bootstrap, f"t{uuid.uuid4().hex[:8]}-", HEADRACE_GATEWAY__HEADER_TIMEOUT_S="1")
    process = WebProcess(tmp_path_factory.mktemp("gateway"), env).start()
    yield process
    process.kill()


@pytest.fixture(scope="module")
def token(gateway: WebProcess) -> str:
    return gateway.command("keys", "create", "--scope", "produce").split()[-1]


async def stored(gateway: WebProcess) -> list[Any]:
    prefix, bootstrap = gateway.env["HEADRACE_KAFKA__TOPIC_PREFIX"], gateway.env["HEADRACE_KAFKA__BOOTSTRAP_SERVERS"]
    return await topics.read(bootstrap, f"{prefix}raw-events")


async def test_each_202_names_the_place_of_a_stored_record(gateway: WebProcess, token: str) -> None:
    events = [an_event(f"p{n}", entity_id=f"u{n % 7}") for n in range(200)]
    async with gateway.client(token) as http:
        answer = (await http.post("/v1/events", json=events, headers={"x-request-id": "r-7"})).json()
    records = {(r.partition, r.offset): r for r in await stored(gateway)}
    assert answer["accepted"] == 200
    for event, item in zip(events, answer["items"], strict=True):
        record = records[item["partition"], item["offset"]]
        assert (json.loads(record.value), record.key) == (event, event["entity_id"].encode())
        assert ("headrace.request-id", b"r-7") in record.headers


async def test_keys_are_listed_without_secrets_and_a_revoked_one_is_refused_at_once(gateway: WebProcess) -> None:
    token = await gateway.key("produce", "read")
    key_id = token.split("_")[1]
    async with gateway.client(token) as http:
        assert (await http.get("/metrics")).status_code == 200
        await asyncio.to_thread(gateway.command, "keys", "revoke", key_id)
        deadline = time.monotonic() + 5
        while (reply := await http.get("/metrics")).status_code == 200:
            assert time.monotonic() < deadline
        assert reply.status_code == 401
    listed = await asyncio.to_thread(gateway.command, "keys", "list")
    line = next(line for line in listed.splitlines() if line.startswith(key_id))
    assert "revoked" in line
    assert token.split("_", 2)[2] not in listed


async def test_headers_that_never_end_are_cut_off(gateway: WebProcess) -> None:
    def talk(first: bytes, more: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", gateway.port), timeout=20) as peer:
            peer.sendall(first)
            try:
                for _ in range(400 if more else 0):
                    peer.sendall(more)
                return peer.recv(1000)  # until the other side ends it
            except (ConnectionResetError, BrokenPipeError):
                return b"reset"

    slow = await asyncio.to_thread(talk, b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-A: ", b"")
    assert slow in (b"", b"reset")
    large = await asyncio.to_thread(talk, b"GET /healthz HTTP/1.1\r\nHost: x\r\n", b"X-A: " + b"y" * 1000 + b"\r\n")
    assert large.startswith(b"HTTP/1.1 431") or large == b"reset"
    async with httpx.AsyncClient(trust_env=False) as http:
        assert (await http.get(f"{gateway.url}/healthz")).status_code == 200


async def test_without_a_broker_it_lives_and_refuses_in_time(tmp_path: Path) -> None:
    process = WebProcess(tmp_path, environment(f"127.0.0.1:{free_port()}", "x-")).start("/healthz")
    try:
        async with process.client("hr_000000000000_" + "x" * 43) as http:
            ready = await http.get("/readyz")
            begun = time.monotonic()
            reply = await http.post("/v1/events", json=an_event("e1"))
        assert (ready.status_code, ready.json()["ready"]) == (503, False)
        assert reply.status_code == 503
        assert int(reply.headers["retry-after"]) > 0
        assert time.monotonic() - begun < 10
        process.signal(signal.SIGTERM)
        process.wait(20)
    finally:
        process.kill()


async def test_sigterm_lets_a_running_request_end_and_then_nobody_in(
    kafka: EmbeddedKafka, tmp_path: Path, prefix: str
) -> None:
    process = WebProcess(tmp_path, environment(kafka.bootstrap, prefix, HEADRACE_GATEWAY__DRAIN_S="3")).start()
    try:
        token = await process.key("produce")
        told, go_on = asyncio.Event(), asyncio.Event()

        async def body() -> Any:
            yield b'{"event_id":"late","event_type":"t",'
            told.set()
            await go_on.wait()
            yield b'"event_time":1796000000000}'

        async with process.client(token) as http:
            sending = asyncio.create_task(
                http.post("/v1/events", content=body(), headers={"content-type": "application/json"})
            )
            await told.wait()
            process.signal(signal.SIGTERM)
            while (reply := await http.get("/readyz")).status_code == 200:
                await asyncio.sleep(0.01)
            assert reply.json()["why"] == "stopping"
            go_on.set()
            assert (await sending).status_code == 202
        assert process.wait(20) in (0, -signal.SIGTERM)
        assert [json.loads(record.value)["event_id"] for record in await stored(process)] == ["late"]
    finally:
        process.kill()


async def test_a_kill_loses_nothing_that_was_answered(kafka: EmbeddedKafka, tmp_path: Path, prefix: str) -> None:
    process = WebProcess(tmp_path, environment(kafka.bootstrap, prefix)).start()
    try:
        token = await process.key("produce")
        answered: set[str] = set()

        async def send(number: int) -> None:
            async with process.client(token) as http:
                for n in range(10_000):
                    ids = [f"{number}-{n}-{i}" for i in range(20 if number % 2 else 1)]
                    events = [an_event(event_id) for event_id in ids]
                    try:
                        reply = await http.post("/v1/events", json=events if number % 2 else events[0])
                    except httpx.HTTPError:
                        return
                    if reply.status_code == 202:
                        answered.update(ids)

        senders = [asyncio.create_task(send(number)) for number in range(32)]
        while len(answered) < 1500:
            await asyncio.sleep(0.01)
        process.signal(signal.SIGKILL)
        await asyncio.gather(*senders)
        kept = {json.loads(record.value)["event_id"] for record in await stored(process)}
        assert answered <= kept
        assert len(answered) >= 1500
    finally:
        process.kill()


async def write_results(gateway: WebProcess, ids: list[str], tier: str = "rule") -> None:
    prefix, bootstrap = gateway.env["HEADRACE_KAFKA__TOPIC_PREFIX"], gateway.env["HEADRACE_KAFKA__BOOTSTRAP_SERVERS"]
    rows = [
        (event_id.encode(), json.dumps({"event_id": event_id, "tier": tier, "task": "<b>"}).encode())
        for event_id in ids
    ]
    await topics.produce(bootstrap, f"{prefix}ai-results", rows)  # type: ignore[arg-type]  # bytes are bytes | None


async def events(http: httpx.AsyncClient, count: int, query: str, last_id: str = "") -> tuple[list[str], str]:
    """Reads so many results of the event stream, as an EventSource does; returns their event ids and the last id."""
    found: list[str] = []
    headers = {"last-event-id": last_id} if last_id else {}
    async with http.stream("GET", f"/v1/results?{query}", headers=headers) as reply:
        assert (reply.status_code, reply.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        async for line in reply.aiter_lines():
            if line.startswith("id: "):
                last_id = line[4:]
            elif line.startswith("data: "):
                found.append(json.loads(line[6:])["event_id"])
            if len(found) == count and not line:
                break
    return found, last_id


async def test_a_stream_goes_on_behind_its_last_id_and_shows_only_what_was_asked(gateway: WebProcess) -> None:
    token = await gateway.key("read")
    async with gateway.client(token) as http:
        waiting = asyncio.create_task(events(http, 10, "tier=deep"))
        first = [f"d{n}" for n in range(10)]
        number = 0
        while not waiting.done():  # written again and again until the stream is there: it begins with now
            await write_results(gateway, [f"r{number}"])
            await write_results(gateway, first, "deep")
            number += 1
            await asyncio.sleep(0.1)
        found, last_id = await waiting
        assert set(found) <= set(first)
        await write_results(gateway, [f"x{n}" for n in range(2000)])
        await write_results(gateway, [f"y{n}" for n in range(700)], "deep")
        place = {int(p): int(at) for p, _, at in (part.partition("-") for part in last_id.split("."))}
        prefix = gateway.env["HEADRACE_KAFKA__TOPIC_PREFIX"]
        records = await topics.read(gateway.env["HEADRACE_KAFKA__BOOTSTRAP_SERVERS"], f"{prefix}ai-results")
        later = [json.loads(record.value) for record in records if record.offset >= place[record.partition]]
        expected = [result["event_id"] for result in later if result["tier"] == "deep"]
        again, _ = await events(http, len(expected), "tier=deep", last_id)
        assert len(expected) >= 700
        assert sorted(again) == sorted(expected)
        async with http.stream("GET", "/v1/results?last_id=0-1.9-1") as reply:
            assert reply.status_code == 422


async def test_a_websocket_gets_results_and_is_told_when_it_may_not_or_the_gateway_stops(
    kafka: EmbeddedKafka, tmp_path: Path, prefix: str
) -> None:
    process = WebProcess(tmp_path, environment(kafka.bootstrap, prefix)).start()
    url = f"ws://127.0.0.1:{process.port}/v1/results"
    try:
        for scope in ("produce", "none"):
            wrong = {"Authorization": f"Bearer {await process.key('produce') if scope == 'produce' else 'x'}"}
            async with connect(url, additional_headers=wrong, proxy=None) as socket:
                with pytest.raises(ConnectionClosed) as refused:
                    await socket.recv()
            assert refused.value.rcvd is not None
            assert refused.value.rcvd.code == 1008
        headers = {"Authorization": f"Bearer {await process.key('read')}"}
        async with connect(f"{url}?last_id=0-0.1-0.2-0.3-0", additional_headers=headers, proxy=None) as socket:
            await write_results(process, ["a", "b", "c"])
            messages = [json.loads(await socket.recv()) for _ in range(3)]
            assert {message["result"]["event_id"] for message in messages} == {"a", "b", "c"}
            place = messages[1]["id"]
            async with connect(f"{url}?last_id={place}", additional_headers=headers, proxy=None) as other:
                assert json.loads(await other.recv()) == messages[2]
            process.signal(signal.SIGTERM)
            with pytest.raises(ConnectionClosed) as stopped:
                await socket.recv()
        assert stopped.value.rcvd is not None
        assert stopped.value.rcvd.code in (1001, 1012)
        assert process.wait(20) in (0, -signal.SIGTERM)
    finally:
        process.kill()
