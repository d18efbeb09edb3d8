"""CPU per event, memory and disk with few and with many ids in the table."""

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

from tqdm import tqdm

from app.broker.kafka import EmbeddedKafka
from tests.bench import ingest, outputs, table
from tests.bench.contestants import Job, Launch, ours
from tests.bench.data import preload
from tests.bench.ingest import Say
from tests.bench.launched import launched

__all__ = ["MORE", "run"]

TOPIC, PREFIX = "ids-input", "ids-"
PROBE = 300_000
WARM = 4
"""The first fourth of the probe doesn't count: a worker that has just started has cold caches."""
MORE = ("ids", "disk_mb", "cpu_ratio")
SMALL_SEGMENTS = {"log.segment.bytes": str(64 << 20), "log.initial.task.delay.ms": "1000"}
"""Deleted records leave the disk with their segment."""


def run(sizes: list[int], say: Say, probe: int = PROBE) -> list[dict[str, Any]]:
    """A row for each table size, in rising order."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as temporary:
        folder = Path(temporary)
        kafka = EmbeddedKafka(folder / "kafka", properties={**ingest.BROKER, **SMALL_SEGMENTS})
        kafka.start()
        try:
            place = folder / "worker"
            place.mkdir()
            asyncio.run(outputs.make(kafka.bootstrap, [TOPIC], stamped=False))
            asyncio.run(outputs.make(kafka.bootstrap, [PREFIX + t for t in outputs.OUTPUTS], stamped=True))
            launch = ours(Job(folder=place, bootstrap=kafka.bootstrap, topic=TOPIC, prefix=PREFIX), say)
            there = appended = 0
            for size in sorted(sizes):
                with launched([(launch, place / "process.log")]) as (running, _):
                    more = max(0, size - there)
                    with tqdm(total=more, desc=f"{size} ids", unit="id", disable=None, leave=False) as bar:
                        stuck = asyncio.run(
                            table.fill(kafka.bootstrap, PREFIX, TOPIC, more, appended, running, size, bar.update)
                        )
                if stuck:
                    raise RuntimeError(f"filling the table: {stuck}\n{running[0].complaints()}")
                appended += more
                row, log = _probe(kafka.bootstrap, launch, place, appended, size, probe)
                appended += probe
                there = max(there, size) + row.pop("new_ids")
                row = {"name": "ours", "ids": size, "events": probe, **row}
                row["cpu_ratio"] = round(row["cpu_us_per_event"] / (rows or [row])[0]["cpu_us_per_event"], 3)
                rows.append(row)
                say(str(row))
                if not row["right"]:
                    say(log)
        finally:
            kafka.stop()
    return rows


def _probe(
    bootstrap: str, launch: Launch, place: Path, before: int, seed: int, probe: int
) -> tuple[dict[str, Any], str]:
    """Usual events, waiting in the topic when the worker starts on its table."""
    asyncio.run(table.forget(bootstrap, [PREFIX + name for name in outputs.OUTPUTS]))
    expected = asyncio.run(preload(bootstrap, TOPIC, probe, seed=seed))
    done, warm_at = 0, 0.0

    def note(more: int) -> None:
        nonlocal done, warm_at
        done += more
        if done >= before + probe // WARM and not warm_at:
            warm_at = time.time()

    with launched([(launch, place / "process.log")]) as (running, meter):
        stuck = asyncio.run(
            outputs.await_progress(bootstrap, launch.group, TOPIC, before + probe, running[0].alive, note)
        )
    outcome = asyncio.run(outputs.judge(bootstrap, PREFIX, expected))
    if stuck:
        outcome.wrong.insert(0, stuck)
    row = ingest.measured(outcome, probe, meter, running, warm_at)
    new_ids = len(expected.clean) + len(expected.noise)
    return {**row, "disk_mb": table.disk_mb(place), "new_ids": new_ids, "rounds": [row]}, running[0].complaints()
