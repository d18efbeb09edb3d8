"""The databases that sinks write."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.postgres import PostgresServer
from tests.helpers.sinks import Store


@pytest.fixture
def in_postgres(postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    made = Store("postgres", tmp_path, postgres.database(), monkeypatch)
    yield made
    made.end()


@pytest.fixture
def in_duckdb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    made = Store("duckdb", tmp_path, "", monkeypatch)
    yield made
    made.end()


@pytest.fixture(params=["in_duckdb", "in_postgres"], ids=["duckdb", "postgres"])
def store(request: pytest.FixtureRequest) -> Store:
    """One kind after the other."""
    found: Store = request.getfixturevalue(request.param)
    return found
