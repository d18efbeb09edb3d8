"""Gives the inputs more partitions in the middle of a stream, with windows open; compares every window with a recomputation.

    python -m tests.fault.repartition --events 200000 --old 6 --new 24 --seed 1

Two sources: one keyed by the entity, whose windows run inside ingest, and one that isn't; windows over both run in a stage
of their own. The check reads topics with plain clients.
"""

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.broker.kafka import EmbeddedKafka
from tests.helpers import topics
from tests.helpers.processes import Worker, wait_until
from tests.helpers.windows import Given, comparable, differences, recompute

__all__ = ["Report", "main", "run"]

ROOT = Path(__file__).parents[2]
SIZE_S, HOP_S, GRACE_S = 4, 2, 1
STEP_MS = 5
SHUFFLED_MS = 900
"""Less than the grace: nothing is late."""
REPEATED = 0.05
CLOSED_WITHIN_S = 150
CONFIG = """
tasks = []
noise = []
[[sources]]
name = "clicks"
topic = "{prefix}clicks"
[[sources]]
name = "orders"
topic = "{prefix}orders"
format = "json"
event_id = "id"
event_type = "kind"
event_time = "at"
entity = "buyer"
rekey = true
[windows]
idle_s = {idle_s}
[[aggregates]]
name = "clicks"
sources = ["clicks"]
{window}
[[aggregates]]
name = "both"
{window}
"""
WINDOW = f"size_s = {SIZE_S}\nhop_s = {HOP_S}\ngrace_s = {GRACE_S}\nsequence = 1000"
SOURCES = ("clicks", "orders")

Row = tuple[str, bytes, bytes]
"""Source, key, value."""


@dataclass
class Report:
    """What a run found; lost, invented, wrong and late must be 0."""

    windows: int = 0
    open: int = 0
    """Windows with events that weren't closed when partitions were added."""
    lost: int = 0
    invented: int = 0
    wrong: int = 0
    late: int = 0
    seconds: float = 0.0

    @property
    def right(self) -> bool:
        return self.open > 0 and not any((self.lost, self.invented, self.wrong, self.late))


def stream(count: int, seed: int, begin_ms: int, users: int) -> tuple[list[Row], list[tuple[str, Given]]]:
    """What is sent, one in twenty sent before already, and the events that are in it."""
    rnd = random.Random(seed)
    rows: list[Row] = []
    events: list[tuple[str, Given]] = []
    for number in range(count):
        if rows and rnd.random() < REPEATED:
            rows.append(rnd.choice(rows[-2000:]))
            continue
        user, source = f"u{rnd.randrange(users)}", rnd.choice(SOURCES)
        at_ms = begin_ms + number * STEP_MS - rnd.randrange(SHUFFLED_MS)
        if source == "clicks":
            value = {"event_id": f"c{number}", "event_type": "click", "event_time": at_ms}
            rows.append((source, user.encode(), json.dumps(value).encode()))
        else:
            order = {"id": f"o{number}", "kind": "order", "at": at_ms, "buyer": user}
            rows.append((source, b"shop-%d" % rnd.randrange(50), json.dumps(order).encode()))
        events.append((source, Given(user, at_ms, value["event_type"] if source == "clicks" else "order")))
    return rows, events


Windows = dict[tuple[str, str, int], dict[str, Any]]


def expected(events: Sequence[tuple[str, Given]]) -> Windows:
    """Windows of both aggregates, from their definition."""
    found: Windows = {}
    for name, sources in (("clicks", {"clicks"}), ("both", set(SOURCES))):
        given = sorted((g for source, g in events if source in sources), key=lambda g: g.at_ms)
        offline = recompute(given, SIZE_S * 1000, HOP_S * 1000, GRACE_S * 1000, 10**15, 1000, ended=True)
        found |= {(name, *place): shown(window) for place, window in offline.windows.items()}
    return found


def shown(window: dict[str, Any]) -> dict[str, Any]:
    """Without what depends on the order of two events of the same millisecond."""
    return {**window, "sequence": sorted(window["sequence"]), "features": {}}


async def written(bootstrap: str, prefix: str, partitions: int) -> Windows:
    """Windows that were emitted; fails when one came twice."""
    values = [json.loads(r.value) for r in await topics.read(bootstrap, f"{prefix}agg-events", partitions)]
    return {
        (name, *place): shown(window)
        for name in ("clicks", "both")
        for place, window in comparable(v for v in values if v["aggregate"] == name).items()
    }


async def left(bootstrap: str, prefix: str, partitions: int) -> int:
    """Records with a key that aren't taken."""
    count = 0
    for topic in (*SOURCES, "rekeyed", "window-events"):
        stood = await topics.committed(bootstrap, f"{prefix}headrace", prefix + topic, partitions)
        for record in await topics.read(bootstrap, prefix + topic, partitions):
            count += record.key is not None and record.offset >= stood.get(record.partition, 0)
    return count


async def send(bootstrap: str, prefix: str, rows: Sequence[Row]) -> None:
    for source in SOURCES:
        await topics.produce(bootstrap, prefix + source, [(key, value) for name, key, value in rows if name == source])


def run(
    folder: Path, bootstrap: str, prefix: str, count: int, old: int, new: int, seed: int, users: int = 60
) -> Report:
    """Half of the stream, more partitions, the other half."""
    begun = time.monotonic()
    config = folder / "headrace.toml"

    def declare(idle_s: int) -> None:
        config.write_text(CONFIG.format(prefix=prefix, window=WINDOW, idle_s=idle_s))

    rows, events = stream(count, seed, int(time.time() * 1000) - count * STEP_MS, users)
    for source in SOURCES:
        asyncio.run(topics.create(bootstrap, prefix + source, old))
    asyncio.run(send(bootstrap, prefix, rows[: count // 2]))
    env = {
        "HEADRACE_KAFKA__BOOTSTRAP_SERVERS": bootstrap, "HEADRACE_KAFKA__TOPIC_PREFIX": prefix,
        "HEADRACE_CONFIG": str(config), "HEADRACE_KAFKA__SESSION_TIMEOUT_S": "6",
        "HEADRACE_KAFKA__PARTITIONS": str(old), "HEADRACE_DELIVERY__BATCH_RECORDS": "500",
    }  # fmt: skip
    worker = Worker(folder / "worker", env)
    declare(0)  # nothing closes with the clock: what is open at the end of this half stays open
    try:
        worker.start()
        worker.wait_ready()
        wait_until(lambda: asyncio.run(left(bootstrap, prefix, old)) == 0, 120, "the first half is taken")
        worker.stop()
        before = len(asyncio.run(written(bootstrap, prefix, old)))
        done = subprocess.run(
            [sys.executable, "-m", "app", "tables", "repartition", str(new), "--yes"],
            env=worker.env, cwd=ROOT, capture_output=True, text=True, check=False, timeout=200,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        asyncio.run(send(bootstrap, prefix, rows[count // 2 :]))
        worker.env["HEADRACE_KAFKA__PARTITIONS"] = str(new)
        declare(3)
        worker.start()
        worker.wait_ready()
        want = expected(events)

        def closed() -> bool:
            ends = asyncio.run(topics.end_offsets(bootstrap, f"{prefix}agg-events", new))
            return sum(ends.values()) >= len(want) and len(asyncio.run(written(bootstrap, prefix, new))) >= len(want)

        try:
            wait_until(closed, CLOSED_WITHIN_S, f"{len(want)} windows closed", every_s=1)
        except AssertionError:
            print(f"see {worker.log}", flush=True)  # the report tells what is missing
    finally:
        worker.kill()
    got = asyncio.run(written(bootstrap, prefix, new))
    report = Report(windows=len(got), open=len(expected(events[: len(events) // 2])) - before)
    report.lost, report.invented, report.wrong = differences(want, got)
    report.late = len(asyncio.run(topics.read(bootstrap, f"{prefix}late-events", new)))
    report.seconds = time.monotonic() - begun
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--old", type=int, default=6)
    parser.add_argument("--new", type=int, default=24)
    parser.add_argument("--users", type=int, default=300)
    parser.add_argument("--seed", type=int, default=random.randrange(1000))
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    with tempfile.TemporaryDirectory() as name:
        kafka = EmbeddedKafka(Path(name) / "kafka")
        kafka.start()
        try:
            report = run(
                Path(name), kafka.bootstrap, "more-", given.events, given.old, given.new, given.seed, given.users
            )
        finally:
            kafka.stop()
    print(report, "RIGHT" if report.right else "WRONG", flush=True)
    sys.exit(not report.right)


if __name__ == "__main__":
    main()
