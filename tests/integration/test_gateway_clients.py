"""Clients that others wrote, against a real gateway: the CloudEvents SDK, curl, a WebSocket client and an SSE client."""

import asyncio
import json
import os
import re
import subprocess
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cloudevents.core.bindings.http import to_binary_event, to_structured_event
from cloudevents.core.v1.event import CloudEvent
from httpx_sse import aconnect_sse
from websockets.asyncio.client import connect

from app.broker.kafka import EmbeddedKafka
from tests.helpers import topics
from tests.helpers.debian import needed, on_path
from tests.helpers.gateway import WebProcess
from tests.helpers.processes import wait_until
from tests.helpers.results import a_record, a_result

pytestmark = pytest.mark.integration

PAGE = Path(__file__).parents[2] / "docs" / "gateway.md"
AT = datetime(2026, 11, 29, 10, 0, tzinfo=UTC)


@pytest.fixture(scope="module")
def gateway(kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebProcess]:
    env = {
        "HEADRACE_KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap,
        "HEADRACE_KAFKA__TOPIC_PREFIX": f"t{uuid.uuid4().hex[:8]}-",
    }
    process = WebProcess(tmp_path_factory.mktemp("clients"), env).start()
    yield process
    process.kill()


@pytest.fixture(scope="module")
def token(gateway: WebProcess) -> str:
    return asyncio.run(gateway.key("produce", "read"))


async def stored(gateway: WebProcess) -> dict[str, Any]:
    """Envelopes on the source's topic, by event id."""
    prefix, bootstrap = gateway.env["HEADRACE_KAFKA__TOPIC_PREFIX"], gateway.env["HEADRACE_KAFKA__BOOTSTRAP_SERVERS"]
    found = [json.loads(record.value) for record in await topics.read(bootstrap, f"{prefix}raw-events")]
    return {event["event_id"]: event for event in found}


async def write_results(gateway: WebProcess, ids: list[str], **more: Any) -> None:
    prefix, bootstrap = gateway.env["HEADRACE_KAFKA__TOPIC_PREFIX"], gateway.env["HEADRACE_KAFKA__BOOTSTRAP_SERVERS"]
    rows = [(event_id.encode(), a_record(a_result(event_id, **more)).value) for event_id in ids]
    await topics.produce(bootstrap, f"{prefix}ai-results", rows)  # type: ignore[arg-type]  # bytes are bytes | None


def an_event(event_id: str, data: Any, **more: Any) -> CloudEvent:
    attributes = {"id": event_id, "source": "/shop", "type": "order.created", "specversion": "1.0", "time": AT, **more}
    return CloudEvent(attributes, data)


async def test_events_of_the_cloudevents_sdk_are_taken_as_it_sends_them(gateway: WebProcess, token: str) -> None:
    made = {
        "structured ü/1": to_structured_event(
            an_event(
                "structured ü/1", {"message": "nach 18 Uhr 😀"}, subject="user-1", datacontenttype="application/json"
            )
        ),
        "binary ü/1": to_binary_event(
            an_event("binary ü/1", {"message": "nach 18 Uhr 😀"}, subject="user-1", datacontenttype="application/json")
        ),
        "octets": to_binary_event(an_event("octets", bytes(range(256)), datacontenttype="application/octet-stream")),
    }
    async with gateway.client(token) as http:
        for message in made.values():
            reply = await http.post("/v1/events", content=message.body, headers=message.headers)
            assert reply.status_code == 202, reply.text
        batch = [json.loads(to_structured_event(an_event(f"batch-{n}", {"n": n})).body) for n in range(3)]
        content = {"content-type": "application/cloudevents-batch+json"}
        reply = await http.post("/v1/events", content=json.dumps(batch), headers=content)
        assert (reply.status_code, reply.json()["accepted"]) == (202, 3)
    found = await stored(gateway)
    for name in ("structured ü/1", "binary ü/1"):
        assert (found[name]["payload"], found[name]["entity_id"]) == ({"message": "nach 18 Uhr 😀"}, "user-1")
        assert found[name]["event_time"] == "2026-11-29T10:00:00Z"
    assert {f"batch-{n}" for n in range(3)} <= set(found)
    assert "payload_base64" in found["octets"]


def documented(contains: str) -> str:
    """The curl command of docs/gateway.md that has these words."""
    blocks = re.findall(r"^```console\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return next(block for block in blocks if block.startswith("curl") and contains in block)


@pytest.fixture
def curl(gateway: WebProcess, token: str, tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """Starts a command line as a shell would, for this gateway's port and a key."""
    needed(lambda: on_path("curl"), "curl")
    running: list[subprocess.Popen[bytes]] = []

    def start(command: str) -> subprocess.Popen[bytes]:
        line = command.replace("127.0.0.1:8080", f"127.0.0.1:{gateway.port}")
        env = {**os.environ, "KEY": token, "no_proxy": "*"}
        with (tmp_path / f"curl-{len(running)}").open("wb") as out:
            started = subprocess.Popen(["/bin/sh", "-c", f"exec {line}"], stdout=out, env=env, cwd=tmp_path)
        running.append(started)
        return started

    yield start
    for each in running:
        each.kill()
        each.wait()


def test_the_curl_commands_of_the_docs_do_what_they_say(gateway: WebProcess, tmp_path: Path, curl: Any) -> None:
    sent = curl(documented("o-1001"))
    assert sent.wait(30) == 0
    assert json.loads((tmp_path / "curl-0").read_text())["status"] == 202
    lines = "\n".join(
        json.dumps({"event_id": f"l{n}", "event_type": "t", "event_time": 1_796_000_000_000}) for n in range(5)
    )
    (tmp_path / "events.jsonl").write_text(lines)
    url = "http://127.0.0.1:8080/v1/events"
    as_lines = curl(
        f'curl -sS -w "\\n%{{http_code}}" -H "Authorization: Bearer $KEY" -H "Content-Type: application/x-ndjson" '
        f'-H "Expect: 100-continue" --data-binary @events.jsonl {url}'
    )
    assert as_lines.wait(30) == 0
    assert (tmp_path / "curl-1").read_text().splitlines()[-1] == "202"
    found = asyncio.run(stored(gateway))
    assert found["o-1001"]["entity_id"] == "user-7"
    assert {f"l{n}" for n in range(5)} <= set(found)

    waiting = curl(documented("wait=10").replace("wait=10", "wait=0").replace("curl ", "curl -sS "))
    assert waiting.wait(30) == 0
    assert json.loads((tmp_path / "curl-2").read_text())["status"] in (404, 503)  # no worker keeps results here
    curl(documented("curl -N"))

    def has_come() -> bool:
        asyncio.run(write_results(gateway, ["streamed"], task="shop", tier="deep"))
        return "streamed" in (tmp_path / "curl-3").read_text()

    wait_until(has_come, 30, "a result in curl's stream")
    assert "event: result\n" in (tmp_path / "curl-3").read_text()


async def test_an_sse_client_and_a_websocket_client_get_each_result_once_and_go_on(
    gateway: WebProcess, token: str
) -> None:
    start = ".".join(f"{p}-0" for p in range(4))
    await write_results(gateway, [f"a{n}" for n in range(20)], task="sse", why="line\nbreak  😀")
    headers = {"Authorization": f"Bearer {token}"}
    url = f"{gateway.url.replace('http', 'ws')}/v1/results?task=sse"

    async def by_sse(last_id: str, count: int) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        async with (
            gateway.client(token) as http,
            aconnect_sse(http, "GET", "/v1/results?task=sse", headers={"Last-Event-ID": last_id}) as source,
        ):
            async for event in source.aiter_sse():
                if event.event == "result":
                    assert json.loads(event.data)["why"] == "line\nbreak  😀"
                    found.append((event.id, json.loads(event.data)["event_id"]))
                if len(found) == count:
                    break
        return found

    async def by_socket(last_id: str, count: int) -> list[tuple[str, str]]:
        async with connect(f"{url}&last_id={last_id}", additional_headers=headers, proxy=None) as socket:
            messages: list[Any] = []
            while len(messages) < count:
                message = json.loads(await socket.recv())
                messages += [message] if "result" in message else []
        return [(message["id"], message["result"]["event_id"]) for message in messages]

    for read in (by_sse, by_socket):
        first = await read(start, 12)
        rest = await read(first[-1][0], 8)
        assert sorted(name for _, name in first + rest) == sorted(f"a{n}" for n in range(20))
        other = by_socket if read is by_sse else by_sse  # an id of one is an id of the other
        assert await other(first[-1][0], 8) == rest
