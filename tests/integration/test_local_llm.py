"""The real llama.cpp server with the tiny model: protocol, schema and usage. Its classes are at chance."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from app.errors import ModelError, ModelUnavailable
from app.llm.client import ChatClient
from app.llm.deep import DeepClassifier
from app.llm.local_server import LocalModelServer
from app.llm.parse import parse_answers
from app.llm.prompts import PromptBuilder
from app.settings import LlmSettings, Settings, load
from app.sources.demo import demo_texts
from models.events import ModelRequest, Origin

pytestmark = [pytest.mark.timeout(180)]

TEXTS = [text for text, _ in demo_texts()[::11]][:20]
IDS = [category.id for category in load().tasks[0].categories]


@pytest.fixture(scope="module")
def server() -> Iterator[LocalModelServer]:
    with LocalModelServer() as running:
        yield running


def settings(base_url: str) -> Settings:
    return load().model_copy(update={"llm": LlmSettings(base_url=base_url, batch_wait_ms=50, timeout_s=120)})


async def test_twenty_items_under_a_schema_are_all_answered(server: LocalModelServer) -> None:
    prompt = PromptBuilder(load().tasks[0], load().llm).build(TEXTS, masked=False)
    async with ChatClient(settings(server.base_url).llm) as client:
        found = await client.complete(prompt.messages, schema=prompt.schema, max_tokens=prompt.max_tokens)
    answers = parse_answers(found.text, 20, IDS, found.finish_reason)
    print(f"20 items: {found.prompt_tokens}+{found.completion_tokens} tokens, {found.latency_ms} ms")
    assert list(answers) == list(range(1, 21))
    assert (found.finish_reason, found.model) == ("stop", "smollm2-135m-instruct")
    assert found.completion_tokens <= prompt.max_tokens
    assert found.prompt_tokens < 1000


async def test_deep_tier_gets_a_checked_answer_for_each_event(server: LocalModelServer) -> None:
    deep = DeepClassifier(settings(server.base_url))
    requests = [
        ModelRequest(
            event_id=str(number), event_type="t", event_time_ms=0, entity="u", task="shop", text=text,
            source=Origin("raw", 0, number), received_ms=0,
        )
        for number, text in enumerate(TEXTS[:5])
    ]  # fmt: skip
    answers = await asyncio.gather(*(deep.classify(request) for request in requests))
    await deep.close()
    assert {answer.category for answer in answers} <= set(IDS)
    assert all(answer.prompt_tokens > 0 and answer.completion_tokens > 0 for answer in answers)


async def test_prompt_beyond_the_context_is_told_apart(server: LocalModelServer) -> None:
    prompt = PromptBuilder(load().tasks[0], load().llm).build(["退款" * 500] * 40, masked=False)
    async with ChatClient(settings(server.base_url).llm) as client:
        with pytest.raises(ModelError) as refused:
            await client.complete(prompt.messages, schema=prompt.schema, max_tokens=prompt.max_tokens)
    assert type(refused.value).__name__ == "PromptRefused"


def test_port_in_use_is_said_plainly(server: LocalModelServer) -> None:
    with pytest.raises(ModelError, match=f"port {server.port} on 127.0.0.1 is in use"):
        LocalModelServer(port=server.port).start()


async def test_killed_server_is_unavailable_and_comes_back_on_its_port() -> None:
    server = LocalModelServer()
    server.start()
    port = server.port
    async with ChatClient(settings(server.base_url).llm) as client:
        await client.complete([{"role": "user", "content": "hi"}], schema=None, max_tokens=1)
        server.kill()
        with pytest.raises(ModelUnavailable):
            await client.complete([{"role": "user", "content": "hi"}], schema=None, max_tokens=1)
        server.start()
        try:
            found = await client.complete([{"role": "user", "content": "hi"}], schema=None, max_tokens=1)
        finally:
            server.stop()
    assert (server.port, found.completion_tokens) == (port, 1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_command_says_ready_and_stops_in_order(number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", "from app.main import main; main()", "llm", "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline().startswith("ready 127.0.0.1:")
        process.send_signal(number)
        assert process.wait(15) == 0
        assert process.stdout.read() == ""
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_server_dies_with_its_parent() -> None:
    code = (
        "import signal; from app.llm.local_server import LocalModelServer; s = LocalModelServer(); s.start();"
        "print(s.process.pid, flush=True); signal.pause()"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    _, alive = psutil.wait_procs([child], timeout=15)
    assert alive == []
