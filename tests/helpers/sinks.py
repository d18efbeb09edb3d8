"""Sinks in tests: a real `headrace sink` process, databases in this process, and what plain clients see of either."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pytest

from app.settings_sinks import SinkSettings
from app.sinks.batch import Batch
from app.sinks.database import Database, Written
from app.sinks.duck import Duck
from app.sinks.postgres import Postgres
from app.sinks.tables import TABLES
from tests.helpers.processes import clean_environment, free_port, wait_until

__all__ = ["SinkProcess", "Store", "rows_in_duckdb", "rows_in_postgres", "write"]

ROOT = Path(__file__).parents[2]


class SinkProcess:
    """One `headrace sink`.

    Args:
        folder: for its log.
        env: its settings.
        names: of the sinks that it runs; none: all.
    """

    def __init__(self, folder: Path, env: dict[str, str], *names: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.log, self.metrics_port, self.names = folder / f"sink-{'-'.join(names)}.log", free_port(), names
        self.env = clean_environment({"HEADRACE_DATA_DIR": str(folder), **env})
        self._before = 0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> "SinkProcess":
        self._before = len(self.said)
        command = [sys.executable, "-m", "app", "sink", *self.names, "--metrics-port", str(self.metrics_port)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=self.env, cwd=ROOT,
                start_new_session=True,
            )  # fmt: skip
        return self

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def wait_ready(self, seconds: float = 60) -> None:
        """Waits until it has its partitions, since its last start."""
        wait_until(lambda: ": has " in self.said[self._before :], seconds, f"the sink is ready; see {self.log}")

    def kill(self) -> None:
        """SIGKILL."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self, seconds: float = 20) -> int:
        """SIGTERM; returns the exit status."""
        self.signal(signal.SIGTERM)
        assert self.process is not None
        return self.process.wait(seconds)

    def ended(self, seconds: float = 60) -> int:
        """Waits until it ends by itself; returns the exit status."""
        assert self.process is not None
        return self.process.wait(seconds)


def rows_in_postgres(dsn: str, statement: str) -> list[Any]:
    """None while the server is away, or before the table is there."""
    try:
        with psycopg.connect(dsn, autocommit=True, connect_timeout=5) as connection:
            return connection.execute(statement.encode()).fetchall()
    except (psycopg.errors.UndefinedTable, psycopg.OperationalError):
        return []


def rows_in_duckdb(path: Path, statement: str) -> list[Any]:
    """None while a batch is being written, or before the table is there."""
    try:
        with duckdb.connect(str(path), read_only=True) as file:
            return file.execute(statement).fetchall()
    except (duckdb.IOException, duckdb.CatalogException):
        return []


class Store:
    """A database of one kind with a way to look into it that isn't the product's."""

    def __init__(self, kind: str, folder: Path, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kind, self._path, self.dsn = kind, folder / "s.duckdb", dsn
        monkeypatch.setenv("SINK_TEST_DSN", dsn)
        self._opened: list[Database] = []

    def sink(self, *topics: str, name: str = "s") -> Database:
        """A sink that has started."""
        tables = [TABLES[topic] for topic in topics or ("ai-results",)]
        if self.kind == "postgres":
            made: Database = Postgres(SinkSettings(name=name, kind="postgres", dsn_env="SINK_TEST_DSN"), tables)
        else:
            made = Duck(name, tables, self._path)
        self._opened.append(made)
        made.start()
        return made

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        if self.kind == "postgres":
            with psycopg.connect(self.dsn, autocommit=True) as connection:
                cursor = connection.execute(statement.encode())
                return cursor.fetchall() if cursor.description else []
        with duckdb.connect(str(self._path)) as file:
            return file.execute(statement).fetchall()

    def end(self) -> None:
        for each in self._opened:
            each.close()


def write(sink: Database, *records: Any) -> Written:
    """Writes records in one batch, from where the sink stands."""
    places = {(record.topic, record.partition): 0 for record in records}
    batch = Batch(TABLES, sink.positions(places))
    for record in records:
        batch.add(record)
    return sink.write(batch)
