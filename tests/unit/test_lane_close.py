"""What becomes of work that was posted to a lane: when its partition is taken away, and when a transaction fails."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError
from aiokafka.structs import TopicPartition

from app.delivery.lane import Lane
from app.delivery.outbox import Outbox
from app.delivery.transaction import Transaction
from app.delivery.transport import fetched_of
from app.delivery.turns import Turns
from app.errors import OutputError
from models.events import Received


def lane_of(told: Any = None) -> Lane:
    """A lane without a broker."""

    async def reserve(size: int) -> None:
        """There is room."""

    def release(size: int) -> None:
        delivery.released += 1

    delivery: Any = SimpleNamespace(
        batch_records=10, gather_s=0.0, fit=lambda out, stage: None, reserve_output=reserve, release_output=release,
        turns=Turns(), room=lambda: None, released=0, group="g",
    )  # fmt: skip
    state = SimpleNamespace(database=lambda partition: SimpleNamespace(changelog_offset=None))
    stage: Any = SimpleNamespace(
        name="s", delivery=delivery, state=state, lane_closed=told, decide=lambda records, lane: Outbox()
    )
    return Lane(delivery, stage, TopicPartition("t", 0))


def records(count: int) -> list[Received]:
    return [Received("t", 0, offset, 1, b"k", b"v") for offset in range(count)]


def names_of(transaction: Transaction) -> list[str]:
    return [name for (name, _) in transaction.out.counts]


def counting(name: str) -> Any:
    return lambda view, out: out.count(name, "")


async def test_answers_that_arrived_are_written_behind_the_transaction_under_way_and_input_isnt_begun() -> None:
    told: list[str] = []
    committed: list[str] = []
    lane = lane_of(lambda lane: told.append(f"closed after {committed}"))
    under_way, go_on = asyncio.Event(), asyncio.Event()

    async def commit(transaction: Transaction) -> None:
        under_way.set()
        await go_on.wait()
        committed.extend(names_of(transaction))

    lane._commit = commit  # type: ignore[method-assign]  # without a broker
    lane.ready = True
    lane._task = asyncio.ensure_future(lane._pump())
    lane.post(counting("first"))
    await under_way.wait()
    lane.post(counting("answer"))
    lane.inbox.add(fetched_of(records(1), 0, 1))
    closing = asyncio.ensure_future(lane.close())
    await asyncio.sleep(0)
    lane.post(counting("too-late"))
    go_on.set()
    await closing
    assert committed == ["first", "answer"]
    assert told == ["closed after ['first', 'answer']"]


async def test_a_lane_that_is_closed_gathers_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []

    async def write(transaction: Transaction, *arguments: object) -> None:
        written.extend(names_of(transaction))

    monkeypatch.setattr(Transaction, "write", write)
    lane = lane_of(lambda lane: None)
    lane.delivery.gather_s, lane.last_begin = 3600.0, time.monotonic()
    lane.stage.committed = lambda lane, transaction: None  # type: ignore[method-assign]  # nobody asks
    lane._task = asyncio.ensure_future(lane._pump())
    lane.post(counting("answer"))
    await asyncio.sleep(0.02)
    assert not written
    await lane.close()
    assert written == ["answer"]


async def test_answers_in_a_batch_that_was_computed_ahead_come_back_when_the_one_before_it_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lane = lane_of()
    begun, fail = asyncio.Event(), asyncio.Event()

    async def write(*arguments: object) -> int:
        begun.set()
        await fail.wait()
        raise KafkaConnectionError("the broker is away")

    monkeypatch.setattr(Transaction, "write", write)
    lane.post(counting("first"))
    pumping = asyncio.ensure_future(lane._pump())
    await begun.wait()
    lane.inbox.add(fetched_of(records(10), 0, 10))  # so much input that the next batch is taken at once
    lane.post(counting("ahead"))
    lane._wake.set()
    await asyncio.sleep(0.05)
    assert not lane._posted, "the second batch is computed"
    fail.set()
    with pytest.raises(KafkaConnectionError):
        await pumping
    out = Outbox()
    for work in lane._posted:
        work(lane.view, out)
    assert {name for name, _ in out.counts} == {"first", "ahead"}
    assert lane.delivery.released == 2


async def test_work_comes_back_when_deciding_fails() -> None:
    lane = lane_of()

    def fit(out: Outbox, stage: object) -> None:
        raise OutputError("too large for any topic")

    lane.delivery.fit = fit  # type: ignore[method-assign]  # as an output that fits nowhere
    lane.post(counting("answer"))
    with pytest.raises(OutputError):
        await lane._compute()
    assert len(lane._posted) == 1


async def waiting_for_its_turn(lane: Lane, written: list[int]) -> asyncio.Task[None]:
    """A lane that has ten records and waits for another's turn to end."""

    async def commit(transaction: Transaction) -> None:
        written.append(transaction.records)

    lane._commit = commit  # type: ignore[method-assign]  # without a broker
    lane.inbox.add(fetched_of(records(10), 0, 10))
    lane.ready = True
    await lane.delivery.turns._lock.acquire()
    lane._task = asyncio.ensure_future(lane._pump())
    await asyncio.sleep(0)
    return lane._task


async def test_a_lane_that_is_closed_while_it_waits_for_its_turn_writes_no_empty_transaction() -> None:
    written: list[int] = []
    lane = lane_of(lambda lane: None)
    await waiting_for_its_turn(lane, written)
    closing = asyncio.ensure_future(lane.close())
    await asyncio.sleep(0)
    lane.delivery.turns._lock.release()
    await closing
    assert written == []


async def test_input_that_cant_be_read_on_is_noticed_before_the_batch_that_waits_for_its_turn() -> None:
    written: list[int] = []
    lane = lane_of()
    pumping = await waiting_for_its_turn(lane, written)
    lane.refuse(KafkaConnectionError("the broker is away"))
    lane.delivery.turns._lock.release()
    with pytest.raises(KafkaConnectionError):
        await pumping
    assert written == []


async def test_answers_are_written_once_by_a_lane_that_is_closed_while_it_waits_for_its_turn() -> None:
    written: list[int] = []
    lane = lane_of(lambda lane: None)
    await waiting_for_its_turn(lane, written)
    lane.post(counting("answer"))
    lane.refuse(KafkaConnectionError("the broker is away"))
    closing = asyncio.ensure_future(lane.close())
    await asyncio.sleep(0)
    lane.delivery.turns._lock.release()
    await closing
    assert written == [0]
