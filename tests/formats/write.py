"""Writes what a release leaves in its changelogs and state folders, once for each change of their format.

    python -m tests.formats.write 2

A real worker with every stage takes some events; its changelogs and local copies are kept in tests/formats/N, beside the
rows that they hold as this version reads them. `tests/unit/test_state_format.py` has every later version read them.
"""

import asyncio
import base64
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from app.broker.kafka import EmbeddedKafka
from tests.formats.read import HERE, local_rows, rows_of, states
from tests.helpers import topics
from tests.helpers.processes import StubProcess, Worker, wait_until

PARTITIONS = 1
CONFIG = """
[[sources]]
name = "raw"
topic = "raw"
[[sources]]
name = "other"
topic = "other"
[windows]
idle_s = 0
[[aggregates]]
name = "short"
sources = ["raw"]
size_s = 8
hop_s = 4
grace_s = 2
sequence = 4
[[aggregates]]
name = "both"
sources = ["raw", "other"]
size_s = 8
hop_s = 8
grace_s = 2
[[intents]]
name = "tries"
aggregate = "both"
when = [{ count = "fail", at_least = 2 }]
incident = "tries"
[budget]
day_usd = 5.0
[[tasks]]
name = "kind"
[[tasks.rules]]
name = "deep"
tier = "deep"
when = [{ field = "event_type", op = "equals", value = "message" }]
[[tasks.rules]]
name = "rest"
category = "other"
when = [{ field = "event_type", op = "exists" }]
[[tasks.categories]]
id = "payment"
description = "payment, refund, invoice, card"
[[tasks.categories]]
id = "other"
description = "anything else"
"""


def events(source: str, count: int) -> list[tuple[bytes | None, bytes]]:
    """The same ones each time, but for nothing: their times are fixed."""
    kinds = ("view", "fail", "message")
    made: list[tuple[bytes | None, bytes]] = []
    for n in range(count):
        event = {
            "event_id": f"{source}-{n}", "event_type": kinds[n % 3], "event_time": 1_796_000_000_000 + n * 1500,
            "payload": {"message": f"退款 {n} für Zoë"},
        }  # fmt: skip
        made.append((None if n % 11 == 10 else b"u%d" % (n % 3), json.dumps(event, ensure_ascii=False).encode()))
    return made


def main() -> None:
    target = HERE / sys.argv[1]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kafka = EmbeddedKafka(folder / "kafka")
        stub = StubProcess(latency_ms=5)
        config = folder / "headrace.toml"
        config.write_text(CONFIG)
        worker = Worker(
            folder / "worker",
            {
                "HEADRACE_KAFKA__BOOTSTRAP_SERVERS": "", "HEADRACE_CONFIG": str(config),
                "HEADRACE_KAFKA__PARTITIONS": str(PARTITIONS), "HEADRACE_LLM__MODEL": "stub",
                "HEADRACE_LLM__BASE_URL": f"http://127.0.0.1:{stub.port}/v1",
            },
        )  # fmt: skip
        try:
            kafka.start()
            stub.start()
            worker.env["HEADRACE_KAFKA__BOOTSTRAP_SERVERS"] = kafka.bootstrap
            for source in ("raw", "other"):
                asyncio.run(topics.create(kafka.bootstrap, source, PARTITIONS))
                asyncio.run(topics.produce(kafka.bootstrap, source, events(source, 30)))
            worker.start()
            worker.wait_ready()
            wait_until(lambda: len(_read(kafka, "ai-results")) >= 40, 60, "results", every_s=0.5)
            stub.kill()  # what comes now waits for a model
            asyncio.run(topics.produce(kafka.bootstrap, "raw", events("later", 12)))
            wait_until(lambda: len(_read(kafka, "clean-events")) >= 72, 60, "clean events", every_s=0.5)
            assert worker.stop() == 0
            _keep(target, kafka, worker)
        finally:
            worker.kill()
            stub.kill()
            kafka.kill()


def _read(kafka: EmbeddedKafka, topic: str) -> list[Any]:
    return asyncio.run(topics.read(kafka.bootstrap, topic, PARTITIONS))


def _keep(target: Path, kafka: EmbeddedKafka, worker: Worker) -> None:
    target.mkdir()
    for name in ("ingest-raw", "ingest-other", "ingest-rekeyed", "windows", "classify", "budget", "review", "results"):
        records = _read(kafka, f"headrace-{name}-changelog")
        lines = [{"offset": r.offset, "key": _shown(r.key), "value": _shown(r.value)} for r in records]
        _write(target / f"{name}.changelog.jsonl", lines)
        database = next(worker.folder.rglob(f"{name}-0.db"))
        local = [{"key": _shown(key), "value": _shown(value)} for key, value in local_rows(database)]
        _write(target / f"{name}.local.jsonl", local)
    for name, state in states(target):
        _write(target / f"{name}.rows.jsonl", rows_of(state))


def _shown(raw: bytes | None) -> str | None:
    return None if raw is None else base64.b64encode(raw).decode()


def _write(file: Path, lines: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
