"""The batch transport: what one fetch brought for one partition reaches its stage as ONE Faust message.

A subclass of Faust's aiokafka driver, registered as `kafkabatch://`. It differs from its parent in four ways:

- a fetch takes from the partitions that have room (credit), each with its own limit, so that a full stage pauses only
  itself and nothing that was fetched is ever dropped;
- positions are taken in the consumer's thread together with the fetch: read later, a seek in between lost events;
- offsets are committed inside the lanes' transactions, so Faust's own acks and commits do nothing;
- lanes are fenced before restore reads the changelog's end, and changelogs are not read here.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import aiokafka
from aiokafka.errors import ConsumerStoppedError, KafkaConnectionError, KafkaError
from faust.transport.drivers import TRANSPORTS
from faust.transport.drivers import aiokafka as driver
from faust.types import TP, ConsumerMessage

from app.delivery.drain import drain
from app.delivery.member import note_member
from app.delivery.presence import tell_of_missing
from app.kafka import client_kwargs, explained
from models.events import Received

if TYPE_CHECKING:
    from app.delivery.runtime import Delivery

__all__ = ["Consumer", "ConsumerThread", "Fetched", "Producer", "Transport", "fetched_of", "register"]

log = logging.getLogger("headrace.delivery")

FETCH_MAX_WAIT_MS = 100
"""A fetch covers all partitions of a broker; a partition that gets room again waits for the one under way. Faust's
1500 ms would be its latency."""
LOOK_S = 0.5
"""How often a call into the consumer's thread looks whether that ends."""
GROUP_LOOK_S = 0.5
GROUP_RETRY_S, GROUP_RETRY_MAX_S = 1.0, 30.0
"""First and longest pause of a worker that the group refuses."""


class Fetched(NamedTuple):
    """Records of one partition, in order, and which offsets they cover: from `start` up to but not with `next`.

    Transaction markers and compacted records leave holes between; none is an event.
    """

    records: list[Received]
    start: int
    next: int
    size_bytes: int
    """Values, and room for the rest; a part of a batch has its share."""


def fetched_of(records: list[Received], start: int, following: int) -> Fetched:
    """Makes a Fetched with its size."""
    size = sum([len(r.value) for r in records if r.value]) + 100 * len(records)
    return Fetched(records, start, following, size)


class ConsumerThread(driver.AIOKafkaConsumerThread):
    """Runs the aiokafka consumer; everything here is called in its own thread and loop."""

    delivery: "Delivery"

    def __post_init__(self) -> None:
        super().__post_init__()
        app: Any = self.app
        self.delivery = app.delivery
        self._room = asyncio.Event()

    def _create_worker_consumer(self, transport: Any) -> aiokafka.AIOKafkaConsumer:
        kafka = self.delivery.settings.kafka
        self._assignor = self.app.assignor
        consumer = aiokafka.AIOKafkaConsumer(
            client_id=self.app.conf.broker_client_id,
            group_id=self.app.conf.id,
            partition_assignment_strategy=[self._assignor],
            enable_auto_commit=False,
            auto_offset_reset="none",  # a position that isn't in the log is for its lane to judge: the topic may be another
            max_poll_interval_ms=int(kafka.max_poll_interval_s * 1000),
            session_timeout_ms=int(kafka.session_timeout_s * 1000),
            rebalance_timeout_ms=int(self.app.conf.broker_rebalance_timeout * 1000),
            heartbeat_interval_ms=int(self.app.conf.broker_heartbeat_interval * 1000),
            max_partition_fetch_bytes=kafka.partition_fetch_bytes,
            fetch_max_bytes=kafka.fetch_max_bytes,
            fetch_max_wait_ms=FETCH_MAX_WAIT_MS,
            isolation_level="read_committed",
            metadata_max_age_ms=60_000,
            **client_kwargs(kafka),
        )
        tell_of_missing(consumer._client, self.delivery.refused)
        # Counts as a poll for ever: during a long restore, and as a standby, nothing is fetched, and aiokafka would leave
        # the group after max_poll_interval. A worker that hangs or doesn't move is found by our own watch.
        self._polling = consumer._subscription.fetch_context()
        self._polling.__enter__()
        return consumer

    async def call_thread(self, fun: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any) -> Any:
        """Runs something in this thread and waits for it.

        Raises:
            KafkaConnectionError: the thread stops. Its queue isn't looked at any more then, and a rebalance that went on
                waiting for it would keep the worker from ending (the thread's end waits for the rebalance).
        """
        call = asyncio.ensure_future(super().call_thread(fun, *args, **kwargs))
        try:
            while not (await asyncio.wait([call], timeout=LOOK_S))[0]:
                if self.should_stop:
                    raise KafkaConnectionError("the consumer is stopping")
            return call.result()
        finally:
            call.cancel()

    async def on_start(self) -> None:
        await super().on_start()
        self.add_future(self._watch_group())

    async def _watch_group(self) -> None:
        """Says what keeps this worker from being a member, and has it tried again after growing pauses.

        aiokafka leaves both to whoever polls its consumer: until somebody takes the error, it waits, and says nothing.
        Joining anew is what starts its heartbeat again, which ended with the error.
        """
        coordinator, wait_s = self._ensure_consumer()._coordinator, GROUP_RETRY_S
        last = -math.inf
        while True:
            await asyncio.sleep(GROUP_LOOK_S)
            if coordinator._coordination_task.done():
                coordinator._coordination_task.result()  # it died: so does the worker
                return
            error = coordinator._pending_exception
            if error is None:
                continue
            now = time.monotonic()
            wait_s = GROUP_RETRY_S if now - last > 2 * GROUP_RETRY_MAX_S else min(2 * wait_s, GROUP_RETRY_MAX_S)
            last = now
            log.error("%s; trying again in %.0f s", explained(self.delivery.settings.kafka, error), wait_s)
            await asyncio.sleep(wait_s)
            coordinator.request_rejoin()
            with contextlib.suppress(KafkaError):
                coordinator.check_errors()

    async def settle_in(self) -> None:
        """After an assignment: notes the member, and holds changelogs, since restore has a consumer of its own."""
        await self.call_thread(self._settle_in)

    async def _settle_in(self) -> None:
        consumer = self._ensure_consumer()
        note_member(Path(self.app.conf.datadir), consumer._group_id, consumer._coordinator.member_id)
        mine = [tp for tp in consumer.assignment() if tp.topic in self.app.tables.changelog_topics]
        consumer.pause(*mine)

    def room(self) -> None:
        """A lane has room again: ends the wait of a fetch. May be called from any thread."""
        self.thread_loop.call_soon_threadsafe(self._room.set)

    async def _fetch_records(  # type: ignore[override]  # a batch with its offsets, where Faust has a plain list
        self,
        consumer: aiokafka.AIOKafkaConsumer,
        active_partitions: set[TP],
        timeout: float | None = None,
        max_records: int | None = None,
    ) -> dict[TP, Fetched]:
        if not self.consumer.flow_active:
            return {}
        fetcher = consumer._fetcher
        if consumer._closed or fetcher._closed:
            raise ConsumerStoppedError
        deadline = self.thread_loop.time() + (timeout or 0)
        with fetcher._subscriptions.fetch_context():
            while True:
                self._room.clear()
                taken = await self._take(consumer, active_partitions)
                left = deadline - self.thread_loop.time()
                if taken or left <= 0 or not self.consumer.flow_active:
                    return taken
                waiter = fetcher._create_fetch_waiter()
                room = asyncio.ensure_future(self._room.wait())
                try:
                    await asyncio.wait([waiter, room], timeout=left, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    room.cancel()
                    if waiter.done():
                        waiter.exception()  # what the group's coordinator met: `_watch_group` deals with it
                    else:
                        waiter.cancel()

    async def _take(self, consumer: aiokafka.AIOKafkaConsumer, active: set[TP]) -> dict[TP, Fetched]:
        """What is there for each partition that may be read now."""
        taken: dict[TP, Fetched] = {}
        subscription = consumer._subscription.subscription
        assignment = subscription.assignment if subscription else None
        if assignment is None:
            return taken
        for tp in list(active):
            limit = self.delivery.room_for(tp)
            state = assignment._tp_state.get(tp)
            if limit <= 0 or state is None or state._position is None:
                continue
            start = state._position
            try:
                records = drain(consumer._fetcher, tp, limit)
            except KafkaError as error:
                self.delivery.refused(tp, error)
                continue
            after = state._position
            if after != start:  # also over markers and aborted records alone: the lane would take the next for a gap
                taken[tp] = fetched_of(records, start, after)
        return taken


class Consumer(driver.Consumer):
    """Yields batches, and leaves acks and commits to the lanes."""

    _thread: ConsumerThread

    @property
    def delivery(self) -> "Delivery":
        app: Any = self.app
        return app.delivery  # type: ignore[no-any-return]

    def _new_consumer_thread(self) -> ConsumerThread:
        return ConsumerThread(self, loop=self.loop, beacon=self.beacon)

    async def getmany(self, timeout: float) -> AsyncIterator[tuple[TP, Any]]:
        batches, _ = await self._wait_next_records(timeout)
        generation = self.app.consumer_generation_id
        if self.should_stop or not batches:
            return
        for tp, fetched in batches.items():
            batch: Any = fetched  # what our own thread made: see ConsumerThread._fetch_records
            if not self.flow_active or self.app.consumer_generation_id != generation:
                return  # a rebalance: everything is fetched again after the seek
            self._read_offset[tp] = None  # lanes check what they get; Faust's own filter would drop a second read
            yield (
                tp,
                ConsumerMessage(
                    tp.topic, tp.partition, batch.next - 1, 0, 0, None, None, batch, None, 0, 0, tp,
                    generation_id=generation,
                ),
            )  # fmt: skip

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        with self._ending_worker("the revocation of partitions"):
            if self.delivery.restore is not None:
                await self.delivery.restore.halt()
            await self.delivery.close_lanes()
            await super().on_partitions_revoked(revoked)

    async def on_partitions_assigned(self, assigned: set[TP], generation_id: int = 0) -> None:
        with self._ending_worker("the assignment of partitions"):
            await self._thread.settle_in()
            self.delivery.join(self)
            await self.delivery.fence(assigned)
            await super().on_partitions_assigned(assigned, generation_id)

    @contextlib.contextmanager
    def _ending_worker(self, what: str) -> Iterator[None]:
        """What this raises aiokafka only logs, and goes on as a member whose partitions nobody works on."""
        try:
            yield
        except Exception as error:
            if not (self.should_stop or self._thread.should_stop):
                self.delivery.end(what, error)
            raise

    async def perform_seek(self) -> None:
        """Called by Faust when restore is done: lanes know their positions from State now."""
        await self.delivery.begin(self)

    async def committed(self, tp: TP) -> int | None:
        """The group's committed offset of a partition."""
        return await self._thread.call_thread(self._thread._ensure_consumer().committed, tp)  # type: ignore[no-any-return]

    def lacks(self, topic: str) -> bool:
        """Whether the brokers don't have a topic that this group reads, as far as is known: asked once a minute or more."""
        cluster = self._thread._ensure_consumer()._client.cluster
        return bool(cluster.topics()) and topic not in cluster.topics() | cluster.unauthorized_topics

    def look_again(self) -> None:
        """Has the group's topics asked for anew; those that came are shared out by a rebalance."""
        client = self._thread._ensure_consumer()._client
        self._thread.thread_loop.call_soon_threadsafe(client.force_metadata_update)

    def last_stable_offset(self, tp: TP) -> int | None:
        """The end of a partition for readers with read_committed, as the last fetch told it."""
        return self._thread._ensure_consumer().last_stable_offset(tp)  # type: ignore[no-any-return]

    def caught_up(self, tp: TP, within_ms: int) -> bool:
        """Whether all committed records of a partition are read, as a fetch answered within the last `within_ms` says."""
        subscription = self._thread._ensure_consumer()._subscription.subscription
        assignment = subscription.assignment if subscription else None
        state = assignment._tp_state.get(tp) if assignment else None
        if state is None or state._position is None or state.lso is None or state.timestamp is None:
            return False
        return bool(state._position >= state.lso and time.time() * 1000 - state.timestamp < within_ms)

    async def wait_empty(self) -> None:
        """Called on revoke and stop: lanes finish or abort what is under way within their grace time."""
        await self.delivery.close_lanes()

    def ack(self, message: Any) -> bool:
        message.acked = True
        self._unacked_messages.discard(message)
        return True

    async def commit(self, topics: Any = None, start_new_transaction: bool = True) -> bool:
        return False  # offsets are committed inside the lanes' transactions

    async def _add_gap(self, tp: TP, offset_from: int, offset_to: int) -> None:
        """Gaps are only of use to Faust's own commits."""

    def verify_event_path(self, now: float, tp: TP) -> None:
        """Faust's livelock check looks at acks; ours watches the lanes (see `Delivery`)."""


class Producer(driver.Producer):
    """Faust's own producer: it starts, and nothing is sent through it. Lanes have their own."""

    @property
    def delivery(self) -> "Delivery":
        app: Any = self.app
        return app.delivery  # type: ignore[no-any-return]

    def _settings_auth(self) -> dict[str, Any]:
        return {k: v for k, v in client_kwargs(self.delivery.settings.kafka).items() if k != "bootstrap_servers"}

    def _settings_default(self) -> dict[str, Any]:
        drop = ("security_protocol", "request_timeout_ms")
        return {k: v for k, v in super()._settings_default().items() if k not in drop}


class Transport(driver.Transport):
    Consumer = Consumer
    Producer = Producer


def register() -> None:
    """Makes the transport and store known to Faust by their URL schemes."""
    from faust.stores import STORES

    TRANSPORTS.aliases["kafkabatch"] = "app.delivery.transport:Transport"
    STORES.aliases["headrace"] = "app.delivery.store:Store"
