"""An event id is a duplicate within the horizon and a new event behind it (agents.ingest)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka.structs import ConsumerRecord

from agents.ingest import Ingest
from app.delivery.database import Database
from app.delivery.outbox import Outbox
from app.delivery.stage import Batch
from app.delivery.state import View
from app.logic.rules import NoiseRules, TaskRouter
from app.settings import load
from app.sources.source import compile_source

HORIZON_MS = 60_000


@pytest.fixture
def view(tmp_path: Path) -> Iterator[View]:
    database = Database(tmp_path / "0.db")

    class OneDatabase:
        def database(self, partition: int) -> Database:
            return database

    state: Any = OneDatabase()
    yield View(state, 0)
    database.close()


def outcomes(view: View, tmp_path: Path, offset: int, now_ms: int, amount: int = 1) -> dict[tuple[str, str], int]:
    """Takes one record with the id e1 and makes its writes durable."""
    config = tmp_path / "headrace.toml"
    config.write_text(f"tasks = []\n[ingest]\ndedup_horizon_s = {HORIZON_MS // 1000}\n")
    settings = load(config)
    source = compile_source(settings.sources[0], settings)
    logic = Ingest(settings, "ingest", {source.name: source}, (NoiseRules(settings), TaskRouter(settings)), hop=False)
    value = b'{"event_id":"e1","event_type":"order","event_time":1000,"payload":%d}' % amount
    record = ConsumerRecord("raw", 0, offset, 1000, 0, b"u", value, None, 1, len(value), ())
    batch = Batch([record], 0, view, Outbox(now_ms))
    logic.decide(batch)
    view._database.write(batch.out.local.items(), offset)
    return batch.out.counts


def test_a_repeat_within_the_horizon_is_a_duplicate(view: View, tmp_path: Path) -> None:
    assert outcomes(view, tmp_path, 0, 0) == {("accepted", ""): 1}
    assert outcomes(view, tmp_path, 1, HORIZON_MS - 1) == {("duplicate", "raw-events"): 1}


def test_a_repeat_behind_the_horizon_is_a_new_event_even_before_it_is_expired(view: View, tmp_path: Path) -> None:
    outcomes(view, tmp_path, 0, 0)
    assert outcomes(view, tmp_path, 1, HORIZON_MS + 1) == {("accepted", ""): 1}


def test_an_id_with_another_body_is_a_conflict(view: View, tmp_path: Path) -> None:
    outcomes(view, tmp_path, 0, 0)
    assert outcomes(view, tmp_path, 1, 1, amount=99) == {("conflict", "raw-events"): 1}
