"""The gateway's replies, without Kafka: what is read, what is refused, and how."""

import asyncio
import gzip
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka.errors import KafkaTimeoutError, MessageSizeTooLargeError

from app.web.follow import STALE_S
from tests.helpers.asgi import client, gateway_app
from tests.helpers.gateway import an_event

JSON = {"content-type": "application/json"}
LINES = {"content-type": "application/x-ndjson"}


async def post(app: Any, body: bytes, headers: dict[str, str] | None = None, query: str = "") -> Any:
    async with client(app, "produce") as http:
        return await http.post(f"/v1/events{query}", content=body, headers=JSON if headers is None else headers)


async def test_one_event_is_stored_byte_for_byte_under_its_entity() -> None:
    app, writer = gateway_app()
    body = b'{ "event_type":"order.created","event_id":"e1", "event_time":1796000000000,"entity_id":"u7","x":1.0 }'
    reply = await post(app, body)
    assert reply.status_code == 202
    assert reply.json() == {"status": 202, "event_id": "e1", "partition": 0, "offset": 0}
    topic, item = writer.rows[0]
    assert (topic, item.key, item.value) == ("raw-events", b"u7", body)


async def test_a_list_tells_what_became_of_each_and_stores_the_good_ones() -> None:
    app, writer = gateway_app()
    body = json.dumps([an_event("e1"), an_event(...), an_event("e3", event_time="soon")]).encode()
    reply = await post(app, body)
    assert reply.status_code == 207
    answer = reply.json()
    assert (answer["accepted"], answer["refused"]) == (1, 2)
    assert [item.get("field") for item in answer["items"]] == [None, "event_id", "event_time"]
    assert [item.event_id for _, item in writer.rows] == ["e1"]


async def test_lines_are_split_at_lf_and_crlf_and_the_last_needs_no_end() -> None:
    app, writer = gateway_app()
    body = b"\r\n".join(json.dumps(an_event(f"e{n}")).encode() for n in range(3))
    reply = await post(app, body, LINES)
    assert reply.status_code == 202
    assert [item.event_id for _, item in writer.rows] == ["e0", "e1", "e2"]


async def test_a_list_without_any_good_event_is_a_problem_that_names_each() -> None:
    app, writer = gateway_app()
    reply = await post(app, b'[1, {"event_id": "x"}]')
    assert reply.status_code == 400
    assert reply.headers["content-type"] == "application/problem+json"
    assert [item["reason"] for item in reply.json()["items"]] == ["not-an-object", "missing-field"]
    assert writer.rows == []


@pytest.mark.parametrize(
    ("body", "status", "reason", "field"),
    [
        (b"", 400, "empty-value", ""),
        (b"[]", 400, "empty-list", ""),
        (b'{"event_id":"1"}{"event_id":"2"}', 400, "invalid-json", ""),
        (b'{"event_id": null, "event_type": "t", "event_time": 1}', 400, "missing-field", "event_id"),
        (b'{"event_id": 1.5, "event_type": "t", "event_time": 1}', 400, "bad-field", "event_id"),
        (b'{"event_id": "1", "event_type": "t", "event_time": 99999999999999999}', 400, "bad-time", "event_time"),
        ('{"event_id": "ü"'.encode("latin-1"), 400, "not-utf8", ""),
        (b"[" * 100_000, 400, "too-deep", ""),
        (b'{"event_id": "1", "event_type": "t", "event_time": 1, "x": "' + b"y" * 1_000_000 + b'"}', 413, "too-large", ""),
    ],
)  # fmt: skip
async def test_what_is_no_event_is_refused_with_reason_and_field(
    body: bytes, status: int, reason: str, field: str
) -> None:
    app, writer = gateway_app()
    reply = await post(app, body)
    problem = reply.json()
    assert (reply.status_code, problem["reason"], problem.get("field", "")) == (status, reason, field)
    assert problem["status"] == status
    assert writer.rows == []


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": "application/xml"}, 415),
        ({"content-type": "application/json; charset=utf-16"}, 415),
        ({**JSON, "content-encoding": "br"}, 415),
        ({**JSON, "content-encoding": "gzip"}, 400),
        ({**JSON, "idempotency-key": ""}, 400),
        ({**JSON, "idempotency-key": "x" * 256}, 400),
    ],
)
async def test_what_the_headers_say_is_refused(headers: dict[str, str], status: int) -> None:
    app, _ = gateway_app()
    assert (await post(app, json.dumps(an_event("e")).encode(), headers)).status_code == status


async def test_packed_bodies_count_unpacked() -> None:
    app, writer = gateway_app(max_body_bytes=100_000)
    packed = {**JSON, "content-encoding": "gzip"}
    good, bomb = gzip.compress(json.dumps(an_event("e1")).encode()), gzip.compress(b" " * 50_000_000)
    assert (await post(app, good, packed)).status_code == 202
    assert (await post(app, good + b"more", packed)).json()["reason"] == "bad-encoding"
    assert (await post(app, good[:-5], packed)).json()["reason"] == "bad-encoding"
    reply = await post(app, bomb, packed)
    assert (reply.status_code, reply.headers["connection"]) == (413, "close")
    assert len(writer.rows) == 1
    assert app.state.gateway.writer.in_flight_bytes == 0


async def test_an_endless_body_is_cut_off_at_the_limit() -> None:
    app, _ = gateway_app(max_body_bytes=100_000)
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 10_000
            yield b" " * 10_000

    async with client(app, "produce") as http:
        reply = await http.post("/v1/events", content=endless(), headers=JSON)
    assert reply.status_code == 413
    assert sent <= 120_000


async def test_a_body_that_does_not_come_is_given_up() -> None:
    app, _ = gateway_app(body_timeout_s=0.05)

    async def stuck() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    async with client(app, "produce") as http:
        reply = await http.post("/v1/events", content=stuck(), headers=JSON)
    assert (reply.status_code, reply.json()["reason"]) == (408, "body-timeout")


async def test_too_many_events_are_refused_whole() -> None:
    app, writer = gateway_app(max_items=2)
    reply = await post(app, json.dumps([an_event(n) for n in "abc"]).encode())
    assert (reply.status_code, reply.json()["reason"]) == (413, "too-many")
    assert writer.rows == []


async def test_without_kafka_nothing_is_taken_and_the_reply_says_when_to_come_back() -> None:
    app, writer = gateway_app()
    writer.down = True
    reply = await post(app, json.dumps(an_event("e1")).encode())
    assert (reply.status_code, reply.json()["reason"]) == (503, "kafka-unavailable")
    assert int(reply.headers["retry-after"]) > 0
    async with client(app) as http:
        assert (await http.get("/readyz")).status_code == 503
        assert (await http.get("/healthz")).status_code == 200


async def test_a_gateway_that_can_not_know_its_keys_any_more_lets_nobody_in_and_is_not_ready() -> None:
    app, _ = gateway_app()
    async with client(app, "read") as http:
        assert [(await http.get(path)).status_code for path in ("/readyz", "/metrics")] == [200, 200]
        app.state.gateway.keys.current_at = time.monotonic() - STALE_S
        refused = await http.get("/metrics")
        assert (refused.status_code, refused.json()["reason"]) == (503, "keys-unknown")
        ready = await http.get("/readyz")
    assert (ready.status_code, ready.json()["why"]) == (503, "API keys aren't known")


async def test_what_kafka_does_not_ack_is_no_202() -> None:
    app, writer = gateway_app()
    writer.failing = {"e1": KafkaTimeoutError(), "e2": MessageSizeTooLargeError()}
    answer = (await post(app, json.dumps([an_event(f"e{n}") for n in range(3)]).encode())).json()
    assert [item["status"] for item in answer["items"]] == [202, 503, 413]
    reply = await post(app, json.dumps([an_event("e1"), an_event("e2")]).encode())
    assert (reply.status_code, "retry-after" in reply.headers) == (503, True)
    assert (await post(app, json.dumps(an_event("e2")).encode())).status_code == 413


async def test_request_id_and_trace_context_go_into_the_record_and_the_id_comes_back() -> None:
    app, writer = gateway_app()
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    body = json.dumps(an_event("e1")).encode()
    reply = await post(app, body, {**JSON, "x-request-id": "r-1", "traceparent": trace, "tracestate": "a=b"})
    assert reply.headers["x-request-id"] == "r-1"
    assert list(writer.rows[0][1].headers) == [
        ("headrace.request-id", b"r-1"), ("traceparent", trace.encode()), ("tracestate", b"a=b"),
    ]  # fmt: skip
    forged = await post(app, body, {**JSON, "x-request-id": "<script>", "traceparent": "x"})
    assert len(forged.headers["x-request-id"]) == 32
    assert [name for name, _ in writer.rows[1][1].headers] == ["headrace.request-id"]


async def test_a_repeat_with_the_same_idempotency_key_gets_the_first_reply() -> None:
    app, writer = gateway_app()
    body, other = json.dumps(an_event("w1", amount=10)).encode(), json.dumps(an_event("w1", amount=99)).encode()
    headers = {**JSON, "idempotency-key": "k1"}
    async with client(app, "produce") as http, client(app, "produce") as stranger:
        first = await http.post("/v1/events", content=body, headers=headers)
        again = await http.post("/v1/events", content=body, headers=headers)
        conflict = await http.post("/v1/events", content=other, headers=headers)
        elsewhere = await stranger.post("/v1/events", content=other, headers=headers)
    assert (again.status_code, again.content, again.headers["idempotency-replayed"]) == (202, first.content, "true")
    assert (conflict.status_code, conflict.json()["field"]) == (422, "idempotency-key")
    assert elsewhere.status_code == 202
    assert [item.value for _, item in writer.rows] == [body, other]


async def test_a_request_that_failed_may_be_repeated_with_its_idempotency_key() -> None:
    app, writer = gateway_app()
    writer.failing = {"e1": KafkaTimeoutError()}
    headers = {**JSON, "idempotency-key": "k1"}
    async with client(app, "produce") as http:
        body = json.dumps(an_event("e1")).encode()
        assert (await http.post("/v1/events", content=body, headers=headers)).status_code == 503
        writer.failing = {}
        again = await http.post("/v1/events", content=body, headers=headers)
    assert (again.status_code, "idempotency-replayed" in again.headers) == (202, False)


async def test_a_list_of_which_a_part_is_not_known_to_be_stored_may_be_repeated_with_its_idempotency_key() -> None:
    app, writer = gateway_app()
    writer.failing = {"e2": KafkaTimeoutError()}
    headers, body = {**JSON, "idempotency-key": "k1"}, json.dumps([an_event("e1"), an_event("e2")]).encode()
    async with client(app, "produce") as http:
        first = await http.post("/v1/events", content=body, headers=headers)
        writer.failing = {}
        again = await http.post("/v1/events", content=body, headers=headers)
    assert (first.status_code, "retry-after" in first.headers) == (207, True)
    assert (again.status_code, "idempotency-replayed" in again.headers) == (202, False)


async def test_attributes_in_headers_are_part_of_what_an_idempotency_key_stands_for() -> None:
    app, writer = gateway_app()
    said = {**JSON, "ce-specversion": "1.0", "ce-source": "s", "ce-type": "t", "idempotency-key": "k1"}
    async with client(app, "produce") as http:
        first = await http.post("/v1/events", content=b'{"a":1}', headers={**said, "ce-id": "1"})
        other = await http.post("/v1/events", content=b'{"a":1}', headers={**said, "ce-id": "2"})
    assert (first.status_code, other.status_code) == (202, 422)
    assert len(writer.rows) == 1


async def test_a_key_that_sent_too_much_waits_and_is_told_how_long() -> None:
    app, _ = gateway_app(rate_per_s=10.0, burst_s=1.0)
    body = json.dumps([an_event(f"e{n}") for n in range(40)]).encode()
    async with client(app, "produce") as http, client(app, "produce") as other:
        first = await http.post("/v1/events", content=body, headers=JSON)
        second = await http.post("/v1/events", content=body, headers=JSON)
        others = await other.post("/v1/events", content=body, headers=JSON)
    assert (first.status_code, first.headers["ratelimit"].partition(";t=")[0]) == (202, '"events";r=0')
    assert (second.status_code, second.json()["reason"]) == (429, "rate-limited")
    assert 3 <= int(second.headers["retry-after"]) <= 4
    assert second.headers["ratelimit-policy"] == '"events";q=10;w=1'
    assert others.status_code == 202


async def test_web_pages_of_others_may_not_call_unless_a_setting_names_them() -> None:
    origin = {"origin": "https://shop.example", "access-control-request-method": "POST"}
    for allowed in ([], ["https://shop.example"]):
        app, _ = gateway_app(cors_origins=allowed)
        async with client(app) as http:
            reply = await http.options("/v1/events", headers=origin)
        assert reply.headers.get("access-control-allow-origin") == (allowed[0] if allowed else None)


async def test_every_file_of_the_json_test_suite_gets_a_reply_with_a_reason(shared: Path) -> None:
    files = sorted((shared / "json-test-suite").rglob("*.json"))
    assert len(files) > 300
    app, writer = gateway_app()
    async with client(app, "produce") as http:
        for file in files:
            body = file.read_bytes()
            for headers in (JSON, LINES, {"content-type": "application/cloudevents-batch+json"}):
                reply = await http.post("/v1/events", content=body, headers=headers)
                assert reply.status_code in (400, 413), (file.name, headers, reply.text)
                assert reply.json()["reason"], file.name
    assert writer.rows == []


async def test_errors_of_ours_are_a_problem_without_what_happened(monkeypatch: pytest.MonkeyPatch) -> None:
    app, writer = gateway_app()

    async def broken(topic: str, items: Any) -> Any:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(writer, "write", broken)
    reply = await post(app, json.dumps(an_event("e1")).encode())
    assert (reply.status_code, reply.json()["reason"]) == (500, "internal")
    assert "secret" not in reply.text
    assert reply.json()["request_id"] == reply.headers["x-request-id"]


async def test_an_unknown_source_is_named() -> None:
    app, _ = gateway_app()
    reply = await post(app, b"{}", query="?source=nope")
    assert (reply.status_code, reply.json()["field"]) == (404, "source")
