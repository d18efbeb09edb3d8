"""The gateway under load: lists, single events at a steady rate, and WebSockets that wait.

python -m tests.bench.gateway [--seconds 10] [--rate 500] [--sockets 1000] [--worker]

One gateway process, the embedded Kafka and the client share the machine; with --worker also a worker that takes what comes, by
rule. The exit status is 1 when a request failed.
"""

import argparse
import asyncio
import gc
import json
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from app.broker.kafka import EmbeddedKafka
from app.waiting import poll
from tests.bench.meter import at_rest
from tests.helpers.gateway import WebProcess
from tests.helpers.processes import Worker

LIST_ITEMS = 100
CONNECTIONS = 8
BODIES = 50
SINGLE_CONNECTIONS = 64
BY_RULE = {"HEADRACE_LIGHT__ENABLED": "false"}
"""The built-in rules take orders; nothing needs a model."""
WORKED_OFF_S = 120
WARM_S = 20
"""A broker that has just begun compiles what transactions need, on the cores that all share; p99 is 120 to 160 ms meanwhile."""


@dataclass
class Times:
    """Of the requests of one run."""

    seconds: list[float] = field(default_factory=list)
    failed: int = 0

    def quantile(self, share: float) -> float:
        """In ms."""
        return sorted(self.seconds)[int(len(self.seconds) * share)] * 1000


def event(name: str, number: int) -> dict[str, Any]:
    return {
        "event_id": f"{name}-{number}", "event_type": "order.created", "event_time": 1_796_000_000_000,
        "entity_id": f"user-{number % 5000}",
        "payload": {"message": "please deliver after six to the door, number 7", "amount": 17.5, "channel": "web"},
    }  # fmt: skip


async def send(http: aiohttp.ClientSession, body: bytes, times: Times) -> None:
    begun = time.perf_counter()
    async with http.post("/v1/events", data=body) as reply:
        await reply.read()
    times.seconds.append(time.perf_counter() - begun)
    times.failed += reply.status != 202


async def lists(http: aiohttp.ClientSession, seconds: float) -> tuple[Times, float]:
    """As fast as it goes; returns the times and events a second."""
    bodies = [
        json.dumps([event(f"l{n}", n * LIST_ITEMS + i) for i in range(LIST_ITEMS)]).encode() for n in range(BODIES)
    ]
    times, begun = Times(), time.perf_counter()

    async def one(first: int) -> None:
        number = first
        while time.perf_counter() - begun < seconds:
            await send(http, bodies[number % BODIES], times)
            number += 1

    await asyncio.gather(*[one(n) for n in range(CONNECTIONS)])
    return times, len(times.seconds) * LIST_ITEMS / (time.perf_counter() - begun)


async def singles(http: aiohttp.ClientSession, seconds: float, rate: float) -> Times:
    """At a steady rate, whatever the replies do."""
    times, begun, tasks = Times(), time.perf_counter(), []
    for number in range(int(seconds * rate)):
        wait_s = begun + number / rate - time.perf_counter()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        tasks.append(asyncio.create_task(send(http, json.dumps(event("s", number)).encode(), times)))
    await asyncio.gather(*tasks)
    return times


async def sockets(web: WebProcess, token: str, process: psutil.Process, count: int) -> float:
    """Opens WebSockets; returns MB a thousand of them."""
    before = process.memory_info().rss
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(web.url, headers=headers, connector=aiohttp.TCPConnector(limit=0)) as http:
        opened = [await http.ws_connect("/v1/results") for _ in range(count)]
        await asyncio.sleep(2)
        grown = process.memory_info().rss - before
        for each in opened:
            await each.close()
    return grown / 1e6 * 1000 / count


async def measure(web: WebProcess, worker: Worker | None, options: argparse.Namespace) -> int:
    assert web.process is not None
    process = psutil.Process(web.process.pid)
    token = await web.key("produce", "read")
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    connector = aiohttp.TCPConnector(limit=SINGLE_CONNECTIONS)
    async with aiohttp.ClientSession(web.url, headers=headers, connector=connector) as http:
        await lists(http, 2)  # warm
        gc.collect()
        gc.freeze()  # the client's own looks for cycles took 60 ms, in which it read no reply
        cpu = sum(process.cpu_times()[:2])
        listed, per_s = await lists(http, options.seconds)
        used = sum(process.cpu_times()[:2]) - cpu
        each = used / (len(listed.seconds) * LIST_ITEMS) * 1e6
        print(
            f"lists of {LIST_ITEMS}: {per_s:,.0f} events/s, p50 {listed.quantile(0.5):.1f} ms, p99 "
            f"{listed.quantile(0.99):.1f} ms, {each:.0f} us CPU of the gateway an event"
        )
        if worker is not None:  # what the lists left is worked off
            await asyncio.to_thread(poll, lambda: at_rest(psutil.Process(worker.pid)), WORKED_OFF_S)
            await singles(http, WARM_S, options.rate)
        cpu = sum(process.cpu_times()[:2])
        single = await singles(http, options.seconds, options.rate)
        used = sum(process.cpu_times()[:2]) - cpu
        print(
            f"single events, {options.rate:.0f}/s: p50 {single.quantile(0.5):.1f} ms, p99 {single.quantile(0.99):.1f} ms, "
            f"{used / len(single.seconds) * 1e6:.0f} us CPU of the gateway a request"
        )
    print(f"1,000 idle WebSockets: {await sockets(web, token, process, options.sockets):.0f} MB")
    return int(listed.failed + single.failed > 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rate", type=float, default=500)
    parser.add_argument("--sockets", type=int, default=1000)
    parser.add_argument("--worker", action="store_true", help="a worker works on what comes in")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        broker = EmbeddedKafka(Path(folder) / "kafka")
        broker.start()
        env = {
            "HEADRACE_KAFKA__BOOTSTRAP_SERVERS": broker.bootstrap,
            "HEADRACE_KAFKA__TOPIC_PREFIX": f"b{uuid.uuid4().hex[:6]}-",
        }
        web = WebProcess(Path(folder) / "web", env)
        worker = Worker(Path(folder) / "worker", env | BY_RULE) if options.worker else None
        try:
            if worker is not None:
                worker.start()
                worker.wait_ready()
            web.start()
            return asyncio.run(measure(web, worker, options))
        finally:
            if worker is not None:
                worker.kill()
            web.kill()
            broker.stop()


if __name__ == "__main__":
    sys.exit(main())
