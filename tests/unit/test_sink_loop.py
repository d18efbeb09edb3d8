"""The loop of a sink between a scripted consumer and a DuckDB file: what happens at the very moment when partitions move."""

import asyncio
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from aiokafka.errors import (
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from aiokafka.structs import TopicPartition
from prometheus_client import REGISTRY

from app.commands.sink import run_all, sink
from app.errors import SinkError, SinkUnavailable
from app.settings import Settings
from app.settings_sinks import SinkSettings
from app.sinks.batch import Batch
from app.sinks.database import Written
from app.sinks.duck import Duck
from app.sinks.sink import Sink
from app.sinks.tables import TABLES
from tests.helpers.consumer import FakeConsumer
from tests.helpers.results import a_record, a_result

P0, P1 = TopicPartition("ai-results", 0), TopicPartition("ai-results", 1)


class Loose(Duck):
    """A database that is away for some writes."""

    away = 0

    def write(self, batch: Batch) -> Written:
        if self.away:
            self.away -= 1
            raise SinkUnavailable("it is away")
        return super().write(batch)


class Rig:
    """A sink on a DuckDB file of its own; as the kind that shares partitions, unless it is said otherwise."""

    def __init__(self, folder: Path, kind: str = "postgres") -> None:
        self.path = folder / "s.duckdb"
        self.own = SinkSettings.model_validate({"name": "s", "kind": kind, "flush_s": 0})
        self.database = Loose("s", [TABLES["ai-results"]], self.path)
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
            self.sink.on_partitions_revoked(())
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


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (TimeoutError(), "sink s: TimeoutError"),
        (
            TopicAuthorizationFailedError({"ai-results"}),
            "Kafka refuses user ANONYMOUS what it needs on topic ai-results",
        ),
    ],
)
async def test_why_kafka_cannot_be_read_is_said(
    rig: Rig, error: Exception, said: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def refused(*_: object) -> None:
        raise error

    monkeypatch.setattr("app.topics.counts", refused)
    running = asyncio.create_task(rig.sink.run())
    async with asyncio.timeout(10):
        while said not in caplog.text:
            await asyncio.sleep(0.01)
        rig.stop.set()
        await running


def test_a_metrics_port_that_is_taken_ends_the_command_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("logging.config.dictConfig", lambda _: None)
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SystemExit) as ended:
        sink.callback([], taken.getsockname()[1])
    assert ended.value.code == 1
    assert "Address already in use" in capsys.readouterr().err


def results(*ids: str, first: int = 0, partition: int = 0) -> list[Any]:
    return [a_record(a_result(each), offset, partition) for offset, each in enumerate(ids, first)]


def lost() -> float:
    return REGISTRY.get_sample_value("headrace_records_lost_total", {"stage": "sink-s", "partition": "0"}) or 0


async def test_records_that_retention_removes_before_a_running_sink_has_them_are_counted_once(rig: Rig) -> None:
    consumer, before = FakeConsumer({P0: results("a", "b")}), lost()
    await rig.copy(consumer, lambda: consumer.committed == {P0: 2})
    consumer.starts[P0] = 7
    consumer.add(P0, *results("h", first=7))
    consumer.errors = [OffsetOutOfRangeError({P0: 2}), NoOffsetForPartitionError(P0), OffsetOutOfRangeError({P0: 2})]
    await rig.copy(consumer, lambda: consumer.committed == {P0: 8})
    assert lost() - before == 5
    assert rig.rows() == [("a",), ("b",), ("h",)]


@pytest.mark.parametrize("ids", [("x", "y"), ("x", "y", "z"), ("x",)], ids=["as long", "longer", "shorter"])
async def test_a_topic_that_was_made_anew_ends_the_sink(rig: Rig, ids: tuple[str, ...]) -> None:
    old = FakeConsumer({P0: results("a", "b")})
    await rig.copy(old, lambda: old.committed == {P0: 2})
    consumer = FakeConsumer({P0: results(*ids)})
    with pytest.raises(SinkError, match="made anew"):
        await rig.copy(consumer, lambda: False)
    assert rig.rows() == [("a",), ("b",)]


async def test_a_topic_that_was_made_anew_while_the_database_was_away_is_noticed(rig: Rig) -> None:
    consumer = FakeConsumer({P0: results("a", "b")})
    rig.database.away = 1

    def anew() -> None:
        rig.database.away = 1
        consumer.logs[P0] = {record.offset: record for record in results("x", "y", "z")}
        consumer.ends[P0] = 3

    consumer.during["commit"] = anew
    with pytest.raises(SinkError, match="partition 0: another record stands at offset 1"):
        await rig.copy(consumer, lambda: False)


async def test_a_topic_that_was_made_anew_and_filled_between_two_fetches_is_noticed(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = FakeConsumer({P0: results("a", "b")})

    def anew() -> None:
        consumer.logs[P0] = {record.offset: record for record in results("x", "y", "z")}
        consumer.ends[P0] = 3
        rig.sink.gone(P0, UnknownTopicOrPartitionError("ai-results"))

    consumer.during["commit"] = lambda: consumer.during.update(getmany=anew)
    with pytest.raises(SinkError, match="partition 0: another record stands at offset 1"):
        await rig.copy(consumer, lambda: False)
    assert rig.rows() == [("a",), ("b",)]
    assert "sink s: topic ai-results isn't there" in caplog.text


@pytest.mark.parametrize(
    ("policy", "ends"),
    [("delete", True), ("compact,delete", False), (None, False)],
    ids=["plain", "compacted", "secret"],
)
async def test_a_place_without_a_record_ends_the_sink_where_nothing_is_compacted(
    rig: Rig, policy: str | None, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a topic that was made anew a transaction's marker stands there."""
    old = FakeConsumer({P0: results("a", "b")})
    await rig.copy(old, lambda: old.committed == {P0: 2})

    async def config(kafka: object, topic: str) -> dict[str, str]:
        if policy is None:
            raise TopicAuthorizationFailedError(topic)
        return {"cleanup.policy": policy}

    monkeypatch.setattr("app.sinks.sink.config_of", config)
    consumer = FakeConsumer({P0: [*results("x"), *results("z", first=2)]})
    if ends:
        with pytest.raises(SinkError, match="no record stands at offset 1 any more"):
            await rig.copy(consumer, lambda: False)
        assert rig.rows() == [("a",), ("b",)]
    else:
        await rig.copy(consumer, lambda: consumer.committed == {P0: 3})
        assert rig.rows() == [("a",), ("b",), ("z",)]


async def test_what_was_gathered_is_not_written_when_partitions_move_while_a_topic_is_asked_about(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = FakeConsumer({P0: results("a", "b")})
    await rig.copy(old, lambda: old.committed == {P0: 2})
    consumer, asked = FakeConsumer({P0: results("z", first=2)}), list[float]()

    async def config(kafka: object, topic: str) -> dict[str, str]:
        rig.moves(consumer)
        asked.append(time.monotonic())
        return {"cleanup.policy": "compact"}

    monkeypatch.setattr("app.sinks.sink.config_of", config)
    await rig.copy(consumer, lambda: bool(asked) and time.monotonic() > asked[0] + 0.3)
    assert rig.rows() == [("a",), ("b",)]


async def test_the_record_that_was_written_last_is_seen_again_and_not_written_twice(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def config(kafka: object, topic: str) -> dict[str, str]:
        return {"cleanup.policy": "compact,delete"}

    monkeypatch.setattr("app.sinks.sink.config_of", config)
    first = FakeConsumer({P0: results("a", "b")})
    await rig.copy(first, lambda: first.committed == {P0: 2})
    second = FakeConsumer({P0: results("a", "b", "c")})
    await rig.copy(second, lambda: second.committed == {P0: 3})
    compacted = FakeConsumer({P0: results("d", first=5)})  # the last one is gone: nothing speaks against it
    await rig.copy(compacted, lambda: compacted.committed == {P0: 6})
    assert rig.rows("SELECT event_id, kafka_offset FROM ai_results ORDER BY 1") == [
        ("a", 0), ("b", 1), ("c", 2), ("d", 5)
    ]  # fmt: skip


def lag(partition: int) -> float | None:
    labels = {"sink": "s", "topic": "ai-results", "partition": str(partition)}
    return REGISTRY.get_sample_value("headrace_sink_lag_records", labels)


async def test_markers_of_transactions_are_passed_so_that_lag_ends_at_none(rig: Rig) -> None:
    consumer = FakeConsumer({P0: results("a"), P1: results("b", partition=1)})
    consumer.ends[P0] = 2
    await rig.copy(consumer, lambda: lag(0) == 0 == lag(1))
    positions = "SELECT kafka_partition, next_offset, last_offset FROM headrace_positions ORDER BY 1"
    assert rig.rows(positions) == [(0, 2, 0), (1, 1, 0)]
    consumer.ends[P0] = 3  # an aborted transaction, or one for other partitions
    await rig.copy(consumer, lambda: consumer.committed[P0] == 3)
    assert rig.rows(positions) == [(0, 3, 0), (1, 1, 0)]
    rig.moves(consumer, P1)
    assert (lag(0), lag(1)) == (None, None)


@pytest.mark.parametrize("moment", ["beginning_offsets", "end_offsets", "getmany"])
async def test_a_sink_stops_while_kafka_does_not_answer(rig: Rig, moment: str) -> None:
    consumer = FakeConsumer({P0: results("a")})
    hangs = asyncio.Event()

    async def away() -> None:
        hangs.set()
        await asyncio.Event().wait()

    consumer.during[moment] = away
    rig.database.start()
    rig.sink.on_partitions_assigned([P0])
    copying = asyncio.create_task(rig.sink.copy(consumer))
    await hangs.wait()
    rig.stop.set()
    async with asyncio.timeout(10):
        await asyncio.wait([copying])
    rig.database.close()
    assert type(copying.exception()).__name__ == "_Stopped"


async def test_a_commit_that_kafka_does_not_answer_holds_nothing_up(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.sinks.sink.COMMIT_S", 0.05)
    consumer = FakeConsumer({P0: results("a")})
    consumer.during["commit"] = lambda: asyncio.Event().wait()

    def more() -> bool:
        if "commit" not in consumer.during and consumer.ends[P0] == 1:
            consumer.add(P0, *results("b", first=1))
        return consumer.committed == {P0: 2}

    await rig.copy(consumer, more)
    assert rig.rows() == [("a",), ("b",)]


async def test_a_file_takes_all_partitions_and_those_that_are_added(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "duckdb")
    consumer = FakeConsumer({P0: results("a")})
    consumer.assigned = set()
    added = {P1: results("b", partition=1)}

    def until() -> bool:
        if consumer.positions.get(P0) == 1 and P1 not in consumer.logs:
            consumer.logs[P1], consumer.starts[P1], consumer.ends[P1] = {r.offset: r for r in added[P1]}, 0, 1
        return lag(0) == 0 == lag(1)

    await rig.copy(consumer, until)
    assert rig.rows() == [("a",), ("b",)]
    assert consumer.committed == {}


async def test_a_sink_whose_kafka_takes_connections_and_never_answers_stops_when_it_is_told_to(tmp_path: Path) -> None:
    connected = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    rig = Rig(tmp_path)
    address = "127.0.0.1:{1}".format(*server.sockets[0].getsockname())
    settings = Settings.model_validate({"kafka": {"bootstrap_servers": address}})
    running = asyncio.create_task(Sink(settings, rig.own, rig.database, rig.stop).run())
    async with asyncio.timeout(20):
        await connected.wait()
        rig.stop.set()
        await running
    server.close()
    assert rig.rows() == []
