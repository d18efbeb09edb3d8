"""What a lane still writes when its partition is taken away."""

import asyncio
from types import SimpleNamespace
from typing import Any

from aiokafka.structs import TopicPartition

from app.delivery.lane import Lane
from app.delivery.transaction import Transaction


async def nothing(size: int) -> None:
    """There is room."""


async def test_answers_that_arrived_are_written_behind_the_transaction_under_way_and_input_isnt_begun() -> None:
    told: list[str] = []
    delivery: Any = SimpleNamespace(
        batch_records=10, gather_s=0.0, fit=lambda out, stage: None, reserve_output=nothing, room=lambda: None
    )
    stage: Any = SimpleNamespace(
        name="s", delivery=delivery, state=None, lane_closed=lambda lane: told.append(f"closed after {committed}")
    )
    lane = Lane(delivery, stage, TopicPartition("t", 0))
    under_way, go_on, committed = asyncio.Event(), asyncio.Event(), list[str]()

    async def commit(transaction: Transaction) -> None:
        under_way.set()
        await go_on.wait()
        committed.extend(name for (name, _), _ in transaction.out.counts.items())

    lane._commit = commit  # type: ignore[method-assign]  # without a broker
    lane.ready = True
    lane._task = asyncio.ensure_future(lane._pump())
    lane.post(lambda view, out: out.count("first", ""))
    await under_way.wait()
    lane.post(lambda view, out: out.count("answer", ""))
    input_: Any = SimpleNamespace(records=[1], size_bytes=1)
    lane.inbox.append(input_)
    closing = asyncio.ensure_future(lane.close())
    await asyncio.sleep(0)
    lane.post(lambda view, out: out.count("too-late", ""))
    go_on.set()
    await closing
    assert committed == ["first", "answer"]
    assert told == ["closed after ['first', 'answer']"]
