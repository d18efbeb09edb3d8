"""Real data through the samples of docs/samples: what a user's own topic becomes."""

import asyncio
import csv
import json
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Fleet
from tests.helpers import topics
from tests.helpers.modelserver import ModelServer

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]

SAMPLES = Path(__file__).parents[2] / "docs" / "samples"
QUESTIONS = int(os.environ.get("HEADRACE_TEST_QUESTIONS", "400"))
"""How many of the 3,080 questions the ordinary run takes; all of them take the light tier two minutes."""


def sample(name: str, topic: str) -> str:
    """A sample with its topic renamed to one of this test's own."""
    text = (SAMPLES / f"{name}.toml").read_text()
    return re.sub(r'^topic = ".*"$', f'topic = "{topic}"', text, flags=re.MULTILINE)


async def until_count(fleet: Fleet, expected: int, seconds: float, *names: str) -> dict[str, list[Any]]:
    deadline = time.monotonic() + seconds
    while True:
        found = {name: await topics.read(fleet.bootstrap, fleet.prefix + name) for name in names}
        if sum(map(len, found.values())) >= expected:
            return found
        assert time.monotonic() < deadline, {name: len(rows) for name, rows in found.items()}
        await asyncio.sleep(1)


async def send_file(fleet: Fleet, worker: Any, path: Path, topic: str) -> None:
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-m", "app", "produce", str(path), "--topic", topic],
        env=worker.env, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


async def test_bank_questions_end_once_each_through_two_kills_and_a_second_worker(fleet: Fleet, shared: Path) -> None:
    rnd = random.Random(5)
    with (shared / "banking77" / "test.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))[:QUESTIONS]
    records: list[tuple[bytes | None, bytes | None]] = []
    broken = 0
    for row in rows:
        value = json.dumps(row).encode()
        records.append((b"", value))
        if rnd.random() < 0.1:
            records.append((b"", value))
        if rnd.random() < 0.02:
            broken += 1
            records.append((None, value[: rnd.randrange(1, len(value) - 1)]))
    topic = f"{fleet.prefix}bank"
    await topics.create(fleet.bootstrap, topic)
    async with ModelServer(latency_ms=100) as server:
        env = {"HEADRACE_LLM__BASE_URL": server.base_url, "HEADRACE_LLM__MODEL": "stub"}
        first = fleet.worker(sample("banking77", topic), **env)
        server.by_text = {row["text"]: "card" for row in rows}
        first.start()
        await asyncio.to_thread(first.wait_ready)
        await topics.produce(fleet.bootstrap, topic, records)
        for _ in range(2):
            await until_count(fleet, 20 * first.starts, 120, "ai-results")
            first.kill()
            first.start()
        second = fleet.worker(sample("banking77", topic), **env)
        second.start()
        distinct = len({row["text"] for row in rows})
        found = await until_count(fleet, distinct + broken, 60 + QUESTIONS / 5, "ai-results", "dead-letter", "manual-review",
                                  "sink-noise")  # fmt: skip
        results = [json.loads(r.value) for r in found["ai-results"]]
        per_id = Counter(r["event_id"] for r in results)
        assert set(per_id.values()) == {1}
        assert (len(per_id), len(found["dead-letter"])) == (distinct, broken)
        assert {dict(r.headers)["headrace.reason"] for r in found["dead-letter"]} == {b"invalid-json"}
        assert (found["manual-review"], found["sink-noise"]) == ([], [])
        print("tiers:", Counter(r["tier"] for r in results), "dead:", broken, "of", len(records))
        assert first.stop() == 0
        assert second.stop() == 0


async def test_an_access_log_becomes_results_and_static_files_noise(fleet: Fleet, shared: Path) -> None:
    path, topic = shared / "access-log" / "apache_logs.txt", f"{fleet.prefix}access"
    lines = set(path.read_bytes().splitlines())
    worker = fleet.started(sample("access-log", topic))
    await send_file(fleet, worker, path, topic)
    found = await until_count(fleet, len(lines), 120, "ai-results", "sink-noise", "dead-letter")
    counts = {name: len(rows) for name, rows in found.items()}
    assert counts["dead-letter"] == 0
    static = re.compile(
        rb'"[A-Z]+ \S+\.(png|jpe?g|gif|svg|ico|css|js|ttf|woff2?|map)(\?\S*)? HTTP/[\d.]+" (200|206|301|304) '
    )
    assert counts["sink-noise"] == sum(bool(static.search(line)) for line in lines)
    assert counts["ai-results"] == len(lines) - counts["sink-noise"]
    results = [json.loads(r.value) for r in found["ai-results"]]
    assert {r["tier"] for r in results} == {"rule"}
    print(counts, Counter(r["category"] for r in results))


async def test_failed_logins_of_an_auth_log_are_a_category_by_rule(fleet: Fleet, shared: Path) -> None:
    path, topic = shared / "auth-log" / "auth.log", f"{fleet.prefix}auth"
    lines = {line for line in path.read_bytes().splitlines() if line.strip()}
    worker = fleet.started(sample("auth-log", topic))
    await send_file(fleet, worker, path, topic)
    found = await until_count(fleet, len(lines), 120, "ai-results", "sink-noise", "dead-letter")
    assert found["dead-letter"] == []
    results = [json.loads(r.value) for r in found["ai-results"]]
    by_category = Counter(r["category"] for r in results)
    failed = sum(b"Failed password" in line or b"Invalid user" in line for line in lines)
    print({name: len(rows) for name, rows in found.items()}, by_category)
    assert by_category["failed-login"] >= failed
