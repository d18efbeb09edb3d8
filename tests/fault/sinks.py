"""Sinks beside real workers, killed at random: in the end each database holds exactly what `ai-results` says.

    python -m tests.fault.sinks --events 40000 --faults 12 --seed 1

One worker decides by rule; two processes share a PostgreSQL sink, one has a DuckDB file. Ids repeat after the dedup horizon,
so that results replace others. Worker, sinks and PostgreSQL are killed (SIGKILL), or a sink is stopped past its session.
"""

import argparse
import asyncio
import json
import random
import signal
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.broker.kafka import EmbeddedKafka
from tests.helpers import topics
from tests.helpers.postgres import PostgresServer, programs
from tests.helpers.processes import Worker, rest, wait_until
from tests.helpers.sinks import SinkProcess, rows_in_duckdb, rows_in_postgres

__all__ = ["Report", "main", "run"]

CONFIG = """
[[sources]]
name = "raw"
topic = "{prefix}raw"

[[tasks]]
name = "shop"
categories = [{{ id = "order", description = "o" }}, {{ id = "other", description = "x" }}]
rules = [
    {{ name = "orders", category = "order", when = [{{ field = "event_type", op = "prefix", value = "order" }}] }},
    {{ name = "rest", category = "other", when = [{{ field = "event_type", op = "exists" }}] }},
]

[light]
enabled = false

[[sinks]]
name = "files"
path = "{folder}/results.duckdb"
flush_s = 0.2

[[sinks]]
name = "warehouse"
kind = "postgres"
dsn_env = "WAREHOUSE_DSN"
batch_records = 500
flush_s = 0.2
"""
SESSION_S = 6
STOPPED_S = 9.0
"""Past the session: others take the partitions, and the one that was stopped comes back with a batch in its hands."""
ROWS = (
    "SELECT event_id, category, event_type, created_ms, source_partition, source_offset, entity, kafka_partition, "
    "kafka_offset FROM ai_results"
)

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """What a run gave. `wrong` names what each database has too much or too little."""

    events: int
    ids: int
    results: int
    faults: int
    wrong: dict[str, list[str]]
    seconds: float

    @property
    def right(self) -> bool:
        return not any(self.wrong.values())


def chunk(rnd: random.Random, count: int, names: int) -> list[tuple[bytes, bytes]]:
    found = []
    for _ in range(count):
        number = rnd.randrange(names)
        event = {
            "event_id": f"e{number}", "event_type": rnd.choice(["order.created", "order.paid", "login"]),
            "event_time": 1_796_000_000_000 + number, "payload": {"message": "deliver after six", "n": rnd.random()},
        }  # fmt: skip
        found.append((f"u{number % 500}".encode(), json.dumps(event).encode()))
    return found


async def expected(bootstrap: str, prefix: str) -> tuple[list[Row], int]:
    """The rows that the topic asks for, by a plain client; and how many results it has."""
    latest: dict[bytes, Row] = {}
    records = await topics.read(bootstrap, f"{prefix}ai-results")
    for r in records:
        v = json.loads(r.value)
        source = v["source"]
        latest[r.key] = (
            v["event_id"], v["category"], v["event_type"], v["created_ms"], source["partition"], source["offset"],
            v["entity"], r.partition, r.offset,
        )  # fmt: skip
    return sorted(latest.values()), len(records)


def difference(rows: list[Row], wanted: list[Row]) -> list[str]:
    return [
        *(f"missing {row}" for row in sorted(set(wanted) - set(rows))[:20]),
        *(f"not asked for {row}" for row in sorted(set(rows) - set(wanted))[:20]),
        *([f"{len(rows)} rows, {len(wanted)} asked for"] if len(rows) != len(wanted) else []),
    ]


def run(
    folder: Path, kafka: EmbeddedKafka, prefix: str, postgres: PostgresServer, events: int, faults: int, seed: int
) -> Report:
    """Writes events while things are killed; returns when the databases hold what they must, or can't any more."""
    rnd, begun = random.Random(seed), time.monotonic()
    dsn = postgres.database()
    (folder / "headrace.toml").write_text(CONFIG.format(prefix=prefix, folder=folder))
    env = {
        "HEADRACE_KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap, "HEADRACE_KAFKA__TOPIC_PREFIX": prefix,
        "HEADRACE_KAFKA__SESSION_TIMEOUT_S": str(SESSION_S), "HEADRACE_CONFIG": str(folder / "headrace.toml"),
        "HEADRACE_RESULTS__KEEP_S": "0", "HEADRACE_INGEST__DEDUP_HORIZON_S": "2", "WAREHOUSE_DSN": dsn,
    }  # fmt: skip
    asyncio.run(topics.create(kafka.bootstrap, f"{prefix}raw"))
    worker = Worker(folder / "worker", env)
    sinks = [SinkProcess(folder / f"s{n}", env, name) for n, name in enumerate(("warehouse", "warehouse", "files"))]
    ended = threading.Event()
    ids = set[bytes]()
    feeder = threading.Thread(target=_feed, args=(kafka.bootstrap, prefix, events, seed, ids, ended))
    try:
        worker.start()
        for sink in sinks:
            sink.start()
        worker.wait_ready()
        feeder.start()
        for _ in range(faults):
            rest(rnd.uniform(0.5, 3))
            _fault(rnd, worker, sinks, postgres)
        feeder.join()
        wrong = _settle(kafka.bootstrap, prefix, dsn, folder / "results.duckdb")
        rows, results = asyncio.run(expected(kafka.bootstrap, prefix))
        wrong["topic"] = [] if len(rows) == len(ids) else [f"{len(rows)} ids have a result, {len(ids)} were sent"]
        for sink in sinks:
            sink.wait_ready()
            status = sink.stop()
            clean = status == 0 and "Traceback" not in sink.said
            wrong[f"sink {sink.folder.name}"] = [] if clean else [f"exit status {status}: {sink.said[-2000:]}"]
    finally:
        ended.set()
        for each in (worker, *sinks):
            each.kill()
    return Report(events, len(ids), results, faults, wrong, time.monotonic() - begun)


def _feed(bootstrap: str, prefix: str, events: int, seed: int, ids: set[bytes], ended: threading.Event) -> None:
    rnd, sent = random.Random(seed + 1), 0
    while sent < events and not ended.is_set():
        rows = chunk(rnd, 500, events // 4)
        asyncio.run(topics.produce(bootstrap, f"{prefix}raw", rows))  # type: ignore[arg-type]  # bytes are bytes | None
        ids.update(json.loads(value)["event_id"].encode() for _, value in rows)
        sent += len(rows)


def _fault(rnd: random.Random, worker: Worker, sinks: list[SinkProcess], postgres: PostgresServer) -> None:
    match rnd.choice(["sink", "sink", "worker", "postgres", "stop"]):
        case "sink":
            victim = rnd.choice(sinks)
            victim.kill()
            victim.start()
        case "worker":
            worker.kill()
            worker.start()
        case "postgres":
            postgres.kill()
            postgres.start()
        case _:
            victim = rnd.choice(sinks[:2])
            victim.signal(signal.SIGSTOP)
            rest(STOPPED_S)
            victim.signal(signal.SIGCONT)


def _settle(bootstrap: str, prefix: str, dsn: str, path: Path) -> dict[str, list[str]]:
    """Waits until all is through: the worker, then both sinks."""

    def lag() -> int:
        ends = asyncio.run(topics.end_offsets(bootstrap, f"{prefix}raw"))
        stood = asyncio.run(topics.committed(bootstrap, f"{prefix}headrace", f"{prefix}raw"))
        return sum(end - stood.get(p, 0) for p, end in ends.items())

    wait_until(lambda: lag() == 0, 120, "the worker is through", 0.5)
    wanted, _ = asyncio.run(expected(bootstrap, prefix))
    found: dict[str, list[str]] = {}
    looks = {"PostgreSQL": lambda: rows_in_postgres(dsn, ROWS), "DuckDB": lambda: rows_in_duckdb(path, ROWS)}
    for name, look in looks.items():
        try:
            wait_until(lambda look=look: sorted(look()) == wanted, 90, name, 0.5)  # type: ignore[misc]  # bound now
            found[name] = []
        except AssertionError:
            found[name] = difference(look(), wanted)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=40_000)
    parser.add_argument("--faults", type=int, default=12)
    parser.add_argument("--seed", type=int, default=random.randrange(1000))
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    found = programs()
    if found is None:
        sys.exit("PostgreSQL's server isn't installed (Debian: postgresql)")
    with tempfile.TemporaryDirectory() as name:
        kafka, postgres = EmbeddedKafka(Path(name) / "kafka"), PostgresServer(found)
        try:
            kafka.start()
            postgres.start()
            report = run(Path(name), kafka, "sinks-", postgres, given.events, given.faults, given.seed)
        finally:
            postgres.end()
            kafka.stop()
    print(report, "RIGHT" if report.right else "WRONG", flush=True)
    sys.exit(not report.right)


if __name__ == "__main__":
    main()
