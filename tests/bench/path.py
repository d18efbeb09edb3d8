"""The whole path: raw event to result by rule, exactly once; how fast, and how long an event takes at a given load."""

import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from app.broker.kafka import EmbeddedKafka
from app.waiting import poll
from tests.bench import ingest, latency, outputs
from tests.bench.contestants import Job, Launch, environment
from tests.bench.data import NOISE, PARTITIONS
from tests.bench.ingest import Input, Say
from tests.bench.launched import Launched, launched

__all__ = ["LATENCY", "MORE", "Setup", "fleet", "latencies", "path_job", "run", "wait_ready"]

WINDOWS = """
[[aggregates]]
name = "activity"
size_s = 60
hop_s = 30
grace_s = 5

[[aggregates.features]]
name = "spent"
kind = "sum"
field = "payload.amount"

[[aggregates.features]]
name = "orders"
kind = "distinct"
field = "payload.order_id"
"""
"""Counts by type, the sequence of types, a sum and a distinct count for each user."""
CONFIG = """
[[sources]]
name = "raw"
topic = "{topic}"

[[noise]]
name = "noise"
when = [{{ field = "event_type", op = "in", value = [{noise}] }}]
{windows}
[[tasks]]
name = "kind"

[[tasks.categories]]
id = "payment"
description = "money moves"

[[tasks.categories]]
id = "order"
description = "what is bought"

[[tasks.categories]]
id = "other"
description = "anything else"

[[tasks.rules]]
name = "payment"
category = "payment"
when = [{{ field = "event_type", op = "in", value = ["payment", "refund"] }}]

[[tasks.rules]]
name = "order"
category = "order"
when = [{{ field = "event_type", op = "in", value = ["order", "cart", "logistics"] }}]

[[tasks.rules]]
name = "other"
category = "other"
when = [{{ field = "event_type", op = "exists" }}]
"""
READY = "headrace.delivery: ready; partitions of this worker:"
NOTHING = f"{READY} none"
START_S = 60.0
MORE = ("workers", "rate", "p50_ms", "p99_ms", "append_p50_ms", "append_p99_ms")
"""Figures of a row beside those that every contestant has."""
LATENCY = ("workers", *MORE[2:])
"""The same of a row that shows latency alone; its `events_per_s` is the load."""
WARM_RATE, WARM_S = 5000, 15
"""Broker and caches are warm behind such a run."""
ALL_OUTPUTS = (*outputs.OUTPUTS, outputs.RESULTS)


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a run is given."""

    workers: int = 1
    partitions: int = PARTITIONS
    windows: bool = True
    seconds: int = 30
    """Of the latency run."""
    rate: int = 0
    """Its load in events/s; 0: half of what the throughput rounds showed."""


def path_job(job: Job, setup: Setup, **more: str) -> Launch:
    """A worker on the whole path."""
    noise = ", ".join(f'"{kind}"' for kind in NOISE)
    config = CONFIG.format(topic=job.topic, noise=noise, windows=WINDOWS if setup.windows else "")
    env = environment(job, config, HEADRACE_KAFKA__PARTITIONS=str(setup.partitions), **more)
    return Launch(command=[sys.executable, "-m", "app", "worker"], group=f"{job.prefix}headrace", env=env)


def run(names: list[str], count: int, rounds: int, setup: Setup, say: Say, same: bool = False) -> list[dict[str, Any]]:
    """Throughput rounds of all, then a run of ours at a steady load for latency."""
    with tempfile.TemporaryDirectory(prefix="bench-") as temporary:
        folder = Path(temporary)
        kafka = EmbeddedKafka(folder / "kafka", properties=ingest.BROKER)
        kafka.start()

        def one(name: str, number: int, given: Input) -> tuple[dict[str, Any], str]:
            place = folder / f"path-{name}-{number}"
            if name == "ours":
                return _round(place, kafka.bootstrap, given, setup)
            return ingest.one_round(name, place, kafka.bootstrap, given, say, results=True)

        try:
            given = ingest.inputs(kafka.bootstrap, names, count, same, say, setup.partitions)
            rows = ingest.summary(ingest.in_turn(names, given, rounds, say, one), count, same)
            for row in rows:
                row |= dict.fromkeys(MORE)
                if row["name"] == "ours":
                    row |= {"workers": setup.workers, "rate": setup.rate or int(row["events_per_s"] / 2)}
                    if row["rate"]:
                        _add_latency(row, folder / "latency", kafka.bootstrap, setup, say)
        finally:
            kafka.stop()
    return rows


def _add_latency(row: dict[str, Any], folder: Path, bootstrap: str, setup: Setup, say: Say) -> None:
    say(f"latency at {row['rate']} events/s for {setup.seconds} s")
    found, log = _latency(folder, bootstrap, row["rate"], setup)
    say(str(found))
    if not found["right"]:
        say(log)
    row |= {key: value for key, value in found.items() if key not in ("right", "wrong")}
    row["right"] = row["right"] and found["right"]
    row["rounds"].append(found)


def latencies(rates: list[int], setup: Setup, say: Say) -> list[dict[str, Any]]:
    """Latency alone at several loads, behind a run that warms the broker."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="bench-") as temporary:
        folder = Path(temporary)
        kafka = EmbeddedKafka(folder / "kafka", properties=ingest.BROKER)
        kafka.start()
        try:
            _latency(folder / "warm", kafka.bootstrap, WARM_RATE, replace(setup, seconds=WARM_S))
            for rate in rates:
                found, log = _latency(folder / f"rate-{rate}", kafka.bootstrap, rate, setup)
                say(str(found))
                if not found["right"]:
                    say(log)
                row = {"name": "ours", "events": rate * setup.seconds, "events_per_s": rate, "workers": setup.workers}
                cpu_us, peak_mb = found["cpu_us_per_event_at_rate"], found["peak_rss_mb_at_rate"]
                rows.append({**found, **row, "cpu_us_per_event": cpu_us, "peak_rss_mb": peak_mb})
        finally:
            kafka.stop()
    return rows


@contextlib.contextmanager
def fleet(
    folder: Path, bootstrap: str, topic: str, setup: Setup, **more: str
) -> Iterator[tuple[list[Launched], Any, str]]:
    """Topics, and workers with a folder each; gives them, their meter and their prefix."""
    prefix = f"{folder.name}-"
    folder.mkdir()
    made = [prefix + t for t in ALL_OUTPUTS]
    asyncio.run(outputs.make(bootstrap, made, stamped=True, partitions=setup.partitions))
    launches = []
    for number in range(setup.workers):
        place = folder / f"w{number}"
        place.mkdir()
        job = Job(folder=place, bootstrap=bootstrap, topic=topic, prefix=prefix)
        launches.append((path_job(job, setup, **more), place / "process.log"))
    with launched(launches) as (running, meter):
        yield running, meter, prefix


def _round(folder: Path, bootstrap: str, given: Input, setup: Setup) -> tuple[dict[str, Any], str]:
    """All input at once; the clock starts when every worker has its partitions."""
    topic, expected = given
    settled = Settled(setup.workers)
    with (
        fleet(folder, bootstrap, topic, setup) as (running, meter, prefix),
        tqdm(total=expected.events, desc="path", unit="event", disable=None, leave=False) as bar,
    ):
        stuck = asyncio.run(
            outputs.await_progress(
                bootstrap,
                f"{prefix}headrace",
                topic,
                expected.events,
                lambda: settled.look(running),
                bar.update,
            )
        )
    outcome = asyncio.run(outputs.judge(bootstrap, prefix, expected, results=True, partitions=setup.partitions))
    asyncio.run(outputs.drop(bootstrap, prefix))
    if stuck:
        outcome.wrong.insert(0, stuck)
    if not settled.since and not stuck:
        outcome.wrong.append("input ended before all workers had partitions: give more events")
    result = ingest.measured(outcome, expected.events, meter, running, settled.since if setup.workers > 1 else 0.0)
    return result, "\n".join(each.complaints() for each in running)


class Settled:
    """Since when every worker has partitions."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.since = 0.0
        self._starts = 0

    def look(self, running: list[Launched]) -> bool:
        """Notes it; gives whether all still run."""
        said = [each.said() for each in running]
        starts = sum(text.count(READY) for text in said)
        if starts != self._starts:
            self._starts = starts
            ready = all(READY in text and not text[text.rindex(READY) :].startswith(NOTHING) for text in said)
            self.since = time.time() if ready else 0.0
        return all(each.alive() for each in running)


def wait_ready(running: list[Launched], times: int = 1, seconds: float = START_S) -> float:
    """Waits until each worker said `times` times that it is ready; gives the moment.

    Raises:
        RuntimeError: one ended, or isn't ready in time.
    """

    def ready() -> bool:
        return all(each.said().count(READY) >= times for each in running)

    poll(lambda: ready() or not all(each.alive() for each in running), seconds, 0.02)
    if not ready():
        raise RuntimeError("\n".join(each.complaints() for each in running))
    return time.time()


def _latency(folder: Path, bootstrap: str, rate: int, setup: Setup) -> tuple[dict[str, Any], str]:
    topic = f"{folder.name}-input"
    asyncio.run(outputs.make(bootstrap, [topic], stamped=True, partitions=setup.partitions))
    with fleet(folder, bootstrap, topic, setup) as (running, meter, prefix):
        wait_ready(running)
        results = latency.Results(bootstrap, prefix + outputs.RESULTS, setup.partitions, folder / "seen.txt")
        with results:
            begun = time.time()
            expected = asyncio.run(latency.feed(bootstrap, topic, rate, setup.seconds, setup.partitions))
            stuck = asyncio.run(
                outputs.await_progress(
                    bootstrap, f"{prefix}headrace", topic, expected.events, lambda: all(r.alive() for r in running)
                )
            )
            ended = time.time()
            results.wait_quiet()
    outcome = asyncio.run(outputs.judge(bootstrap, prefix, expected, results=True, partitions=setup.partitions))
    found = asyncio.run(latency.measure(bootstrap, topic, prefix + outputs.RESULTS, setup.partitions, results.seen()))
    asyncio.run(outputs.drop(bootstrap, prefix))
    cpu = meter.cpu_between(begun, ended) / expected.events * 1e6
    wrong = [stuck] if stuck else []
    wrong += outcome.wrong
    figures = {
        "rate": rate, **found, "cpu_us_per_event_at_rate": round(cpu, 1),
        "peak_rss_mb_at_rate": round(meter.largest_rss_mb), "right": not wrong, "wrong": wrong,
    }  # fmt: skip
    return figures, "\n".join(each.complaints() for each in running)
