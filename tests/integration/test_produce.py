"""`headrace produce` as a user runs it, against a real broker."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from aiokafka.partitioner import murmur2

from app.broker.kafka import EmbeddedKafka
from app.sources.demo import demo_stream
from tests.helpers.records import envelope
from tests.helpers.topics import read

pytestmark = pytest.mark.integration

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(kafka: EmbeddedKafka, prefix: str, tmp_path: Path) -> Start:
    env = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    env |= {"HEADRACE_KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap, "HEADRACE_KAFKA__TOPIC_PREFIX": prefix}

    def run(*arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "app", "produce", *arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, stderr=pipe)

    return run


def finish(process: subprocess.Popen[bytes], stdin: bytes = b"") -> tuple[int, str, str]:
    out, err = process.communicate(stdin, timeout=60)
    return process.returncode, out.decode(), err.decode()


async def test_lines_arrive_byte_for_byte_and_refused_ones_are_named(
    kafka: EmbeddedKafka, prefix: str, start: Start, tmp_path: Path
) -> None:
    lines = [envelope(entity_id="u1"), b"{broken", envelope(payload="x" * 1_100_000), envelope(event_id="e2")]
    file = tmp_path / "events.jsonl"
    file.write_bytes(b"\r\n".join(lines))
    status, out, err = await asyncio.to_thread(finish, start(str(file)))
    assert status == 1
    assert "sent 3 records" in out
    assert "refused 1" in out
    assert "line 3: refused" in err
    found = await read(kafka.bootstrap, f"{prefix}raw-events")
    assert {(r.key, r.value) for r in found} == {(b"u1", lines[0]), (None, lines[1]), (b"e2", lines[3])}
    for record in found:
        if record.key:
            assert record.partition == (murmur2(record.key) & 0x7FFFFFFF) % 4


async def test_check_refuses_what_the_source_would(start: Start) -> None:
    status, out, err = await asyncio.to_thread(finish, start("-", "--check"), envelope() + b"\n{broken\n{}\n")
    assert status == 1
    assert "sent 1 records" in out
    assert "line 2: refused, invalid-json" in err
    assert "line 3: refused, missing-field" in err


async def test_the_demo_stream_arrives_and_ctrl_c_on_a_silent_pipe_gives_totals(
    kafka: EmbeddedKafka, prefix: str, start: Start
) -> None:
    status, out, _ = await asyncio.to_thread(finish, start("--demo", "--count", "500", "--seed", "3"))
    assert status == 0
    assert "sent 500 records" in out
    found = await read(kafka.bootstrap, f"{prefix}raw-events")
    stream = demo_stream(3, 0)
    assert sorted(r.key for r in found) == sorted(next(stream).key for _ in range(500))

    silent = start("-")
    assert silent.stdin is not None
    silent.stdin.write(envelope() + b"\n")
    silent.stdin.flush()
    deadline = asyncio.get_running_loop().time() + 30
    while len(await read(kafka.bootstrap, f"{prefix}raw-events")) < 501:
        assert asyncio.get_running_loop().time() < deadline
    silent.send_signal(signal.SIGINT)
    out = await asyncio.to_thread(silent.stdout.read)  # type: ignore[union-attr]
    assert await asyncio.to_thread(silent.wait, 20) == 0
    assert b"sent 1 records" in out
    silent.stdin.close()


async def test_a_topic_that_is_not_there_is_named(start: Start) -> None:
    status, _, err = await asyncio.to_thread(finish, start("-", "--topic", "nowhere"))
    assert status == 2
    assert "topic nowhere doesn't exist" in err
