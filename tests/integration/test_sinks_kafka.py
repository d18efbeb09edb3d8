"""A sink in this process on a real Kafka, with a database that a test takes away."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka.admin import RecordsToDelete
from aiokafka.structs import TopicPartition

from app import metrics
from app.broker.kafka import EmbeddedKafka
from app.errors import SinkError, SinkUnavailable
from app.kafka import admin
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
    async def running(self, database: Loose, kind: str, *, ends: bool = False) -> AsyncIterator[asyncio.Task[None]]:
        """Stops it after; `ends`: it ends by itself, and the test looks at why."""
        stop = asyncio.Event()
        own = SinkSettings.model_validate({"name": "s", "kind": kind, "flush_s": 0})
        task = asyncio.create_task(Sink(self.settings, own, database, stop).run())
        try:
            yield task
        finally:
            stop.set()
            async with asyncio.timeout(20):
                await asyncio.wait([task])
        if not ends:
            task.result()

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
        await until(lambda: database.asked >= 3)  # 1.5 s: it waits 0.5 and 1 s between, then 2 s
        database.away = False
        await rig.produce("c")
        await until(lambda: sorted(database.ids) == ["a", "b", "c"])


async def test_two_files_of_one_name_each_get_all_results(rig: Rig) -> None:
    one, two = Loose("s", rig.folder / "one"), Loose("s", rig.folder / "two")
    async with rig.running(one, "duckdb"), rig.running(two, "duckdb"):
        ids = [f"e{n:02}" for n in range(40)]
        await rig.produce(*ids)
        await until(lambda: sorted(one.ids) == ids == sorted(two.ids))


async def test_records_that_are_removed_while_the_database_is_away_are_counted_and_the_rest_goes_on(rig: Rig) -> None:
    database = Loose("s", rig.folder)
    async with rig.running(database, "postgres"):
        await rig.produce("a")
        await until(lambda: database.ids == ["a"])
    before = lost()
    await rig.produce("b", "a")
    async with admin(rig.settings.kafka) as client:
        ends = await topics.end_offsets(rig.bootstrap, rig.topic)
        await client.delete_records({TopicPartition(rig.topic, p): RecordsToDelete(end) for p, end in ends.items()})
    again = Loose("s", rig.folder)
    async with rig.running(again, "postgres"):
        await rig.produce("c")
        await until(lambda: again.ids == ["c"])
    assert lost() - before == 2


def lost() -> float:
    samples = metrics.RECORDS_LOST.collect()[0].samples
    return sum(s.value for s in samples if s.labels["stage"] == "sink-s" and s.name.endswith("_total"))


async def test_a_sink_waits_for_its_topic_makes_none_and_ends_when_the_topic_is_made_anew(
    tmp_path: Path, kafka: EmbeddedKafka, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    rig, database = Rig(tmp_path, kafka.bootstrap, prefix), Loose("s", tmp_path)
    async with rig.running(database, "duckdb", ends=True) as task:
        await until(lambda: f"topics that aren't there, or that this user may not see: {rig.topic};" in caplog.text)
        async with admin(rig.settings.kafka) as client:
            assert [name for name in await client.list_topics() if name.startswith(prefix)] == []
        await topics.create(kafka.bootstrap, rig.topic)
        await rig.produce("a", "b")
        await until(lambda: sorted(database.ids) == ["a", "b"])
        async with admin(rig.settings.kafka) as client:
            await client.delete_topics([rig.topic])
        await topics.create(kafka.bootstrap, rig.topic)
        await until(task.done)
    with pytest.raises(SinkError, match="made anew"):
        task.result()
