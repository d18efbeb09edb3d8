"""What the web process costs while nobody looks at the console, and while browsers do.

python -m tests.bench.console [--seconds 60] [--looking 5] [--workers 1] [--rate 200]
python -m tests.bench.console --keys 10000000 [--events 1500000] [--seconds 60]

So many events a second go through meanwhile, decided by rules.
A browser that looks is a Socket.IO client of ours that takes what Overview sends, as Chromium does, without drawing it.
The embedded Kafka, workers and the process share the machine. The exit status is 1 above the goal while nobody looks.

With --keys a worker with so many ids is asked instead, at rest and while it works at its highest rate: how long look-ups and
pages take. The exit status is 1 when a page's p99 is above the goal then.
"""

import argparse
import asyncio
import itertools
import json
import re
import sys
import tempfile
import uuid
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import aiokafka
import httpx
import psutil
import socketio

from app.broker.kafka import EmbeddedKafka
from tests.bench import ingest, looks
from tests.bench.ids import SMALL_SEGMENTS
from tests.bench.large import CLEANER_LATER
from tests.helpers.gateway import WebProcess, an_event
from tests.helpers.processes import Worker, wait_until

GOAL = 0.05
"""Of a core, while nobody looks."""


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.console", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--looking", type=int, default=5)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--rate", type=int, default=200)
    parser.add_argument("--keys", type=int, default=0, help="ids in the worker's table")
    parser.add_argument("--events", type=int, default=1_500_000, help="with --keys: enough for two times --seconds")
    given = parser.parse_args()
    if given.keys:
        sys.exit(with_keys(given) > looks.GOAL_MS)
    with tempfile.TemporaryDirectory() as name:
        broker = EmbeddedKafka(Path(name) / "kafka")
        broker.start()
        try:
            idle = measure(Path(name), broker.bootstrap, given)
        finally:
            broker.stop()
    sys.exit(idle > GOAL)


def with_keys(given: argparse.Namespace) -> float:
    """The largest p99 of a page, in ms."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        broker = EmbeddedKafka(Path(name) / "kafka", properties={**ingest.BROKER, **SMALL_SEGMENTS, **CLEANER_LATER})
        broker.start()
        try:
            return looks.run(Path(name), broker.bootstrap, given.keys, given.events, given.seconds)
        finally:
            broker.stop()


def measure(folder: Path, bootstrap: str, given: argparse.Namespace) -> float:
    env = {
        "HEADRACE_KAFKA__BOOTSTRAP_SERVERS": bootstrap, "HEADRACE_KAFKA__TOPIC_PREFIX": f"c{uuid.uuid4().hex[:6]}-",
        "HEADRACE_ROLE": "ingest",
    }  # fmt: skip
    web = WebProcess(folder / "web", env)
    workers = [Worker(folder / f"worker-{n}", env) for n in range(given.workers)]
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.wait_ready()
        web.start()
        assert web.process is not None
        process = psutil.Process(web.process.pid)
        link = wait_until(lambda: re.search(r"\S+/\?token=\S+", web.log.read_text()), 20, "the link")[0]
        idle = asyncio.run(under_load(env, given, used(process, given.seconds, 0, "")))
        say("nobody looks", idle, process)
        looking = asyncio.run(under_load(env, given, used(process, given.seconds, given.looking, link)))
        say(f"{given.looking} look at the overview", looking, process)
        return idle
    finally:
        web.kill()
        for worker in workers:
            worker.kill()


def say(what: str, share: float, process: psutil.Process) -> None:
    print(f"{what}: {share:.1%} of a core, {process.memory_info().rss / 1e6:.0f} MB")


async def under_load(env: dict[str, str], given: argparse.Namespace, work: Coroutine[Any, Any, float]) -> float:
    """Does the work while events go through."""
    sending = asyncio.create_task(send(env, given.rate))
    try:
        return await work
    finally:
        sending.cancel()


async def send(env: dict[str, str], rate: int) -> None:
    """So many events a second, in tenths."""
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=env["HEADRACE_KAFKA__BOOTSTRAP_SERVERS"], linger_ms=5)
    await producer.start()
    try:
        for number in itertools.count():
            for each in range(rate // 10):
                event = an_event(f"{uuid.uuid4()}", entity_id=f"user-{(number * 7 + each) % 500}")
                topic = f"{env['HEADRACE_KAFKA__TOPIC_PREFIX']}raw-events"
                await producer.send(topic, json.dumps(event).encode(), event["entity_id"].encode())
            await asyncio.sleep(0.1)
    finally:
        await producer.stop()


async def used(process: psutil.Process, seconds: float, looking: int, link: str) -> float:
    """The process's share of a core over so long."""
    clients: list[socketio.AsyncClient] = []
    if looking:
        async with httpx.AsyncClient(trust_env=False, follow_redirects=True) as http:
            await http.get(link)
            clients = [await looks.open_page(http, link.partition("/?")[0]) for _ in range(looking)]
    await asyncio.sleep(3)
    before = sum(process.cpu_times()[:2])
    await asyncio.sleep(seconds)
    after = sum(process.cpu_times()[:2])
    for client in clients:
        await client.disconnect()
    return float(after - before) / seconds


if __name__ == "__main__":
    main()
