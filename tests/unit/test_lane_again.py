"""A lane that begins again: what makes it, with which producer, and how long it waits before."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError, KafkaError, TopicAuthorizationFailedError
from aiokafka.structs import TopicPartition

from app.delivery.database import RESEEDING
from app.delivery.lane import Lane
from app.delivery.transaction import Transaction
from app.delivery.transport import fetched_of
from app.delivery.turns import Turns
from app.errors import ChangelogLost, StateError
from app.settings import load
from models.events import Received


class Trying(Lane):
    """A lane without a broker: it notes what it does, and ends after so many errors."""

    def __init__(self, errors: int) -> None:
        self.said: list[str] = []
        self._left = errors

        async def reserve(size: int) -> None:
            """There is room."""

        delivery: Any = SimpleNamespace(
            settings=load(), batch_records=10, lane_bytes=1 << 20, gather_s=0.0, group="g", fit=lambda out, stage: None,
            turns=Turns(), reserve_output=reserve, release_output=lambda size: None, room=lambda: None,
            stop_producer=lambda producer: self.said.append(f"stop {producer}"),
        )  # fmt: skip
        stage: Any = SimpleNamespace(
            name="s", delivery=delivery, state=SimpleNamespace(database=lambda partition: self),
            committed=lambda lane, transaction: self.said.append("written"),
            room=lambda lane: True,
        )  # fmt: skip
        super().__init__(delivery, stage, TopicPartition("t", 0))
        self.producer = "the first"
        self.changelog_offset: int | None = None

    def note(self, key: bytes, value: bytes | None) -> None:
        """As the local copy does."""
        self.said.append(f"note {key!r}")

    async def _reopen(self) -> None:
        self.producer = "another"

    async def _locate(self) -> None:
        self.ready = True
        self.inbox.begin(0)
        self.post(lambda view, out: out.count("work", ""))

    async def _broke(self, why: str, wait_s: float) -> None:
        self._left -= 1
        self._closing = not self._left
        await super()._broke(why, 0.0)
        self.said.append(f"wait {wait_s}")


async def test_the_pause_doubles_until_a_batch_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = iter([False, False, True, False])

    async def write(*arguments: object) -> None:
        if not next(outcomes):
            raise KafkaConnectionError("the broker is away")

    monkeypatch.setattr(Transaction, "write", write)
    lane = Trying(errors=3)
    running = asyncio.ensure_future(lane._run())
    async with asyncio.timeout(10):
        while "written" not in lane.said:
            await asyncio.sleep(0)
        lane.post(lambda view, out: out.count("more", ""))
        await running
    assert lane.said == [
        "stop the first", "wait 0.5", "stop another", "wait 1.0", "written", "stop another", "wait 0.5",
    ]  # fmt: skip


def record(offset: int) -> Received:
    return Received("t", 0, offset, 1, b"k", b"v")


def gap(lane: Lane) -> None:
    lane.accept(fetched_of([record(7)], 7, 8))


def refusal(lane: Lane) -> None:
    lane.refuse(TopicAuthorizationFailedError({"t"}))


@pytest.mark.parametrize(("met", "error"), [(gap, StateError), (refusal, KafkaError)])
async def test_input_that_can_not_be_read_on_ends_the_try_and_takes_nothing_more(
    met: Any, error: type[Exception]
) -> None:
    lane = Trying(errors=1)
    lane.ready = True
    assert lane.room() == 10
    met(lane)
    assert lane.room() == 0
    lane.accept(fetched_of([record(0)], 0, 1))
    assert not lane.inbox
    with pytest.raises(error):
        await lane._pump()


async def test_a_lane_that_is_taken_away_before_it_stands_somewhere_writes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def write(*arguments: object) -> None:
        """It would take it."""

    class Revoked(Trying):
        async def _locate(self) -> None:
            await super()._locate()
            self._closing = True

    monkeypatch.setattr(Transaction, "write", write)
    lane = Revoked(errors=1)
    async with asyncio.timeout(10):
        await lane._run()
    assert not lane.said


async def test_a_changelog_that_was_lost_is_noted_for_the_next_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """The new changelog may have grown past the old one's end by then: the note says that it has to be written anew."""

    async def write(*arguments: object) -> None:
        raise ChangelogLost("it was deleted and made again")

    monkeypatch.setattr(Transaction, "write", write)
    lane = Trying(errors=1)
    async with asyncio.timeout(10):
        await lane._run()
    assert lane.said == [f"note {RESEEDING!r}", "stop the first", "wait 0.5"]


async def test_a_lane_without_its_changelog_restores_state_by_itself() -> None:
    lane = Trying(errors=1)
    lane.hold()
    assert (lane.producer, lane._restored, lane.said) == (None, False, ["stop the first"])
