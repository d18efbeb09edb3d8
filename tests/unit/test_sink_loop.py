"""The loop of a sink between a scripted consumer and a DuckDB file: what happens at the very moment when partitions move."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from aiokafka.structs import TopicPartition

from app.commands.sink import run_all
from app.settings import Settings
from app.settings_sinks import SinkSettings
from app.sinks.duck import Duck
from app.sinks.sink import Sink
from app.sinks.tables import TABLES
from tests.helpers.consumer import FakeConsumer
from tests.helpers.results import a_record, a_result

P0, P1 = TopicPartition("ai-results", 0), TopicPartition("ai-results", 1)


class Rig:
    """A sink on a DuckDB file of its own."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "s.duckdb"
        self.own = SinkSettings(name="s", path=self.path, flush_s=0)
        self.database = Duck("s", [TABLES["ai-results"]], self.path)
        self.stop = asyncio.Event()
        self.sink = Sink(Settings(), self.own, self.database, self.stop)

    def rows(self, statement: str = "SELECT event_id FROM ai_results ORDER BY 1") -> list[Any]:
        with duckdb.connect(str(self.path)) as file:
            return file.execute(statement).fetchall()

    async def copy(self, consumer: FakeConsumer, until: Callable[[], bool]) -> None:
        """Copies until a condition holds."""
        self.database.start()
        self.sink.on_partitions_assigned(consumer.assigned)
        copying = asyncio.create_task(self.sink.copy(consumer))
        try:
            async with asyncio.timeout(20):
                while not until() and not copying.done():
                    await asyncio.sleep(0.01)
        finally:
            copying.cancel()
            await asyncio.wait([copying])
            self.database.close()
        if not copying.cancelled():
            copying.result()  # it ended by itself: why?

    def moves(self, consumer: FakeConsumer, *assigned: TopicPartition) -> None:
        """A rebalance."""
        self.sink.on_partitions_revoked(consumer.assigned)
        consumer.assigned = set(assigned)
        self.sink.on_partitions_assigned(assigned)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


@pytest.mark.parametrize("moment", ["beginning_offsets", "end_offsets"])
async def test_partitions_that_come_while_it_is_asked_where_others_go_on_are_asked_for_too(
    rig: Rig, moment: str
) -> None:
    logs = {P0: [a_record(a_result("a"), 0)], P1: [a_record(a_result("b"), 0, 1)]}
    consumer = FakeConsumer(logs)
    consumer.assigned = {P0}
    consumer.during[moment] = lambda: rig.moves(consumer, P0, P1)
    await rig.copy(consumer, lambda: len(consumer.committed) == 2)
    assert rig.rows() == [("a",), ("b",)]


async def test_an_error_that_nobody_foresaw_ends_its_own_sink_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Duck):
        def start(self) -> None:
            raise KeyError("ours")

    broken = Broken("broken", [], tmp_path / "b.duckdb")
    assert await run_all([(SinkSettings(name="broken"), broken)] * 2) == 2
    assert "sink broken: an error that isn't foreseen" in caplog.text
