"""A transaction: what its producer meets beside it ends the lane's try, never the worker."""

import asyncio
import gc
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import (
    ConcurrentTransactions,
    IllegalOperation,
    KafkaError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from aiokafka.producer.message_accumulator import MessageAccumulator
from aiokafka.producer.sender import AddPartitionsToTxnHandler
from aiokafka.producer.transaction_manager import TransactionManager
from aiokafka.structs import TopicPartition

from agents import redrive
from app.delivery import presence, transaction
from app.delivery.outbox import Outbox
from app.delivery.reseed import write_rows
from app.delivery.transaction import BEGIN_BACKOFF_S, Transaction, _keep_back, acknowledged, in_transaction
from app.errors import ChangelogLost
from tests.helpers.cluster import Client


class LeftBehind:
    """A producer whose sender was fenced between the begin and the first batch."""

    def __init__(self) -> None:
        nothing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._txn_manager = SimpleNamespace(wait_for_transaction_end=lambda: nothing)
        self.client = Client(clean=1, changelog=1, raw=1)

    async def begin_transaction(self) -> None:
        pass

    def create_batch(self) -> Any:
        builder = SimpleNamespace(append=lambda *record: True)
        return SimpleNamespace(_builder=builder, close=lambda: None)

    async def send_batch(self, *batch: object, partition: int) -> None:
        raise IllegalOperation("Can't send messages while not in transaction")


async def test_a_producer_that_left_its_transaction_is_an_error_of_kafka() -> None:
    out = Outbox(0)
    out.send("clean", b"k", b"v", partition=0)
    stage: Any = SimpleNamespace(changelog="changelog")
    with pytest.raises(KafkaError, match="isn't in its transaction any more"):
        await Transaction(out, 1, 1, [], 0).write(LeftBehind(), stage, TopicPartition("raw", 0), 1, "group")


class Refused(LeftBehind):
    """A producer whose topic is refused: aiokafka tells the transaction, and never the batch that it didn't send."""

    def __init__(self) -> None:
        super().__init__()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._txn_manager = SimpleNamespace(wait_for_transaction_end=lambda: self.ended)

    async def send_batch(self, *batch: object, partition: int) -> Any:
        loop = asyncio.get_running_loop()
        loop.call_soon(self.ended.set_exception, TopicAuthorizationFailedError({"clean"}))
        return loop.create_future()


class RefusedBetween(Refused):
    """The same, met before the second batch is handed over."""

    async def send_batch(self, *batch: object, partition: int) -> Any:
        self.ended.set_exception(TopicAuthorizationFailedError({"clean"}))
        raise IllegalOperation("Can't send messages while not in transaction")


@pytest.mark.parametrize("kind", [Refused, RefusedBetween])
async def test_a_refused_topic_ends_the_transaction_with_its_name(kind: type[Refused]) -> None:
    out = Outbox(0)
    out.send("clean", b"k", b"v", partition=0)
    stage: Any = SimpleNamespace(changelog="changelog")
    with pytest.raises(TopicAuthorizationFailedError, match="clean"):
        async with asyncio.timeout(10):
            await Transaction(out, 1, 1, [], 0).write(kind(), stage, TopicPartition("raw", 0), None, "group")


async def test_a_refused_topic_ends_a_redrive_with_its_name() -> None:
    producer: Any = Refused()
    aborted: list[bool] = []

    async def abort() -> None:
        aborted.append(True)

    producer.abort_transaction = abort
    with pytest.raises(TopicAuthorizationFailedError, match="clean"):
        async with asyncio.timeout(10):
            await redrive._write(producer, {("clean", 0): [(b"k", b"v", [])]})
    assert aborted


async def test_a_refused_changelog_ends_a_reseed_with_its_name() -> None:
    with pytest.raises(TopicAuthorizationFailedError, match="clean"):
        async with asyncio.timeout(10):
            await write_rows(Refused(), "clean", 0, iter([(b"k", b"v")]))


async def test_a_reseed_whose_producer_left_its_transaction_is_an_error_of_kafka() -> None:
    with pytest.raises(KafkaError, match="isn't in its transaction any more"):
        await write_rows(LeftBehind(), "changelog", 0, iter([(b"k", b"v")]))


async def test_a_redrive_that_can_not_be_aborted_any_more_ends_with_what_it_met() -> None:
    producer: Any = RefusedBetween()

    async def abort() -> None:
        raise AssertionError("Invalid state transition FATAL_ERROR -> ABORTING_TRANSACTION")

    producer.abort_transaction = abort
    with pytest.raises(TopicAuthorizationFailedError, match="clean"):
        await redrive._write(producer, {("clean", 0): [(b"k", b"v", [])]})


async def test_rows_are_written_in_transactions_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.delivery.reseed.TRANSACTION_BYTES", 4)
    said: list[str] = []

    class Writing(LeftBehind):
        """Takes everything; an offset for each record and each marker."""

        end = 0

        async def begin_transaction(self) -> None:
            said.append("begin")

        async def send_batch(self, batch: Any, *topic: object, partition: int) -> Any:
            said.append(f"{batch._relative_offset} records")
            sent = asyncio.get_running_loop().create_future()
            sent.set_result(SimpleNamespace(offset=self.end))
            self.end += batch._relative_offset
            return sent

        async def commit_transaction(self) -> None:
            said.append("commit")
            self.end += 1

    rows = iter([(b"k1", b"v"), (b"k2", None), (b"k3", b"long")])
    assert await write_rows(Writing(), "changelog", 0, rows) == 4, "three records and the marker between, then the last"
    assert said == ["begin", "2 records", "commit", "begin", "1 records", "commit"]


async def test_a_batch_that_fails_when_its_transaction_was_given_up_is_no_news() -> None:
    loop = asyncio.get_running_loop()
    heard: list[object] = []
    loop.set_exception_handler(lambda _, context: heard.append(context))
    batch = loop.create_future()
    waiting = asyncio.ensure_future(acknowledged(LeftBehind(), [batch]))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    batch.set_exception(KafkaError("the producer was stopped"))
    del batch, waiting
    await asyncio.sleep(0)
    gc.collect()
    assert not heard


CHANGELOG = TopicPartition("changelog", 0)


async def with_a_batch() -> tuple[TransactionManager, MessageAccumulator, asyncio.Future[Any]]:
    """A transaction of aiokafka's, guarded as a producer's is, with one batch for the changelog that isn't sent yet."""
    manager = TransactionManager("headrace-x-0", 10_000)
    accumulator = MessageAccumulator(None, 1 << 20, 0, 30, txn_manager=manager)
    _keep_back(manager, accumulator)
    manager.set_pid_and_epoch(1, 0)
    manager.begin_transaction()
    builder = accumulator.create_builder()
    builder.append(timestamp=None, key=b"k", value=b"v")
    return manager, accumulator, await accumulator.add_batch(builder, CHANGELOG, 10)


async def test_what_a_failed_transaction_has_not_sent_is_never_sent() -> None:
    """Sent without being added, it would be committed by the marker of the transaction before."""
    manager, accumulator, sent = await with_a_batch()
    assert manager.partitions_to_add() == {CHANGELOG}  # until it is added the sender leaves it
    manager.error_transaction(TopicAuthorizationFailedError({"clean"}))
    assert not accumulator._batches
    with pytest.raises(TopicAuthorizationFailedError):
        await sent
    assert manager.wait_for_transaction_end().exception() is not None


async def test_a_batch_on_its_way_when_its_transaction_failed_is_not_sent_again() -> None:
    manager, accumulator, sent = await with_a_batch()
    batch = accumulator._pop_batch(CHANGELOG)  # as the sender does
    manager.error_transaction(UnknownTopicOrPartitionError("clean"))
    accumulator.reenqueue(batch)
    assert not accumulator._batches
    with pytest.raises(KafkaError, match="its transaction has failed"):
        await sent


class Waiting(LeftBehind):
    """A producer whose batches nobody answers, as when a topic isn't there any more."""

    def __init__(self, **there: int) -> None:
        super().__init__()
        self.client = Client(**there)
        self.manager = TransactionManager("headrace-x-0", 10_000)
        self.manager.set_pid_and_epoch(1, 0)
        self._txn_manager: Any = self.manager
        self.committed = False

    async def begin_transaction(self) -> None:
        self.manager.begin_transaction()

    async def commit_transaction(self) -> None:
        self.committed = True


async def test_a_topic_that_vanishes_ends_a_transaction_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "LOOK_S", 0.001)
    monkeypatch.setattr(presence, "AGAIN_S", 0.0)
    producer = Waiting(changelog=1)
    with pytest.raises(UnknownTopicOrPartitionError) as met:
        async with asyncio.timeout(10), in_transaction(producer, ["clean", "changelog"]):
            await acknowledged(producer, [asyncio.get_running_loop().create_future()])
    assert met.value.args == ("clean",)
    assert not producer.committed


async def test_a_slow_transaction_whose_topics_are_there_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "LOOK_S", 0.001)
    producer = Waiting(clean=1)
    async with asyncio.timeout(10), in_transaction(producer, ["clean"]):
        while producer.client.asked < 3:
            await asyncio.sleep(0.001)
    assert producer.committed
    asked = producer.client.asked
    await asyncio.sleep(0.01)
    assert producer.client.asked == asked, "it looks on after its end"


def sent_to(*offsets: int) -> list[Any]:
    """Batches of a changelog, acknowledged."""
    futures = [asyncio.get_running_loop().create_future() for _ in offsets]
    for future, offset in zip(futures, offsets, strict=True):
        future.set_result(SimpleNamespace(offset=offset))
    return futures


async def test_the_first_of_several_batches_tells_that_a_changelog_was_made_anew() -> None:
    """The last may stand behind what was reached already."""
    transaction._check_place("changelog", 0, sent_to(8, 20), 7)
    with pytest.raises(ChangelogLost, match="gave offset 0 for what comes after 7"):
        transaction._check_place("changelog", 0, sent_to(0, 20), 7)
    with pytest.raises(ChangelogLost, match="gave offset 0 for what comes after 0"):
        transaction._check_place("changelog", 0, sent_to(0), 0)


async def test_a_batch_that_changes_no_state_stands_nowhere_in_the_changelog() -> None:
    transaction._check_place("changelog", 0, [], 7)


@pytest.mark.parametrize(("reached", "right"), [(None, True), (6, True), (7, False), (900, False)])
async def test_a_changelog_made_anew_is_noticed_before_the_commit(reached: int | None, right: bool) -> None:
    class Writing(Waiting):
        async def send_batch(self, *batch: object, partition: int) -> Any:
            return sent_to(7)[0]

    out, producer = Outbox(0), Writing(changelog=1)
    out.changelog[b"k"] = out.local[b"k"] = b"v"
    stage: Any = SimpleNamespace(changelog="changelog")
    writing = Transaction(out, 1, 1, [], 0).write(producer, stage, TopicPartition("raw", 0), None, "group", reached)
    if right:
        assert await writing == 8
    else:
        with pytest.raises(ChangelogLost, match="gave offset 7 for what comes after"):
            await writing
    assert producer.committed is right


async def test_a_transaction_right_behind_another_asks_again_soon() -> None:
    """aiokafka's own pause there is a constant of its module."""
    manager = TransactionManager("id", 1000)
    asked = AddPartitionsToTxnHandler(
        SimpleNamespace(_txn_manager=manager, _retry_backoff=1.0), [TopicPartition("clean", 0)]
    )
    answer = SimpleNamespace(errors=[("clean", [(0, ConcurrentTransactions.errno)])])
    assert asked.handle_response(answer) == BEGIN_BACKOFF_S
