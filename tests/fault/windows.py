"""Kills workers while windows are open, at one, three and again one worker; compares every window with a recomputation.

    python -m tests.fault.windows --events 200000 --kills 12 --seed 1

Events come shuffled: within the grace, and later than that. The check reads topics with plain clients.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

from app.broker.kafka import EmbeddedKafka
from tests.helpers import topics
from tests.helpers.processes import Worker, rest, wait_until
from tests.helpers.windows import Given, comparable, differences, recompute

__all__ = ["Report", "main", "run"]

SIZE_S, HOP_S, GRACE_S = 20, 10, 5
STEP_MS = 5
SHUFFLED_MS = 30_000
"""Half of the events are late by up to this, many by more than the grace: some miss one window, some all."""
USERS = 300
TRIES = 4
CONFIG = f"""
tasks = []
noise = []
[[sources]]
name = "raw"
topic = "{{prefix}}raw"
[windows]
idle_s = 3
close_windows = 100
[[aggregates]]
name = "short"
size_s = {SIZE_S}
hop_s = {HOP_S}
grace_s = {GRACE_S}
sequence = 10
[[intents]]
name = "tries"
aggregate = "short"
when = [{{{{ count = "fail", at_least = {TRIES} }}}}]
incident = "tries"
"""
CLOSED_WITHIN_S = 240


@dataclass
class Report:
    """What a run found; everything but the first three and `seconds` must be 0."""

    faults: int = 0
    windows: int = 0
    late: int = 0
    lost: int = 0
    invented: int = 0
    wrong: int = 0
    late_wrong: int = 0
    incidents_wrong: int = 0
    seconds: float = 0.0

    @property
    def right(self) -> bool:
        return not any((self.lost, self.invented, self.wrong, self.late_wrong, self.incidents_wrong))


def stream(count: int, seed: int, begin_ms: int) -> list[tuple[bytes, bytes]]:
    """Key and value of each event, one in twenty repeated."""
    rnd = random.Random(seed)
    found: list[tuple[bytes, bytes]] = []
    for number in range(count):
        if found and rnd.random() < 0.05:
            found.append(found[-1 - rnd.randrange(min(len(found), 50))])
            continue
        at_ms = begin_ms + number * STEP_MS - rnd.choice((0, rnd.randrange(SHUFFLED_MS)))
        event = {"event_id": f"e{number}", "event_type": rnd.choice(("view", "view", "fail")), "event_time": at_ms}
        found.append((b"u%d" % rnd.randrange(USERS), json.dumps(event).encode()))
    return found


async def expected(bootstrap: str, prefix: str) -> tuple[dict[tuple[str, int], dict[str, object]], Counter[str]]:
    """Windows, and late events by where they were read, from the input alone."""
    partitions: dict[int, list[Given]] = defaultdict(list)
    offsets: dict[int, list[int]] = defaultdict(list)
    seen: set[str] = set()
    for record in await topics.read(bootstrap, f"{prefix}raw"):
        event = json.loads(record.value)
        if event["event_id"] not in seen:
            seen.add(event["event_id"])
            partitions[record.partition].append(Given(record.key.decode(), event["event_time"], event["event_type"]))
            offsets[record.partition].append(record.offset)
    windows: dict[tuple[str, int], dict[str, object]] = {}
    late: Counter[str] = Counter()
    for partition, events in partitions.items():
        found = recompute(events, SIZE_S * 1000, HOP_S * 1000, GRACE_S * 1000, 10**15, 10, ended=True)
        windows |= found.windows
        late.update(f"{prefix}raw/{partition}/{offsets[partition][number]}" for number, _ in found.late)
    for window in windows.values():
        window["features"] = {}
    return windows, late


async def verify(bootstrap: str, prefix: str) -> Report:
    want, late = await expected(bootstrap, prefix)
    written = [json.loads(r.value) for r in await topics.read(bootstrap, f"{prefix}agg-events")]
    got = comparable(written)
    report = Report(windows=len(got), late=late.total())
    report.lost, report.invented, report.wrong = differences(want, got)
    told = Counter(
        dict(r.headers)["headrace.origin"].decode() for r in await topics.read(bootstrap, f"{prefix}late-events")
    )
    report.late_wrong = (told - late).total() + (late - told).total()
    incidents = Counter(json.loads(r.value)["id"] for r in await topics.read(bootstrap, f"{prefix}agent-trigger"))
    counts = {f"{w['entity']}@short@{w['start_ms']}@tries": w["counts"].get("fail", 0) for w in written}
    due = Counter(name for name, fails in counts.items() if fails >= TRIES)
    report.incidents_wrong = (incidents - due).total() + (due - incidents).total()
    return report


def run(folder: Path, bootstrap: str, prefix: str, count: int, faults: int, seed: int) -> Report:
    """Half of the kills with one worker, then three, and one at the end."""
    rnd, begun = random.Random(seed), time.monotonic()
    config = folder / "headrace.toml"
    config.write_text(CONFIG.format(prefix=prefix))
    asyncio.run(topics.create(bootstrap, f"{prefix}raw"))
    begin_ms = int(time.time() * 1000) - count * STEP_MS
    asyncio.run(topics.produce(bootstrap, f"{prefix}raw", stream(count, seed, begin_ms)))
    env = {
        "HEADRACE_KAFKA__BOOTSTRAP_SERVERS": bootstrap, "HEADRACE_KAFKA__TOPIC_PREFIX": prefix,
        "HEADRACE_CONFIG": str(config), "HEADRACE_KAFKA__SESSION_TIMEOUT_S": "6",
        "HEADRACE_DELIVERY__BATCH_RECORDS": "100",
    }  # fmt: skip
    workers = [Worker(folder / f"w{number}", env) for number in range(3)]
    alive = workers[:1]
    alive[0].start()
    alive[0].wait_ready()
    for fault in range(faults):
        if fault == faults // 2:
            for worker in workers[1:]:
                worker.start()
            alive = workers
        rest(rnd.uniform(0.5, 4))
        victim = rnd.choice(alive)
        victim.kill()
        victim.start()
    for worker in workers[1:]:
        if worker in alive:
            worker.stop()
    wanted = len(asyncio.run(expected(bootstrap, prefix))[0])

    def done() -> bool:
        return len(asyncio.run(topics.read(bootstrap, f"{prefix}agg-events"))) >= wanted

    try:
        wait_until(done, CLOSED_WITHIN_S, "all windows closed")
    finally:
        for worker in workers:
            worker.kill()
    report = asyncio.run(verify(bootstrap, prefix))
    report.faults, report.seconds = faults, time.monotonic() - begun
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--seed", type=int, default=random.randrange(1000))
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kafka = EmbeddedKafka(folder / "kafka")
        kafka.start()
        try:
            report = run(folder, kafka.bootstrap, "windows-", given.events, given.kills, given.seed)
        finally:
            kafka.stop()
    print(report, "RIGHT" if report.right else "WRONG", flush=True)
    sys.exit(not report.right)


if __name__ == "__main__":
    main()
