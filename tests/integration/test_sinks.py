"""Real sink processes between a real Kafka and real databases: one row an event, whatever is away or killed."""

import asyncio
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from app.broker.kafka import EmbeddedKafka
from tests.helpers import topics
from tests.helpers.postgres import PostgresServer
from tests.helpers.processes import wait_until
from tests.helpers.results import a_record, a_result
from tests.helpers.sinks import SinkProcess, rows_in_duckdb, rows_in_postgres

pytestmark = [pytest.mark.integration, pytest.mark.timeout(170)]

CONFIG = """
[[sinks]]
name = "files"
path = "{folder}/out/results.duckdb"
flush_s = 0.1

[[sinks]]
name = "warehouse"
kind = "postgres"
dsn_env = "WAREHOUSE_DSN"
batch_records = 100
flush_s = 0.1
"""

COUNT = "SELECT count(*) FROM ai_results WHERE category = '{}'"


class Rig:
    """Sinks on topics of one test."""

    def __init__(self, folder: Path, bootstrap: str, prefix: str, dsn: str) -> None:
        self.folder, self.bootstrap, self.prefix, self.dsn = folder, bootstrap, prefix, dsn
        self.topic = f"{prefix}ai-results"
        (folder / "headrace.toml").write_text(CONFIG.format(folder=folder))
        self.env = {
            "HEADRACE_KAFKA__BOOTSTRAP_SERVERS": bootstrap, "HEADRACE_KAFKA__TOPIC_PREFIX": prefix,
            "HEADRACE_KAFKA__SESSION_TIMEOUT_S": "6", "HEADRACE_CONFIG": str(folder / "headrace.toml"), "WAREHOUSE_DSN": dsn,
        }  # fmt: skip
        self.running: list[SinkProcess] = []

    def sink(self, *names: str) -> SinkProcess:
        made = SinkProcess(self.folder / f"p{len(self.running)}", self.env, *names)
        self.running.append(made)
        return made.start()

    def produce(self, ids: list[str], **more: Any) -> None:
        rows = [(i.encode(), a_record(a_result(i, **more)).value) for i in ids]
        asyncio.run(topics.produce(self.bootstrap, self.topic, rows))  # type: ignore[arg-type]  # bytes are bytes | None

    def in_postgres(self, statement: str = "SELECT event_id, category FROM ai_results") -> list[Any]:
        return rows_in_postgres(self.dsn, statement)

    def in_duckdb(self, statement: str = "SELECT event_id, category FROM ai_results") -> list[Any]:
        return rows_in_duckdb(self.folder / "out" / "results.duckdb", statement)

    def expected(self) -> list[tuple[str, str]]:
        """By a plain client: the latest record of each key."""
        latest: dict[bytes, bytes | None] = {}
        for record in asyncio.run(topics.read(self.bootstrap, self.topic)):
            latest[record.key] = record.value
        return sorted((k.decode(), json.loads(v)["category"]) for k, v in latest.items() if v is not None)

    def holds(self, look: Callable[[], list[Any]], rows: list[Any], seconds: float = 60) -> None:
        wait_until(lambda: sorted(look()) == rows, seconds, f"{len(rows)} rows; there are {len(look())}", 0.2)


@pytest.fixture
def rig(tmp_path: Path, kafka: EmbeddedKafka, prefix: str, postgres: PostgresServer) -> Iterator[Rig]:
    made = Rig(tmp_path, kafka.bootstrap, prefix, postgres.database())
    asyncio.run(topics.create(kafka.bootstrap, made.topic))
    yield made
    for each in made.running:
        each.kill()


def test_results_come_into_both_databases_and_a_stop_is_clean(rig: Rig) -> None:
    rig.produce([f"e{n}" for n in range(300)])
    sink = rig.sink()
    rig.produce([f"e{n}" for n in range(200, 400)], category="later")
    rows = rig.expected()
    assert len(rows) == 400
    rig.holds(rig.in_duckdb, rows)
    second = rig.sink("files")
    rig.holds(rig.in_postgres, rows)
    page = httpx.get(f"http://127.0.0.1:{sink.metrics_port}/metrics", trust_env=False).text
    assert 'headrace_sink_rows_total{outcome="written",sink="warehouse"}' in page
    assert f'headrace_sink_lag_records{{partition="0",sink="files",topic="{rig.topic}"}}' in page
    assert second.ended() == 1
    assert "one process writes a DuckDB file" in second.said
    assert sink.stop() == 0
    assert "Traceback" not in sink.said
    assert rig.dsn not in sink.said


def test_a_database_that_is_away_delays_only_its_own_sink(rig: Rig, postgres: PostgresServer) -> None:
    sink = rig.sink()
    rig.produce([f"e{n}" for n in range(100)])
    rig.holds(rig.in_postgres, rig.expected())
    postgres.kill()
    try:
        rig.produce([f"f{n}" for n in range(100)])
        rig.holds(rig.in_duckdb, rig.expected())
        wait_until(lambda: "trying again" in sink.said, 20, "the outage is said")
    finally:
        postgres.start()
    rig.holds(rig.in_postgres, rig.expected())
    assert "sink warehouse: goes on" in sink.said


def test_tombstones_and_broken_records_pass_through_a_running_sink(rig: Rig) -> None:
    rig.sink()
    rig.produce([f"e{n}" for n in range(50)])
    rig.holds(rig.in_postgres, rig.expected())
    odd = [(b"e1", None), (b"e2", b"{"), (b"e3", (a_record(a_result("e3", why="a\0b")).value or b""))]
    asyncio.run(topics.produce(rig.bootstrap, rig.topic, odd))
    rig.produce(["last"])
    ids = {f"e{n}" for n in range(50)} - {"e1"} | {"last"}
    wait_until(lambda: {row[0] for row in rig.in_postgres()} == ids, 30, "PostgreSQL")
    wait_until(lambda: {row[0] for row in rig.in_duckdb()} == ids, 30, "DuckDB")
    kept = rig.in_postgres("SELECT key, value FROM headrace_rejected WHERE sink = 'warehouse'")
    assert sorted((bytes(key), bytes(value)) for key, value in kept) == odd[1:]


def test_wrong_tables_end_the_sink_with_the_way_out_and_the_other_goes_on(rig: Rig) -> None:
    with psycopg.connect(rig.dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE ai_results (event_id TEXT PRIMARY KEY)")
    rig.produce(["a"])
    alone, both = rig.sink("warehouse"), rig.sink()
    assert alone.ended() == 1
    assert 'ADD COLUMN "category" text' in alone.said
    rig.holds(rig.in_duckdb, [("a", "order")])
    assert both.stop() == 1


def test_a_sink_that_is_killed_while_it_writes_leaves_one_row_an_event_to_those_that_go_on(rig: Rig) -> None:
    first, second = rig.sink("warehouse"), rig.sink("warehouse")
    ids = [f"e{n}" for n in range(3000)]
    rig.produce(ids, category="old")
    rig.holds(lambda: rig.in_postgres(COUNT.format("old")), [(3000,)])
    random.Random(1).shuffle(ids)
    rig.produce(ids, category="new")
    wait_until(lambda: 100 < rig.in_postgres(COUNT.format("new"))[0][0] < 2900, 60, "writing goes on", 0.01)
    first.kill()
    first.start()
    rig.holds(rig.in_postgres, rig.expected(), 90)
    assert rig.in_postgres(COUNT.format("new")) == [(3000,)]
    for sink in (first, second):
        sink.wait_ready()
        assert sink.stop() == 0
        assert "Traceback" not in sink.said
