"""Hours of the same load: memory, state size, lag and file handles, sampled; level or not."""

import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import linear_regression, median
from typing import Any

import aiokafka
import psutil
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.structs import TopicPartition

from app.broker.kafka import EmbeddedKafka
from tests.bench import outputs, path, table
from tests.bench.data import Expected, appender, placed, records
from tests.bench.ids import SMALL_SEGMENTS
from tests.bench.ingest import BROKER, Say
from tests.bench.latency import TICK_S
from tests.bench.launched import Launched

__all__ = ["FIGURES", "MORE", "run", "trend"]

FIGURES = ("rss_mb", "state_mb", "lag", "file_handles", "threads", "cpu_cores")
MORE = ("rate", "minutes", "trends", "samples")
FORGET_S = 20.0
"""Topics keep what is younger than about this, so that hours of load fit a disk."""
WARM = 0.25
"""The trend leaves out the first fourth: caches fill, and the first ids expire only after the horizon."""


def run(
    rate: int, minutes: float, every_s: float, horizon_s: float, setup: path.Setup, say: Say
) -> list[dict[str, Any]]:
    """One row: first, last and slope an hour of each figure, and all samples."""
    with tempfile.TemporaryDirectory(prefix="bench-") as temporary:
        folder = Path(temporary)
        kafka = EmbeddedKafka(folder / "kafka", properties={**BROKER, **SMALL_SEGMENTS})
        kafka.start()
        try:
            topic = "steady-input"
            asyncio.run(outputs.make(kafka.bootstrap, [topic], stamped=True))
            horizon = {"HEADRACE_INGEST__DEDUP_HORIZON_S": str(horizon_s)}
            with path.fleet(folder / "steady", kafka.bootstrap, topic, setup, **horizon) as (running, meter, prefix):
                path.wait_ready(running)
                load = Load(kafka.bootstrap, topic, prefix, rate, running, folder / "steady", say)
                asyncio.run(load.run(minutes * 60, every_s))
            log = "\n".join(each.complaints() for each in running)
        finally:
            kafka.stop()
    trends = {what: trend([(s["s"], s[what]) for s in load.samples]) for what in FIGURES}
    wrong = load.wrong
    if wrong:
        say(log)
    seconds = max(1.0, load.fed_until - load.fed_from)
    row = {
        "name": "ours", "events": load.sent, "events_per_s": round(load.sent / seconds), "rate": rate,
        "cpu_us_per_event": round(meter.cpu_between(load.fed_from, load.fed_until) / max(1, load.sent) * 1e6, 2),
        "peak_rss_mb": round(meter.largest_rss_mb, 1), "right": not wrong, "wrong": wrong, "minutes": minutes,
        "trends": trends, "samples": load.samples,
    }  # fmt: skip
    return [row]


def trend(points: list[tuple[float, float]]) -> dict[str, float]:
    """First and last (medians of a tenth each), largest, and the slope an hour once it is warm."""
    if not points:
        return {}
    values = [value for _, value in points]
    tenth = max(1, len(points) // 10)
    warm = points[int(len(points) * WARM) :]
    slope = linear_regression(*zip(*warm, strict=True)).slope * 3600 if len(warm) > 1 else 0.0
    return {
        "first": round(median(values[:tenth]), 2), "last": round(median(values[-tenth:]), 2),
        "max": round(max(values), 2), "slope_per_h": round(slope, 2),
    }  # fmt: skip


class Load:
    """Feeds, samples and forgets at once."""

    def __init__(
        self, bootstrap: str, topic: str, prefix: str, rate: int, running: list[Launched], folder: Path, say: Say
    ) -> None:
        self.bootstrap, self.topic, self.prefix, self.rate = bootstrap, topic, prefix, rate
        self.running, self.folder, self.say = running, folder, say
        self.group = f"{prefix}headrace"
        self.sent = 0
        self.fed_from = self.fed_until = 0.0
        self.samples: list[dict[str, float]] = []
        self.wrong: list[str] = []
        self._feeding = True

    async def run(self, seconds: float, every_s: float) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._feed(seconds))
            group.create_task(self._repeat(every_s, Sampler(self).sample))
            group.create_task(self._repeat(FORGET_S, self._forget))
        alive = lambda: all(each.alive() for each in self.running)  # noqa: E731 - a name for one call
        stuck = await outputs.await_progress(self.bootstrap, self.group, self.topic, self.sent, alive)
        if stuck:
            self.wrong.append(stuck)

    async def _feed(self, seconds: float) -> None:
        users = placed(outputs.PARTITIONS)
        made = records(1 << 62, Unkept(), per_s=self.rate)
        loop = asyncio.get_running_loop()
        try:
            async with appender(self.bootstrap) as producer:
                begun, self.fed_from = loop.time(), time.time()
                while (spent := loop.time() - begun) < seconds and self._alive():
                    builders = [producer.create_batch() for _ in range(outputs.PARTITIONS)]
                    # At most a second's worth at once: after a pause of this process there is no burst.
                    due = min(int(spent * self.rate) - self.sent, self.rate)
                    for _ in range(due):
                        user, value = next(made)
                        key, place = users[user]
                        if builders[place].append(key=key, value=value, timestamp=None) is None:
                            break
                        self.sent += 1
                    for place, builder in enumerate(builders):
                        if builder.record_count():
                            builder.close()
                            await producer.send_batch(builder, self.topic, partition=place)
                    await asyncio.sleep(TICK_S)
                await producer.flush()
        finally:
            self._feeding, self.fed_until = False, time.time()

    def _alive(self) -> bool:
        if all(each.alive() for each in self.running):
            return True
        self.wrong.append("a worker ended")
        return False

    async def _repeat(self, every_s: float, what: Callable[[], Any]) -> None:
        while self._feeding:
            await asyncio.sleep(every_s)
            await what()

    async def _forget(self) -> None:
        await table.forget(self.bootstrap, [self.prefix + name for name in path.ALL_OUTPUTS])
        await table.forget(self.bootstrap, [self.topic], self.group)


class Sampler:
    """Looks at the workers and their group."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.begun = self.at = time.time()
        self.cpu = 0.0

    async def sample(self) -> None:
        now = time.time()
        processes = [psutil.Process(each.process.pid) for each in self.load.running if each.alive()]
        if not processes:
            return
        cpu = sum(p.cpu_times().user + p.cpu_times().system for p in processes)
        found = {
            "s": round(now - self.begun, 1),
            "rss_mb": round(max(p.memory_info().rss for p in processes) / (1 << 20), 1),
            "state_mb": table.disk_mb(self.load.folder),
            "lag": await self._lag(),
            "file_handles": max(p.num_fds() for p in processes),
            "threads": max(p.num_threads() for p in processes),
            "cpu_cores": round((cpu - self.cpu) / (now - self.at), 3) if self.cpu else 0.0,
        }
        if self.cpu:  # the first only sets the mark for the CPU
            self.load.samples.append(found)
            self.load.say(", ".join(f"{what} {value}" for what, value in found.items()))
        self.cpu, self.at = cpu, now

    async def _lag(self) -> int:
        load = self.load
        tps = [TopicPartition(load.topic, p) for p in range(outputs.PARTITIONS)]
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=load.bootstrap)
        admin = AIOKafkaAdminClient(bootstrap_servers=load.bootstrap)
        await consumer.start()
        await admin.start()
        try:
            stood = await admin.list_consumer_group_offsets(load.group)
            ends = await consumer.end_offsets(tps)
        finally:
            await admin.close()
            await consumer.stop()
        return int(sum(ends[tp] - max(0, stood[tp].offset if tp in stood else 0) for tp in tps))


class Unkept(Expected):
    """Expects nothing: hours of ids would fill the memory."""

    def __init__(self) -> None:
        super().__init__()
        self.clean = self.noise = Sieve()


class Sieve(set[str]):
    """Keeps nothing."""

    def add(self, element: str) -> None:
        """Drops it."""
