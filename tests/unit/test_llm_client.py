"""One wire call: what comes back, what is raised, what is sent."""

import asyncio
import json
import logging
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pydantic import SecretStr

from app import metrics
from app.errors import ModelRefused, ModelUnavailable, SettingsError
from app.llm.answer import PromptRefused, parse_retry_after
from app.llm.client import ChatClient, Completion
from app.llm.gate import Held
from app.settings import LlmSettings
from tests.helpers import model_faults as mf
from tests.helpers import modelserver as ms

pytestmark = pytest.mark.timeout(30)

MESSAGES = ({"role": "system", "content": "Classify."}, {"role": "user", "content": '1: "my refund"\n2: "hello"'})
SCHEMA = {"type": "object"}
ANSWER = '{"1":"payment","2":"other"}'


@pytest.fixture
async def server() -> AsyncIterator[ms.ModelServer]:
    async with ms.ModelServer() as running:
        yield running


async def call(server: ms.ModelServer | str, schema: Any = SCHEMA, **llm: Any) -> Completion:
    url = server if isinstance(server, str) else server.base_url
    async with ChatClient(LlmSettings(**{"base_url": url, "model": "m1", **llm})) as client:
        return await client.complete(MESSAGES, schema=schema, max_tokens=77)


async def test_completion_holds_text_usage_and_finish_reason(server: ms.ModelServer) -> None:
    server.latency_ms = 30
    found = await call(server)
    assert (found.text, found.finish_reason, found.model) == (ANSWER, "stop", "m1")
    assert (found.prompt_tokens, found.completion_tokens) == (8, 6)
    assert 25 <= found.latency_ms < 2000


async def test_request_holds_model_schema_and_limits(server: ms.ModelServer) -> None:
    await call(server)
    body = server.calls[0].body
    assert (body["model"], body["max_tokens"], body["temperature"]) == ("m1", 77, 0.0)
    assert body["response_format"]["json_schema"]["schema"] == SCHEMA
    assert "Authorization" not in server.calls[0].headers


async def test_key_is_sent_and_never_told(server: ms.ModelServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    server.api_key = "right-key-1234"
    assert (await call(server, api_key=SecretStr("right-key-1234\n"))).text == ANSWER
    with pytest.raises(ModelRefused) as refused:
        await call(server, api_key=SecretStr("wrong-key-5678"))
    with pytest.raises(SettingsError) as bad:
        await call(server, api_key=SecretStr("schlüssel-9999"))
    assert refused.value.status == 401
    told = caplog.text + str(refused.value) + repr(refused.value) + str(bad.value)
    assert not [key for key in ("1234", "5678", "9999") if f"key-{key}" in told or f"schlüssel-{key}" in told]


@pytest.mark.parametrize(
    ("fault", "status"),
    [(mf.status(code), code) for code in (408, 409, 425, 429, 500, 502, 503, 529)]
    + [
        (mf.reset(), None),
        (mf.raw("{"), 200),
        (mf.raw(""), 200),
        (mf.raw("[1]"), 200),
        (mf.raw('{"choices":[]}'), 200),
        (mf.raw("<html>", 200, "text/html"), 200),
        (mf.raw("[" * 100_000), 200),
        (mf.error_object(429), 429),
        (mf.raw('{"error":"overloaded"}'), 503),
        (mf.raw('data: {"error":{"message":"x"}}\n\n', 200, "text/event-stream"), 503),
        (mf.raw('data: {"choices":[{"delta":{"content":"{"}}]}\n\n', 200, "text/event-stream"), 200),
    ],
)
async def test_passing_trouble_is_retryable(server: ms.ModelServer, fault: mf.Fault, status: int | None) -> None:
    server.script(fault)
    with pytest.raises(ModelUnavailable) as raised:
        await call(server)
    assert (raised.value.status, raised.value.retryable, len(server.calls)) == (status, True, 1)


@pytest.mark.parametrize(
    ("fault", "status"),
    [(mf.status(code), code) for code in (400, 401, 402, 403, 404, 422, 302)]
    + [
        (mf.status(429, error_code="insufficient_quota"), 429),
        (mf.raw('{"error":{"code":"insufficient_quota","message":"x"}}'), 503),
        (mf.error_object(401, "bad key"), 401),
    ],
)
async def test_lasting_trouble_is_not_retryable(server: ms.ModelServer, fault: mf.Fault, status: int) -> None:
    server.script(fault)
    with pytest.raises(ModelRefused) as raised:
        await call(server)
    assert (raised.value.status, raised.value.retryable, len(server.calls)) == (status, False, 1)


async def test_error_does_not_repeat_what_the_server_says(server: ms.ModelServer) -> None:
    server.script(mf.raw('{"error":{"message":"you said: my refund","code":"bad \\n code<my refund>"}}', 400))
    with pytest.raises(ModelRefused) as raised:
        await call(server)
    assert "my refund" not in str(raised.value)


async def test_prompt_that_is_too_long_is_told_apart_from_bad_settings(server: ms.ModelServer) -> None:
    server.script(mf.raw('{"error":{"code":400,"type":"exceed_context_size_error","message":"request exceeds"}}', 400))
    with pytest.raises(PromptRefused):
        await call(server)


async def test_server_without_structured_output_is_asked_without_it_and_that_is_remembered(
    server: ms.ModelServer,
) -> None:
    server.script(mf.raw('{"error":{"message":"response_format is not supported"}}', 400))
    async with ChatClient(LlmSettings(base_url=server.base_url)) as client:
        for _ in range(2):
            assert (await client.complete(MESSAGES, schema=SCHEMA, max_tokens=9)).text == ANSWER
    assert ["response_format" in seen.body for seen in server.calls] == [True, False, False]


async def test_failure_without_schema_leaves_structured_output_on(server: ms.ModelServer) -> None:
    server.script(mf.raw('{"error":{"message":"bad schema"}}', 400), mf.status(503))
    async with ChatClient(LlmSettings(base_url=server.base_url)) as client:
        with pytest.raises(ModelUnavailable):
            await client.complete(MESSAGES, schema=SCHEMA, max_tokens=9)
        await client.complete(MESSAGES, schema=SCHEMA, max_tokens=9)
    assert ["response_format" in seen.body for seen in server.calls] == [True, False, True]


async def test_stream_that_nobody_asked_for_is_joined(server: ms.ModelServer) -> None:
    server.script(mf.stream())
    found = await call(server)
    assert (found.text, found.finish_reason, found.prompt_tokens) == (ANSWER, "stop", 8)


async def test_null_content_is_an_empty_answer(server: ms.ModelServer) -> None:
    server.script(mf.raw('{"choices":[{"message":{"content":null},"finish_reason":"length"}]}'))
    assert (await call(server)) == Completion(text="", finish_reason="length", latency_ms=pytest.approx(0, abs=2000))


@pytest.mark.parametrize("fault", [mf.hang(), mf.drip()])
async def test_deadline_holds_for_the_whole_call(server: ms.ModelServer, fault: mf.Fault) -> None:
    server.script(fault)
    started = asyncio.get_running_loop().time()
    with pytest.raises(ModelUnavailable, match=r"within 0\.4 s"):
        await call(server, timeout_s=0.4)
    assert 0.35 < asyncio.get_running_loop().time() - started < 2


async def test_nobody_listens_is_retryable() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
        with pytest.raises(ModelUnavailable, match="can't be reached"):
            await call(url)


async def test_proxy_of_the_environment_is_not_asked_for_loopback(
    server: ms.ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    assert (await call(server)).text == ANSWER


async def test_cancelled_call_stays_cancelled(server: ms.ModelServer) -> None:
    server.script(mf.hang())
    task = asyncio.ensure_future(call(server))
    while not server.calls:
        await asyncio.sleep(0.005)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def _one(connection: socket.socket) -> bool:
    """Reads one request; False when the client closed."""
    data = b""
    while b"\r\n\r\n" not in data:
        if not (more := connection.recv(65536)):
            return False
        data += more
    head, _, rest = data.partition(b"\r\n\r\n")
    length = int(
        next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")).split(b":")[1]
    )
    while len(rest) < length:
        rest += connection.recv(65536)
    return True


@contextmanager
def closing_server(answers: list[int]) -> Iterator[tuple[str, list[int]]]:
    """One connection after the other answers so many requests, then reads one more and closes without a word."""
    body = json.dumps({"choices": [{"message": {"content": ANSWER}, "finish_reason": "stop"}]}).encode()
    read: list[int] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def work() -> None:
        for number, count in enumerate(answers):
            try:
                connection, _ = listener.accept()
            except OSError:
                return  # the test closed it: fewer connections came than there are answers
            with connection:
                for turn in range(count + 1):
                    if not _one(connection):
                        break
                    read.append(number)
                    if turn < count:
                        head = (
                            f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
                        )
                        connection.sendall(head.encode() + body)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1", read
    finally:
        listener.close()


async def test_kept_connection_closed_by_the_server_is_a_failed_call_and_the_next_opens_another() -> None:
    with closing_server([1, 1]) as (url, read):
        async with ChatClient(LlmSettings(base_url=url)) as client:
            assert (await client.complete(MESSAGES, schema=None, max_tokens=9)).text == ANSWER
            with pytest.raises(ModelUnavailable):
                await client.complete(MESSAGES, schema=None, max_tokens=9)
            assert read == [0, 0]
            assert (await client.complete(MESSAGES, schema=None, max_tokens=9)).text == ANSWER
    assert read[:3] == [0, 0, 1]


DATE = "Mon, 30 Nov 2026 05:00:00 GMT"


@pytest.mark.parametrize(
    ("values", "wait_s"),
    [
        (["0.5"], 0.5),
        (["30, 2"], 30),
        (["2", "30"], 30),
        (["Mon, 30 Nov 2026 05:01:00 GMT"], 60),
        (["Mon, 30 Nov 2026 04:00:00 GMT"], 0),
        (["Fri, 31 Dec 9999 23:59:59 GMT"], 300),
        (["1e99"], 300),
        (["9" * 400], None),
        (["nan"], None),
        (["-5"], None),
        (["-5, 7, x"], None),
        (["-5, 7"], 7),
        (["soon"], None),
        ([""], None),
        ([], None),
    ],
)
def test_retry_after_is_the_longest_valid_wait(values: list[str], wait_s: float | None) -> None:
    assert parse_retry_after(values, DATE, 300) == wait_s


async def test_retry_after_comes_with_the_error(server: ms.ModelServer) -> None:
    server.script(mf.status(503, retry_after="0.5"))
    with pytest.raises(ModelUnavailable) as raised:
        await call(server)
    assert raised.value.retry_after_s == 0.5


async def test_a_call_that_waits_for_its_connection_is_not_sent_once_the_provider_asks_for_quiet(
    server: ms.ModelServer,
) -> None:
    counted = metrics.MODEL_CALLS.labels("main", "m1", "unreachable")
    before = counted._value.get()
    async with ChatClient(LlmSettings(base_url=server.base_url, model="m1")) as client:
        waiting = asyncio.ensure_future(client.complete(MESSAGES, schema=None, max_tokens=7))
        await asyncio.sleep(0)  # it is past every check, and connects
        client.gate.close(30.0)
        with pytest.raises(Held) as held:
            await waiting
    assert held.value.retry_after_s == pytest.approx(30, abs=1)
    assert server.calls == []
    assert counted._value.get() == before


async def test_retry_after_closes_the_gate_before_the_body_is_there(server: ms.ModelServer) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 429 Too Many\r\nRetry-After: 20\r\nContent-Length: 5\r\n\r\n")
        await writer.drain()
        await closed.wait()
        writer.write(b"later")
        writer.close()

    closed = asyncio.Event()
    slow = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{slow.sockets[0].getsockname()[1]}/v1"
    async with ChatClient(LlmSettings(base_url=url)) as client:
        call = asyncio.ensure_future(client.complete(MESSAGES, schema=None, max_tokens=7))
        async with asyncio.timeout(10):
            while not client.gate.left_s:
                await asyncio.sleep(0.01)
        assert not call.done()
        closed.set()
        with pytest.raises(ModelUnavailable):
            await call
    slow.close()
