"""A bounded pass of the kills beside sinks; `make chaos-checks` runs it."""

from pathlib import Path

import pytest

from app.broker.kafka import EmbeddedKafka
from tests.fault import sinks
from tests.helpers.postgres import PostgresServer

pytestmark = [pytest.mark.fault, pytest.mark.slow, pytest.mark.timeout(400)]


def test_databases_hold_one_row_an_event_after_kills_of_sinks_workers_and_the_database(
    tmp_path: Path, kafka: EmbeddedKafka, prefix: str, postgres: PostgresServer
) -> None:
    report = sinks.run(tmp_path, kafka, prefix, postgres, events=20_000, faults=8, seed=5)
    assert report.ids > 1000
    assert report.results > report.ids
    assert report.right, report
