"""Kills and stops real workers under load, then checks every output and all state against a recomputation.

    python -m tests.fault.chaos kills --events 200000 --kills 12 --seed 1
    python -m tests.fault.chaos zombies --events 200000 --stops 3 --seed 1

The check reads topics with plain clients and knows nothing of the product but its topics' formats.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
import uuid
import zlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from app.broker.kafka import EmbeddedKafka
from tests.helpers import topics
from tests.helpers.processes import Worker, pause_until_replaced, rest, wait_until

__all__ = ["Report", "events", "kills", "main", "verify", "zombies"]

TYPES = ["order", "payment", "logistics", "login", "heartbeat", "debug", "review", "refund", "search", "cart"]
TEXT = "用户反馈 支付 失败 the payment could not be completed, please check the gateway response code and retry later "
SESSION_S = 10
CONFIG = """
[[sources]]
name = "raw"
topic = "{prefix}raw"

[[noise]]
name = "noise"
when = [{{ field = "event_type", op = "in", value = ["heartbeat", "debug"] }}]

[[tasks]]
name = "kind"
[[tasks.categories]]
id = "money"
description = "money"
[[tasks.categories]]
id = "rest"
description = "anything else"
[[tasks.rules]]
name = "money-types"
category = "money"
when = [{{ field = "event_type", op = "in", value = ["payment", "refund"] }}]
[[tasks.rules]]
name = "rest"
category = "rest"
when = [{{ field = "event_type", op = "exists" }}]
"""


@dataclass
class Report:
    """What a run found; everything but `faults` and `seconds` must be 0."""

    faults: int = 0
    events: int = 0
    lost: int = 0
    invented: int = 0
    copies: int = 0
    state_wrong: int = 0
    order_wrong: int = 0
    offsets_wrong: int = 0
    seconds: float = 0.0

    @property
    def right(self) -> bool:
        return not any((self.lost, self.invented, self.copies, self.state_wrong, self.order_wrong, self.offsets_wrong))


def events(count: int, seed: int) -> list[tuple[bytes, bytes]]:
    """Key and value of each: 10% repeated, 2% broken, a tenth of ids seen in a row."""
    rnd = random.Random(seed)
    found: list[tuple[bytes, bytes]] = []
    for number in range(count):
        if found and rnd.random() < 0.1:
            found.append(found[-1 - rnd.randrange(min(len(found), 50))])
            continue
        user = f"u{rnd.randrange(20_000)}"
        event = {
            "event_id": str(uuid.UUID(int=rnd.getrandbits(128))), "event_type": rnd.choice(TYPES),
            "event_time": 1_764_000_000_000 + number, "source_system": "app", "trace_id": f"{rnd.getrandbits(128):032x}",
            "payload": {"message": TEXT, "amount": rnd.random() * 100, "order_id": f"o{rnd.getrandbits(40)}"},
        }  # fmt: skip
        value = json.dumps(event, ensure_ascii=False).encode()
        found.append((user.encode(), value[:-10] if rnd.random() < 0.02 else value))
    return found


async def verify(bootstrap: str, prefix: str) -> Report:
    """Recomputes from the input what must be there, and compares."""
    report = Report()
    first: dict[str, Any] = {}
    broken: Counter[bytes] = Counter()
    raw = await topics.read(bootstrap, f"{prefix}raw")
    for record in raw:
        try:
            event = json.loads(record.value)
        except ValueError:
            broken[record.value] += 1
            continue
        first.setdefault(event["event_id"], (record, event["event_type"]))
    report.events = len(raw)
    noise = {i for i, (_, kind) in first.items() if kind in ("heartbeat", "debug")}
    expected = {"clean-events": set(first) - noise, "sink-noise": noise, "ai-results": set(first) - noise}
    for topic, want in expected.items():
        records = await topics.read(bootstrap, prefix + topic)
        got = Counter(json.loads(r.value)["event_id"] for r in records)
        report.lost += len(want - got.keys())
        report.invented += len(got.keys() - want)
        report.copies += sum(n - 1 for n in got.values())
        if topic == "clean-events":
            report.order_wrong += _order_wrong(records, first)
    dead = Counter(r.value for r in await topics.read(bootstrap, f"{prefix}dead-letter"))
    report.lost += sum((broken - dead).values())
    report.invented += sum((dead - broken).values())
    report.state_wrong = await _state_wrong(bootstrap, prefix, first)
    ends = await topics.end_offsets(bootstrap, f"{prefix}raw")
    stood = await topics.committed(bootstrap, f"{prefix}headrace", f"{prefix}raw")
    report.offsets_wrong = sum(stood.get(p, 0) != end for p, end in ends.items())
    return report


def _order_wrong(records: list[Any], first: dict[str, Any]) -> int:
    """Events of one entity must stand in the order of their first records."""
    last: dict[bytes, tuple[int, int]] = {}
    wrong = 0
    for record in records:
        origin = first[json.loads(record.value)["event_id"]][0]
        place = (origin.partition, origin.offset)
        if record.key in last and last[record.key] > place:
            wrong += 1
        last[record.key] = place
    return wrong


async def _state_wrong(bootstrap: str, prefix: str, first: dict[str, Any]) -> int:
    """The changelog, replayed, must hold every id once with its first record's offset and content."""
    state: dict[tuple[int, str], Any] = {}
    for record in await topics.read(bootstrap, f"{prefix}headrace-ingest-raw-changelog"):
        if record.key[:1] == b"S" and record.value is not None:
            for key, row in msgspec.msgpack.decode(record.value):
                state[record.partition, bytes(key).decode()] = msgspec.msgpack.decode(row)
    wrong = len(state) - len(first)
    for event_id, (record, _) in first.items():
        row = state.get((record.partition, event_id))
        wrong += row is None or row[0] != record.offset or row[2] != zlib.crc32(record.value)
    return abs(wrong)


async def _backlog(bootstrap: str, prefix: str) -> int:
    ends = await topics.end_offsets(bootstrap, f"{prefix}raw")
    stood = await topics.committed(bootstrap, f"{prefix}headrace", f"{prefix}raw")
    return sum(end - stood.get(p, 0) for p, end in ends.items())


def _set_up(folder: Path, bootstrap: str, prefix: str, count: int, seed: int, **more: str) -> list[Worker]:
    config = folder / "headrace.toml"
    config.write_text(CONFIG.format(prefix=prefix))
    asyncio.run(topics.create(bootstrap, f"{prefix}raw"))
    asyncio.run(topics.produce(bootstrap, f"{prefix}raw", events(count, seed)))
    env = {
        "HEADRACE_KAFKA__BOOTSTRAP_SERVERS": bootstrap, "HEADRACE_KAFKA__TOPIC_PREFIX": prefix,
        "HEADRACE_CONFIG": str(config), "HEADRACE_KAFKA__SESSION_TIMEOUT_S": str(SESSION_S), "HEADRACE_RESULTS__KEEP_S": "0",
        **more,
    }  # fmt: skip
    return [Worker(folder / f"w{n}", env) for n in range(2)]


def _finish(workers: list[Worker], bootstrap: str, prefix: str, begun: float, faults: int) -> Report:
    def done() -> bool:
        return asyncio.run(_backlog(bootstrap, prefix)) == 0

    try:
        wait_until(done, 180, "all input committed")
    finally:
        for worker in workers:
            worker.stop()
    report = asyncio.run(verify(bootstrap, prefix))
    report.faults, report.seconds = faults, time.monotonic() - begun
    return report


def kills(folder: Path, bootstrap: str, prefix: str, count: int, faults: int, seed: int) -> Report:
    """Two workers; one of them is killed (SIGKILL) at a random moment and started again, `faults` times."""
    rnd, begun = random.Random(seed), time.monotonic()
    workers = _set_up(folder, bootstrap, prefix, count, seed, HEADRACE_DELIVERY__BATCH_RECORDS="200")
    for worker in workers:
        worker.start()
    rest(3)
    for _ in range(faults):
        rest(rnd.uniform(2.5, 6))
        victim = rnd.choice(workers)
        victim.kill()
        victim.start()
    return _finish(workers, bootstrap, prefix, begun, faults)


def zombies(folder: Path, bootstrap: str, prefix: str, count: int, faults: int, seed: int) -> Report:
    """Two workers; one is stopped past the session timeout (another takes over) and continued, `faults` times."""
    begun = time.monotonic()
    workers = _set_up(
        folder, bootstrap, prefix, count, seed, HEADRACE_DELIVERY__BATCH_RECORDS="50",
        HEADRACE_DELIVERY__COMMIT_INTERVAL_MS="300",
    )  # fmt: skip
    for worker in workers:
        worker.start()
    for worker in workers:
        wait_until(worker.ready_times, 60, "worker ready")
    rest(3 + random.Random(seed).random() * 3)
    for number in range(faults):
        pause_until_replaced(workers[number % 2], workers[1 - number % 2], SESSION_S)
    return _finish(workers, bootstrap, prefix, begun, faults)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["kills", "zombies", "both"], default="both")
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--stops", type=int, default=3)
    parser.add_argument("--seed", type=int, default=random.randrange(1000))
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    wrong = False
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kafka = EmbeddedKafka(folder / "kafka")
        kafka.start()
        try:
            for what, run, faults in (("kills", kills, given.kills), ("zombies", zombies, given.stops)):
                if given.what in (what, "both"):
                    (folder / what).mkdir()
                    report = run(folder / what, kafka.bootstrap, f"{what}-", given.events, faults, given.seed)
                    print(what, report, "RIGHT" if report.right else "WRONG", flush=True)
                    wrong |= not report.right
        finally:
            kafka.stop()
    sys.exit(wrong)


if __name__ == "__main__":
    main()
