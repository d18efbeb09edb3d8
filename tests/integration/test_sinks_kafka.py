"""A sink in this process on a real Kafka, with a database that a test takes away."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from app.broker.kafka import EmbeddedKafka
from app.errors import SinkUnavailable
from app.settings import Settings
from app.settings_sinks import SinkSettings
from app.sinks.batch import Batch
from app.sinks.database import Written
from app.sinks.duck import Duck
from app.sinks.sink import Sink
from app.sinks.tables import TABLES
from tests.helpers import topics
from tests.helpers.results import a_record, a_result

pytestmark = [pytest.mark.integration, pytest.mark.timeout(100)]


class Loose(Duck):
    """A database that is away when it is told to be."""

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(name, [TABLES["ai-results"]], folder / f"{name}.duckdb")
        self.away, self.asked = False, 0
        self.ids: list[str] = []
        """Of the rows that were written."""

    def write(self, batch: Batch) -> Written:
        self.asked += 1
        if self.away:
            raise SinkUnavailable("it is away")
        written = super().write(batch)
        self.ids += [entry.key for entry in batch.entries]
        return written


class Rig:
    """A sink on a topic of one test; kind `postgres` reads in a consumer group."""

    def __init__(self, folder: Path, bootstrap: str, prefix: str) -> None:
        self.folder, self.bootstrap, self.topic = folder, bootstrap, f"{prefix}ai-results"
        self.settings = Settings.model_validate({"kafka": {"bootstrap_servers": bootstrap, "topic_prefix": prefix}})

    @asynccontextmanager
    async def running(self, database: Loose, kind: str) -> AsyncIterator[asyncio.Task[None]]:
        stop = asyncio.Event()
        own = SinkSettings.model_validate({"name": "s", "kind": kind, "flush_s": 0})
        task = asyncio.create_task(Sink(self.settings, own, database, stop).run())
        try:
            yield task
        finally:
            stop.set()
            async with asyncio.timeout(20):
                await task

    async def produce(self, *ids: str) -> None:
        rows = [(i.encode(), a_record(a_result(i)).value) for i in ids]
        await topics.produce(self.bootstrap, self.topic, rows)


async def until(condition: Callable[[], Any], seconds: float = 40) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.05)


@pytest.fixture
async def rig(tmp_path: Path, kafka: EmbeddedKafka, prefix: str) -> Rig:
    made = Rig(tmp_path, kafka.bootstrap, prefix)
    await topics.create(kafka.bootstrap, made.topic)
    return made


async def test_an_outage_of_the_database_longer_than_the_poll_interval_is_waited_out(rig: Rig) -> None:
    kafka = rig.settings.kafka.model_copy(update={"max_poll_interval_s": 1.0})  # less than a user may set
    rig.settings = rig.settings.model_copy(update={"kafka": kafka})
    database = Loose("s", rig.folder)
    async with rig.running(database, "postgres"):
        await rig.produce("a")
        await until(lambda: database.ids == ["a"])
        database.away, database.asked = True, 0
        await rig.produce("b")
        await until(lambda: database.asked >= 4)  # 3.5 s: it waits 0.5, 1 and 2 s between
        database.away = False
        await rig.produce("c")
        await until(lambda: sorted(database.ids) == ["a", "b", "c"])
