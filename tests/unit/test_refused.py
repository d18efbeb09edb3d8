"""What Kafka refuses a worker: said, tried again, and no matter of other partitions."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import GroupAuthorizationFailedError, TopicAuthorizationFailedError, UnknownTopicOrPartitionError
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.metadata import MetadataRequest
from faust.types import TP

from app.delivery import transport
from app.delivery.presence import tell_of_missing
from app.delivery.runtime import Delivery
from app.delivery.supervisor import Supervisor
from app.delivery.transport import ConsumerThread
from app.settings import load
from models.events import Received


def thread_of(delivery: Any) -> Any:
    """A consumer's thread that never ran."""
    thread = ConsumerThread.__new__(ConsumerThread)
    thread.delivery = delivery
    return thread


class Coordinator:
    """The group's, as aiokafka has it: an error waits until somebody takes it."""

    def __init__(self) -> None:
        self._coordination_task: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pending_exception: Exception | None = GroupAuthorizationFailedError("headrace")
        self.said: list[str] = []
        self.given = asyncio.Event()

    def request_rejoin(self) -> None:
        self.said.append("rejoin")

    def check_errors(self) -> None:
        error, self._pending_exception = self._pending_exception, None
        self.said.append("taken")
        if self.said.count("taken") == 2:
            self.given.set()
        else:
            asyncio.get_running_loop().call_soon(setattr, self, "_pending_exception", error)
        assert error is not None
        raise error


def watched(coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch) -> asyncio.Task[None]:
    monkeypatch.setattr(transport, "GROUP_LOOK_S", 0.001)
    monkeypatch.setattr(transport, "GROUP_RETRY_S", 0.002)
    thread = thread_of(SimpleNamespace(settings=load()))
    thread._ensure_consumer = lambda: SimpleNamespace(_coordinator=coordinator)
    return asyncio.ensure_future(thread._watch_group())


async def test_a_group_that_refuses_is_named_and_joined_anew_until_it_takes_the_worker(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    coordinator = Coordinator()
    watching = watched(coordinator, monkeypatch)
    async with asyncio.timeout(10):
        await coordinator.given.wait()
    assert not watching.done()
    watching.cancel()
    assert coordinator.said == ["rejoin", "taken", "rejoin", "taken"]
    assert caplog.text.count("Kafka refuses user ANONYMOUS what it needs on consumer group headrace") == 2


async def test_a_group_whose_coordination_died_ends_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = Coordinator()
    coordinator._coordination_task.set_exception(ValueError("a bug"))
    with pytest.raises(ValueError, match="a bug"):
        await watched(coordinator, monkeypatch)


async def test_a_partition_that_can_not_be_read_is_told_and_others_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    bad, good = TP("t", 0), TP("t", 1)
    told: list[Any] = []
    thread = thread_of(
        SimpleNamespace(room_for=lambda tp: 10, refused=lambda tp, error: told.append((tp, type(error))))
    )
    states = {tp: SimpleNamespace(_position=5) for tp in (bad, good)}
    subscription = SimpleNamespace(assignment=SimpleNamespace(_tp_state=states))
    consumer: Any = SimpleNamespace(_subscription=SimpleNamespace(subscription=subscription), _fetcher=None)

    def drain(fetcher: object, tp: TP, limit: int) -> list[Received]:
        if tp == bad:
            raise TopicAuthorizationFailedError({"t"})
        states[tp]._position = 6
        return [Received("t", 1, 5, 1, b"k", b"v")]

    monkeypatch.setattr(transport, "drain", drain)
    taken = await thread._take(consumer, {bad, good})
    assert told == [(bad, TopicAuthorizationFailedError)]
    assert {tp: (batch.start, batch.next) for tp, batch in taken.items()} == {good: (5, 6)}


async def test_a_partition_that_a_fetch_finds_gone_is_told() -> None:
    """Before the next fetch can go on in a new topic of that name."""
    codes = [("t", [(0, 0, b"records"), (1, UnknownTopicOrPartitionError.errno, b"")])]

    groups: list[object] = []

    async def send(node_id: int, request: object, *, group: object = None) -> Any:
        groups.append(group)
        return SimpleNamespace(topics=codes)

    told: list[Any] = []
    client = SimpleNamespace(send=send)
    tell_of_missing(client, lambda tp, error: told.append((tp, type(error), error.args)))
    response = await client.send(1, FetchRequest(100, 1, 1, 1, [], rack_id=""), group="its own connection")
    assert response.topics == codes
    await client.send(1, MetadataRequest([]))
    assert told == [(TP("t", 1), UnknownTopicOrPartitionError, ("t",))]
    assert groups == ["its own connection", None]


async def test_the_consumer_of_a_worker_tells_of_such_a_partition() -> None:
    told: list[Any] = []
    thread = thread_of(SimpleNamespace(settings=load(), refused=lambda tp, error: told.append((tp, type(error)))))
    conf = SimpleNamespace(broker_client_id="c", id="g", broker_rebalance_timeout=60.0, broker_heartbeat_interval=3.0)
    thread.app = SimpleNamespace(assignor=None, conf=conf)
    consumer = thread._create_worker_consumer(None)
    gone = SimpleNamespace(topics=[("t", [(2, UnknownTopicOrPartitionError.errno, b"")])])
    answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    answered.set_result(gone)
    connections = consumer._client._conns
    connections[1, 0] = SimpleNamespace(connected=lambda: True, send=lambda request, **_: answered)
    await consumer._client.send(1, FetchRequest(100, 1, 1, 1, [], rack_id=""))
    connections.clear()
    await consumer.stop()
    assert told == [(TP("t", 2), UnknownTopicOrPartitionError)]


def test_a_missing_input_is_said_once_and_each_minute_with_its_stage(caplog: pytest.LogCaptureFixture) -> None:
    delivery = Delivery(load())
    stages: Any = {t: SimpleNamespace(name=f"s-{t}", topic=t) for t in ("there", "gone")}
    delivery.stages = stages
    assert delivery.missing_inputs() == {}
    gone = {"gone"}
    delivery.join(SimpleNamespace(lacks=lambda topic: topic in gone))
    caplog.set_level("INFO")
    supervisor = Supervisor(delivery)
    supervisor._report_missing(again=False)
    supervisor._report_missing(again=False)
    assert caplog.text.count("s-gone: its input gone isn't there") == 1
    supervisor._report_missing(again=True)
    assert caplog.text.count("s-gone: its input gone isn't there") == 2
    gone.clear()
    supervisor._report_missing(again=False)
    assert "s-gone: its input is there again" in caplog.text
