"""Dead letters on a real broker, sent back once each, whatever comes in between."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiokafka
import pytest
from aiokafka.errors import IllegalOperation

from agents.redrive import Redrive
from app.broker.kafka import EmbeddedKafka
from app.errors import BrokerError
from app.logic.dead import dead_headers
from app.logic.redrive import Selection
from app.settings import Settings, load
from models.events import Bad, Received
from tests.helpers import topics

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]


@pytest.fixture
def settings(kafka: EmbeddedKafka, prefix: str) -> Settings:
    tree = load()
    update = {"bootstrap_servers": kafka.bootstrap, "topic_prefix": prefix}
    return tree.model_copy(update={"kafka": tree.kafka.model_copy(update=update)})


async def bury(
    settings: Settings, values: list[bytes | None], reason: str = "bad-time", origin: str = "raw-events"
) -> None:
    """Writes dead letters as a stage does: the n-th was read at offset n, from partition n % 4."""
    await topics.create(settings.kafka.bootstrap_servers, settings.topic("dead-letter"))
    await topics.create(settings.kafka.bootstrap_servers, settings.topic("raw-events"))
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=settings.kafka.bootstrap_servers)
    await producer.start()
    try:
        for n, value in enumerate(values):
            raw = Received(settings.topic(origin), n % 4, n, 1000, b"k%d" % n, value, [("note", None)])
            headers = dead_headers(raw, Bad(reason=reason, message="m"), "ingest-raw-events")
            await producer.send_and_wait(
                settings.topic("dead-letter"), value, raw.key, partition=n % 2, headers=headers
            )
    finally:
        await producer.stop()


async def moved(settings: Settings, topic: str = "raw-events") -> list[Any]:
    return await topics.read(settings.kafka.bootstrap_servers, settings.topic(topic))


def redrive(settings: Settings, max_attempts: int = 5, **selection: Any) -> Redrive:
    return Redrive(settings, Selection(**selection), max_attempts=max_attempts)


async def test_each_goes_back_once_byte_for_byte_to_where_it_was_read(settings: Settings) -> None:
    values: list[bytes | None] = [b"{", None, b"", b"null", *[b'{"event_id":"e%d"}' % n for n in range(4, 40)]]
    await bury(settings, values)
    look = await redrive(settings).look()
    assert look.selected.total() == len(values)
    assert await moved(settings) == []
    done = await redrive(settings, ids={"e7", "e8", "0/0"}).run()
    assert done.moved.total() == 3
    done = await redrive(settings).run()
    assert (done.moved.total(), done.already) == (len(values) - 3, 3)
    done = await redrive(settings).run()
    assert (done.moved.total(), done.already) == (0, len(values))
    records = await moved(settings)
    assert {record.key: record.value for record in records} == {b"k%d" % n: value for n, value in enumerate(values)}
    assert len(records) == len(values)
    for record in records:
        n = int(record.key[1:])
        assert record.partition == n % 4
        assert dict(record.headers)["headrace.redrive-origin"].decode() == f"{settings.topic('raw-events')}/{n % 4}/{n}"


async def test_a_run_that_is_cut_off_moves_the_rest_when_it_is_repeated(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agents.redrive.CHUNK_RECORDS", 4)
    await bury(settings, [b'{"event_id":"e%d"}' % n for n in range(20)])
    broken = redrive(settings)
    commits, commit = 0, aiokafka.AIOKafkaProducer.commit_transaction

    async def failing(producer: Any) -> None:
        nonlocal commits
        commits += 1
        if commits == 3:
            raise asyncio.CancelledError  # everything is sent, nothing committed
        await commit(producer)

    monkeypatch.setattr(aiokafka.AIOKafkaProducer, "commit_transaction", failing)
    with pytest.raises(asyncio.CancelledError):
        await broken.run()
    assert len(await moved(settings)) == 8
    done = await redrive(settings).run()
    assert (done.moved.total(), done.already) == (12, 8)
    assert sorted(record.key for record in await moved(settings)) == sorted(b"k%d" % n for n in range(20))


@pytest.mark.parametrize("at", ["between two transactions", "while one is filled", "in the rest between them"])
async def test_a_run_that_is_stopped_ends_after_its_transaction_and_another_moves_the_rest(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    monkeypatch.setattr("agents.redrive.CHUNK_RECORDS", 4)
    await bury(settings, [b'{"event_id":"e%d"}' % n for n in range(20)])
    stop = asyncio.Event()

    def progress(done: int, total: int) -> None:
        if at == "while one is filled" and done == 7:
            stop.set()

    rate = 0.001 if at == "in the rest between them" else 0.0  # over an hour of rest
    stopped = Redrive(settings, Selection(), max_attempts=5, rate_per_s=rate, progress=progress, stop=stop)
    move = stopped._move

    async def moved_some(producer: Any, letters: Any, **how: Any) -> None:
        if at == "between two transactions":
            stop.set()
        elif rate:
            asyncio.get_running_loop().call_soon(asyncio.ensure_future, stop_once_moved())
        await move(producer, letters, **how)

    async def stop_once_moved() -> None:
        while not stopped.tally.moved:
            await asyncio.sleep(0.01)
        stop.set()

    monkeypatch.setattr(stopped, "_move", moved_some)
    done = await stopped.run()
    assert (done.stopped, done.moved.total(), len(await moved(settings))) == (True, 4, 4)
    done = await redrive(settings).run()
    assert (done.stopped, done.moved.total(), done.already) == (False, 16, 4)
    assert sorted(record.key for record in await moved(settings)) == sorted(b"k%d" % n for n in range(20))


async def test_a_second_run_stops_the_first_and_nothing_is_doubled(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agents.redrive.CHUNK_RECORDS", 4)
    await bury(settings, [b'{"event_id":"e%d"}' % n for n in range(20)])
    first, begun, go_on = redrive(settings), asyncio.Event(), asyncio.Event()
    move = first._move

    async def held(producer: Any, letters: Any, **how: Any) -> None:
        if first.tally.moved.total() == 8:
            begun.set()
            await go_on.wait()
        await move(producer, letters, **how)

    monkeypatch.setattr(first, "_move", held)
    running = asyncio.create_task(first.run())
    await begun.wait()
    second = await redrive(settings).run()
    go_on.set()
    with pytest.raises(BrokerError, match="another redrive"):
        await running
    assert second.moved.total() == 12
    assert sorted(record.key for record in await moved(settings)) == sorted(b"k%d" % n for n in range(20))


async def test_what_has_no_topic_or_came_back_too_often_stays(settings: Settings) -> None:
    await bury(settings, [b"{}"], origin="api-keys")
    await bury(settings, [b"{}"], origin="raw-events")
    done = await redrive(settings, max_attempts=1).run()
    assert (done.moved.total(), done.no_topic) == (1, 1)
    record = (await moved(settings))[0]
    back = Received(record.topic, record.partition, record.offset, 1, record.key, record.value, record.headers)
    headers = dead_headers(back, Bad(reason="bad-time", message="m"), "ingest-raw-events")
    await topics.produce(
        settings.kafka.bootstrap_servers, settings.topic("dead-letter"), [(record.key, record.value)], headers=headers
    )
    done = await redrive(settings, max_attempts=1).run()
    assert (done.moved.total(), done.too_often, done.already) == (0, 1, 1)
    assert (await redrive(settings, max_attempts=2).run()).moved.total() == 1


async def test_the_command_shows_what_would_move_and_then_moves_it(settings: Settings) -> None:
    await bury(settings, [b"{}"] * 5, reason="bad-time")
    await bury(settings, [b"{}"] * 3, reason="too-deep")
    env = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    env |= {
        "HEADRACE_KAFKA__BOOTSTRAP_SERVERS": settings.kafka.bootstrap_servers,
        "HEADRACE_KAFKA__TOPIC_PREFIX": settings.kafka.topic_prefix,
    }

    async def command(*arguments: str) -> str:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "app", "redrive", *arguments, env=env, cwd=ROOT, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        said, _ = await process.communicate()
        assert process.returncode == 0, said
        return said.decode()

    shown = await command("--dry-run", "--since", "1h")
    assert "would move 8" in shown
    assert await moved(settings) == []
    assert "moved 5" in (await command("--reason", "bad-time", "--yes")).splitlines()[-1]
    assert len(await moved(settings)) == 5


async def test_a_producer_that_left_its_transaction_is_told_of_as_a_cut(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bury(settings, [b'{"event_id":"e1"}'])

    async def left(producer: Any) -> None:
        raise IllegalOperation("Not in the middle of a transaction")

    with monkeypatch.context() as patched:
        patched.setattr(aiokafka.AIOKafkaProducer, "commit_transaction", left)
        with pytest.raises(BrokerError, match="cut off"):
            await redrive(settings).run()
    assert (await redrive(settings).run()).moved.total() == 1
