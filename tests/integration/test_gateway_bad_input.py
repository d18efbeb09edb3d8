"""What hostile and careless clients send to a real gateway: each gets an answer in time, and only what is stored is accepted."""

import asyncio
import json
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
from app.settings import load
from app.sources.inputs import ProbeRecord
from app.sources.source import compile_source
from models.events import Bad, Event
from tests.helpers import topics
from tests.helpers.gateway import WebProcess, an_event
from tests.helpers.processes import rest
from tests.helpers.proxy import KafkaProxy

pytestmark = pytest.mark.integration

ANSWER_S = 10.0
"""No request may take longer: every limit of the gateway under test is a second or two."""
LIMITS = {
    "HEADRACE_GATEWAY__BODY_TIMEOUT_S": "1", "HEADRACE_GATEWAY__HEADER_TIMEOUT_S": "1",
    "HEADRACE_GATEWAY__MAX_BODY_BYTES": "1000000", "HEADRACE_GATEWAY__ACK_TIMEOUT_S": "2",
}  # fmt: skip


@pytest.fixture(scope="module")
def proxy(kafka: EmbeddedKafka) -> Iterator[KafkaProxy]:
    with KafkaProxy(kafka.port) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def gateway(proxy: KafkaProxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebProcess]:
    where = {
        "HEADRACE_KAFKA__BOOTSTRAP_SERVERS": f"127.0.0.1:{proxy.port}",
        "HEADRACE_KAFKA__TOPIC_PREFIX": f"t{uuid.uuid4().hex[:8]}-",
    }
    process = WebProcess(tmp_path_factory.mktemp("bad"), {**where, **LIMITS}).start()
    yield process
    process.kill()


@pytest.fixture(scope="module")
def token(gateway: WebProcess) -> str:
    return asyncio.run(gateway.key("produce", "read"))


async def stored(gateway: WebProcess) -> list[Any]:
    """Records of the source's topic."""
    prefix, bootstrap = gateway.env["HEADRACE_KAFKA__TOPIC_PREFIX"], gateway.env["HEADRACE_KAFKA__BOOTSTRAP_SERVERS"]
    return await topics.read(bootstrap, f"{prefix}raw-events")


def talk(gateway: WebProcess, *pieces: bytes, pause_s: float = 0.0) -> bytes:
    """Sends bytes as they are and reads until the other side ends the connection, or has answered once."""
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=ANSWER_S) as peer:
        try:
            for piece in pieces:
                peer.sendall(piece)
                rest(pause_s)
            found = b""
            while b"\r\n\r\n" not in found:
                piece = peer.recv(65536)
                if not piece:
                    break
                found += piece
        except (ConnectionResetError, BrokenPipeError):
            return b"reset"
    return found


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0


PATHS = [
    b"/v1/../metrics", b"//metrics", b"/metrics/", b"/./metrics", b"/%2e%2e/metrics", b"/v1/%2e%2e/metrics", b"/metrics%00",
    b"/metrics;x=/healthz", b"/healthz/../metrics", b"/healthz%2f..%2fmetrics", b"/METRICS", b"/metrics?a=/healthz",
    b"/v1//events", b"/v1/events/", b"/v1/events%20", b"/v1/results/", b"/v1/results//", b"/v1/results/..", b"/v1/results/%00",
    b"/v1/results/%ff%fe", b"/v1/results/%F0%9F%98%80%2F..", b"/v1/tables/../../metrics", b"/v1/tables/%2e%2e/x",
    b"/v1/tables/results/kept/..", b"http://elsewhere/metrics", b"*", b"/v1/results?last_id=%00&task=%ff", b"/\xff\xfe",
    b"/v1/events?source=../../etc/passwd", b"/v1/events?source=%00%ff",
]  # fmt: skip


@pytest.mark.parametrize("method", [b"GET", b"POST", b"HEAD", b"OPTIONS", b"TRACE"])
def test_no_trick_with_a_path_leads_past_the_key(gateway: WebProcess, method: bytes) -> None:
    for path in PATHS:
        answer = talk(
            gateway, method + b" " + path + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )
        assert 300 <= status(answer) < 500 or b"<!DOCTYPE html>" in answer or not answer, (method, path, answer[:200])
        assert b"headrace_gateway_requests" not in answer


async def test_paths_and_queries_that_are_no_text_are_answered_with_a_key_too(gateway: WebProcess, token: str) -> None:
    head = b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer " + token.encode() + b"\r\n"
    for path in PATHS:
        if path.startswith((b"/v1/results?", b"/metrics?")):
            continue  # a stream that was asked for, or the page itself
        for method in (b"GET", b"POST"):
            answer = await asyncio.to_thread(talk, gateway, method + b" " + path + head + b"Content-Length: 0\r\n\r\n")
            assert 200 <= status(answer) < 500 or status(answer) == 503 or not answer, (method, path, answer[:300])


BROKEN = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\r\n\r\n\r\n",
    b"POST /v1/events HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    b"POST /v1/events HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    b"POST /v1/events HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /metrics",
    b"POST /v1/events HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-A: a\x00b\r\n\r\n",
    b"GET /v1/results HTTP/1.1\r\nHost: x\r\nAuthorization: \xff\xfe\r\n\r\n",
    b"GET /v1/results HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n",
]  # fmt: skip


def test_what_is_no_http_is_refused_or_cut_off(gateway: WebProcess) -> None:
    for sent in BROKEN:
        answer = talk(gateway, sent)
        assert status(answer) in (0, 400, 401, 404, 411, 426, 505), (sent, answer[:200])
    assert gateway.answers("/healthz")


def test_bodies_that_are_too_large_never_end_or_hardly_come_are_cut_off(gateway: WebProcess, token: str) -> None:
    head = (
        b"POST /v1/events HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nAuthorization: Bearer "
        + token.encode()
        + b"\r\n"
    )
    said = talk(gateway, head + b"Content-Length: 99999999999\r\n\r\n{")
    assert status(said) == 413
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    endless = talk(gateway, head + b"Transfer-Encoding: chunked\r\n\r\n", *[chunk] * 400)
    assert status(endless) == 413 or endless == b"reset"
    drip = talk(gateway, head + b"Content-Length: 100\r\n\r\n", *[b"{"] * 15, pause_s=0.1)
    assert status(drip) == 408 or drip == b"reset"  # what came after the answer may take it away
    gone = talk(gateway, head + b"Content-Length: 100\r\n\r\n{", b"")
    assert status(gone) == 408
    assert gateway.answers("/readyz")


async def test_every_file_of_the_json_test_suite_as_body_or_payload_is_refused_or_becomes_an_event(
    gateway: WebProcess, token: str, shared: Path
) -> None:
    files = sorted((shared / "json-test-suite").rglob("*.json"))
    assert len(files) > 300
    kinds = (
        "application/json",
        "application/x-ndjson",
        "application/cloudevents+json",
        "application/cloudevents-batch+json",
    )
    taken: dict[str, str] = {}
    async with gateway.client(token) as http:
        http.timeout = httpx.Timeout(ANSWER_S)
        for number, file in enumerate(files):
            raw = file.read_bytes()
            wrapped = b'{"event_id":"j%d","event_type":"t","event_time":1796000000000,"payload":%b}' % (number, raw)
            for body, kind in ((raw, kinds[number % len(kinds)]), (wrapped, kinds[0])):
                reply = await http.post("/v1/events", content=body, headers={"content-type": kind})
                assert reply.status_code in (202, 400, 413), (file.name, kind, reply.text)
                if reply.status_code == 202:
                    assert body is wrapped, file.name
                    taken[f"j{number}"] = file.name
                else:
                    assert reply.json()["reason"], file.name
    assert [name for name in taken.values() if name.startswith("n_")] == []
    valid = {file.name for file in files if file.name.startswith("y_")}
    assert len(valid - set(taken.values())) == 0
    records = [record for record in await stored(gateway) if b'"event_id":"j' in record.value]
    assert len(records) == len(taken)
    source = load().sources[0]
    read = compile_source(source, load()).read
    for record in records:
        event = read(ProbeRecord(record.value, record.timestamp, record.key, record.headers))
        assert isinstance(event, Event | Bad)  # what ingest makes of it: an event, or a dead letter with its reason
        assert not isinstance(event, Event) or event.event_id in taken


async def test_places_that_no_stream_gave_are_refused_by_stream_and_socket(gateway: WebProcess, token: str) -> None:
    headers = {"Authorization": f"Bearer {token}"}
    url = f"{gateway.url.replace('http', 'ws')}/v1/results"
    async with gateway.client(token) as http:
        for forged in ("x", "0-5.99-1", "0--1", "0-" + "9" * 40, "%00", "%F0%9F%98%80", "0-1" + ".0-1" * 1500):
            reply = await http.get(f"/v1/results?last_id={forged}")
            assert reply.status_code in (400, 414, 422, 431), forged
            async with connect(f"{url}?last_id={forged}", additional_headers=headers, proxy=None) as peer:
                with pytest.raises(ConnectionClosed) as closed:
                    await peer.recv()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1008


UPGRADE = b"Host: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"


@pytest.mark.parametrize(
    ("request_line", "more", "code"),
    [
        (b"GET /v1/results?last_id=" + b"0-1." * 3000, b"", 414),
        (b"GET /v1/results", b"X-A: " + b"y" * 9000 + b"\r\n", 431),
        (b"GET /v1/results", b"".join(b"X-%d: y\r\n" % n for n in range(200)), 431),
        (b"GET /v1/results", b"Sec-WebSocket-Key: short\r\n", 400),
    ],
)
def test_a_socket_whose_handshake_cannot_be_read_is_answered_and_closed(
    gateway: WebProcess, request_line: bytes, more: bytes, code: int
) -> None:
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=ANSWER_S) as peer:
        peer.sendall(request_line + b" HTTP/1.1\r\n" + UPGRADE + more + b"\r\n")
        found = b""
        while piece := peer.recv(65536):  # until it is closed: a time-out fails the test
            found += piece
    assert status(found) == code


async def test_while_kafka_is_cut_off_each_request_is_refused_in_time_and_each_202_is_stored(
    gateway: WebProcess, token: str, proxy: KafkaProxy
) -> None:
    accepted: set[str] = set()
    refused: list[float] = []
    ended = False

    async def send(name: str) -> None:
        number = 0
        async with gateway.client(token) as http:
            while not ended:
                number += 1
                begun = time.monotonic()
                reply = await http.post("/v1/events", json=an_event(f"{name}-{number}"))
                if reply.status_code == 202:
                    accepted.add(f"{name}-{number}")
                    await asyncio.sleep(0.01)
                    continue
                assert (reply.status_code, "retry-after" in reply.headers) == (503, True), reply.text
                refused.append(time.monotonic() - begun)
                await asyncio.sleep(0.05)

    senders = [asyncio.create_task(send(f"s{n}")) for n in range(12)]
    try:
        for fault in (proxy.hold, proxy.cut):
            await _more(accepted, 50)
            await asyncio.to_thread(fault)
            await _more(refused, 24)
            await asyncio.to_thread(proxy.heal)
        await _more(accepted, 50)
    finally:
        ended = True
        await asyncio.to_thread(proxy.heal)
        await asyncio.gather(*senders)
    assert max(refused) < ANSWER_S
    ours = [record.value for record in await stored(gateway) if b'"event_id":"s' in record.value]
    kept = {json.loads(value)["event_id"] for value in ours}
    assert accepted <= kept


async def _more(grows: Any, count: int) -> None:
    size = len(grows) + count
    async with asyncio.timeout(60):
        while len(grows) < size:
            await asyncio.sleep(0.02)
