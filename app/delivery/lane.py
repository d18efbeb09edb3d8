"""A lane: one input partition of one stage, with its own transactional producer, queue, overlay and position.

One transaction at a time, in order; the next batch is computed meanwhile. Any error in a transaction breaks the lane:
what is in flight is given up, a new producer with the same transactional id fences and settles the old one, State is
brought up to its changelog, and input is read again behind the marker in State. So a broken lane, an answer that was
lost, and a crash all end in the same place.
"""

import asyncio
import contextlib
import logging
import time
import uuid
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from aiokafka.errors import KafkaError, ProducerFenced
from aiokafka.structs import TopicPartition

from app import crash, metrics
from app.delivery.database import RESEEDING
from app.delivery.inbox import Inbox
from app.delivery.outbox import Outbox
from app.delivery.positions import locate
from app.delivery.probe import crc_of, log_of
from app.delivery.restore import catch_up
from app.delivery.state import APPLIED, Applied, View
from app.delivery.transaction import Transaction, new_producer
from app.delivery.transport import Fetched
from app.errors import ChangelogLost
from app.kafka import KAFKA_FAILURES, explained
from models.events import Received

if TYPE_CHECKING:
    from app.delivery.runtime import Delivery
    from app.delivery.stage import Stage

__all__ = ["Lane", "Work"]

log = logging.getLogger("headrace.delivery")

Work = Callable[[View, Outbox], None]
"""Work without input (a timer, the answer of a slow call). It may run again after a transaction whose outcome was
unknown, so it looks into State first whether it is still to be done."""

MAX_BACKOFF_S = 5.0
"""After an outage a partition may stand still for so long though Kafka is back: far less than the stall watch allows."""
CLOSE_GRACE_S = 2.0
"""A transaction under way at a revoke or stop may take this long to finish; then it is aborted."""


class Lane:
    """Owned by `Delivery`; made at an assignment, closed at the next revoke."""

    def __init__(self, delivery: "Delivery", stage: "Stage", tp: TopicPartition) -> None:
        self.delivery, self.stage, self.tp = delivery, stage, tp
        self.view = View(stage.state, tp.partition)
        self.producer: Any = None
        self.ready = False
        self.stopped = ""
        """Why this partition takes nothing more until somebody acts; empty while all is well."""
        self.position = -1
        """The last offset that a computed batch holds."""
        self.inbox = Inbox()
        self.moved_at = time.monotonic()
        self._posted: deque[Work] = deque()
        self._wake = asyncio.Event()
        self._closing = False
        self._restored = True
        """The local copy was judged and brought up to its changelog at the assignment."""
        self._incarnation = ""
        self._applied: Applied | None = None
        self._batch = 0
        self._backoff_s = 0.0
        """The pause after the last error; 0 once a batch is committed and in State."""
        self.last_begin = 0.0
        self._task: asyncio.Task[None] | None = None
        self._labels = (stage.name, str(tp.partition))

    # -- input ---------------------------------------------------------------------------------------------------

    def room(self) -> int:
        """How many records may be fetched now. Read by the consumer's thread."""
        if not self._takes_input:
            return 0
        delivery = self.delivery
        if self.inbox.size_bytes >= delivery.lane_bytes or len(self.inbox) >= 2 * delivery.batch_records:
            return 0
        return delivery.batch_records if self.stage.room(self) else 0

    def accept(self, fetched: Fetched) -> None:
        """Takes what a fetch brought. Anything but the next records in line is read again instead."""
        if not self._takes_input:
            return
        empty = not self.inbox
        self.inbox.add(fetched)
        if empty and self.inbox:
            self.moved_at = time.monotonic()
        self._wake.set()

    def refuse(self, error: KafkaError) -> None:
        """The input can't be read: the lane says why, and begins again after a pause. Others go on."""
        if self.ready and not self._closing:
            self.inbox.unreadable = error
            self._wake.set()

    def post(self, work: Work) -> None:
        """Adds work without input to the next transaction."""
        if not self._closing:
            if self.idle_reason:  # nothing had to move until now
                self.moved_at = time.monotonic()
            self._posted.append(work)
            self._wake.set()

    @property
    def _takes_input(self) -> bool:
        return self.ready and not (self._closing or self.stopped or self.inbox.unreadable)

    # -- life ----------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Starts the producer: whoever held the partition before can't write any more from here on."""
        self.producer = await new_producer(self.delivery.settings, self.stage.transactional_id(self.tp.partition))
        crash.at("fenced")

    async def try_open(self) -> None:
        """The same at an assignment. What fails then is tried again when the lane runs, before it reads anything."""
        with contextlib.suppress(KafkaError, TimeoutError, OSError):
            await self.open()

    def hold(self) -> None:
        """Its changelog isn't there at the assignment: the lane says so, and restores State by itself once it is."""
        self._restored = False
        self._drop_producer()

    def start(self) -> None:
        """Begins to work; State is restored."""
        if self._task is None:
            self._task = self.delivery.watch(self._run(), f"lane {self.stage.name}-{self.tp.partition}")

    async def close(self) -> None:
        """Finishes or aborts the transaction under way within 2 s; writes what was posted; input not begun is dropped."""
        self._closing = True
        self._drop_input()
        self._wake.set()
        if self._task is not None:
            done, _ = await asyncio.wait([self._task], timeout=CLOSE_GRACE_S)
            if not done:
                self._task.cancel()
                await asyncio.wait([self._task], timeout=1.0)
        self.stage.lane_closed(self)
        self._drop_producer()

    async def _run(self) -> None:
        settings = self.delivery.settings
        while not self._closing:
            try:
                if self.producer is None:
                    await self._reopen()
                await self._locate()
                if self.stopped or self._closing:
                    return  # nothing is written either: the local copy may not be what the changelog says
                await self._pump()
            except asyncio.CancelledError:
                raise
            except ProducerFenced:
                # Somebody started a producer for this partition. If the group gave it away, a revoke comes within the
                # session timeout and ends this lane; if not, the broker itself ended a transaction, and we go on.
                await self._broke("fenced by another producer", settings.kafka.session_timeout_s)
            except KAFKA_FAILURES as error:
                self._backoff_s = min(2 * self._backoff_s, MAX_BACKOFF_S) or settings.delivery.retry_backoff_s
                await self._broke(explained(settings.kafka, error), self._backoff_s)

    async def _broke(self, why: str, wait_s: float) -> None:
        """Gives up what is in flight, and says why; then a pause, which a revoke cuts short."""
        self._drop_input()
        self._drop_producer()
        self.view.forget()
        if not self._closing:
            metrics.LANE_FAILURES.labels(*self._labels).inc()
            log.error(
                "%s, partition %d of %s, offset %d: %s; trying again in %.1f s",
                self.stage.name,
                self.tp.partition,
                self.tp.topic,
                self.position + 1,
                why,
                wait_s,
            )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while not self._closing:
                    self._wake.clear()
                    await self._wake.wait()

    def _drop_input(self) -> None:
        """Takes nothing more until the next `_locate`."""
        self.ready = False
        self.inbox.clear()

    def _drop_producer(self) -> None:
        """Its open transaction is aborted beside us, or by the producer that comes after it."""
        if self.producer is not None:
            self.delivery.stop_producer(self.producer)
            self.producer = None

    async def _reopen(self) -> None:
        """A new producer settles the old one's transaction; then State takes over what its changelog got meanwhile."""
        await self.open()
        state, partition = self.stage.state, self.tp.partition
        state.store.reopen(partition)  # a database that met a full disk refuses writes until it is opened again
        changelog = TopicPartition(state.changelog_topic.get_topic_name(), partition)
        await catch_up(self.delivery, state, changelog, restored=self._restored)
        self._restored = True

    async def _locate(self) -> None:
        """Finds the position, and says what doesn't fit."""
        tp, applied = self.tp, self.stage.state.applied(self.tp.partition)
        committed = await self.delivery.committed(tp)
        found = locate(applied, await log_of(self.delivery.settings.kafka, tp, applied, committed, self.stage.start))
        if found.stop:
            self.stop(found.stop)
            return
        if found.notice:
            log.warning("%s, partition %d of %s: %s", self.stage.name, tp.partition, tp.topic, found.notice)
        if found.lost:
            metrics.RECORDS_LOST.labels(*self._labels).inc(found.lost)
        self._applied = applied
        self._incarnation = applied.incarnation if applied else uuid.uuid4().hex
        self.position = found.next - 1
        self.inbox.begin(found.next)
        await self.delivery.seek(tp, found.next)
        if self._closing:  # a revoke came meanwhile
            return
        self.moved_at = time.monotonic()
        self.ready = True
        self.stage.lane_ready(self)
        self.delivery.room()

    def stop(self, why: str) -> None:
        """Takes nothing more from this partition, and says so until somebody acts. Others go on."""
        self.stopped, self.ready = why, False
        self.report_stopped()

    def report_stopped(self) -> None:
        """Says why it stopped: at once, and now and then by the supervisor."""
        log.error(
            "%s, partition %d of %s is STOPPED, others go on: %s",
            self.stage.name,
            self.tp.partition,
            self.tp.topic,
            self.stopped,
        )

    # -- work ----------------------------------------------------------------------------------------------------

    async def _pump(self) -> None:
        committing: asyncio.Task[None] | None = None
        ahead: Transaction | None = None
        try:
            while True:
                if committing is not None and committing.done():
                    committing.result()
                    committing = None
                if self._closing and committing is None and not self._posted:
                    return
                if self.inbox.unreadable is not None and not self._closing:
                    raise self.inbox.unreadable
                wait_s = self._due(committing is not None)
                if wait_s > 0:
                    await self._wait(committing, wait_s)
                    continue
                await self.delivery.turns.take()
                if self._due(committing is not None) > 0 or (self.inbox.unreadable and not self._closing):
                    continue  # a revoke emptied the inbox meanwhile, or it can't be read on
                ahead = await self._compute()
                if committing is not None:
                    await committing
                self.last_begin = time.monotonic()
                committing, ahead = asyncio.ensure_future(self._commit(ahead)), None
                await asyncio.sleep(0)
        finally:
            if ahead is not None:  # the batch before it failed
                self._give_up(ahead)
            if committing is not None and not committing.done():
                committing.cancel()
                await asyncio.wait([committing])

    def _due(self, busy: bool) -> float:
        """Seconds until the next batch is to be taken; a long time when there is nothing to do."""
        if len(self.inbox) >= self.delivery.batch_records:
            return 0.0
        if busy or not (self.inbox or self._posted):
            return 3600.0
        if self._closing:
            return 0.0
        return max(0.0, self.last_begin + self.delivery.gather_s - time.monotonic())

    async def _wait(self, committing: asyncio.Task[None] | None, seconds: float) -> None:
        self._wake.clear()
        waiting = {asyncio.ensure_future(self._wake.wait())}
        try:
            others = {committing} if committing is not None else set()
            await asyncio.wait(waiting | others, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()

    def _give_up(self, transaction: Transaction) -> None:
        """It won't be written: records are read again, and answers that arrived are written by the next try."""
        self._posted.extendleft(reversed(transaction.posted))
        self.delivery.release_output(transaction.size_bytes)

    async def _compute(self) -> Transaction:
        """Decides on the next batch and the work that was posted."""
        records = self.inbox.take(self.delivery.batch_records)
        self.delivery.room()
        posted = list(self._posted)
        self._posted.clear()
        try:
            return await self._decided(records, posted)
        except BaseException:
            self._posted.extendleft(reversed(posted))
            raise

    async def _decided(self, records: list[Received], posted: list[Work]) -> Transaction:
        out = self.stage.decide(records, self) if records else Outbox()
        for work in posted:
            work(self.view, out)
        if records:
            last = records[-1]
            self.position = last.offset
            self._applied = Applied(last.offset, last.timestamp, crc_of(last), self._incarnation)
            out.changelog[APPLIED] = out.local[APPLIED] = msgspec.msgpack.encode(self._applied)
        self.delivery.fit(out, self.stage)
        self._batch += 1
        self.view.hold(out.local, self._batch)
        size = out.size_bytes if len(records) > 100 else 0  # small batches aren't worth the sum
        await self.delivery.reserve_output(size)
        crash.at("computed")
        return Transaction(out, self._batch, len(records), posted, size)

    async def _commit(self, transaction: Transaction) -> None:
        """Writes a batch: one Kafka transaction, then the same changes locally."""
        begun = time.monotonic()
        try:
            out = transaction.out
            offset = self.position_of(transaction)
            end = await self._write(transaction, offset)
            if end is not None:
                self.stage.state.database(self.tp.partition).write(out.local.items(), end)
            crash.at("written")
            self.view.release(transaction.number)
            self._backoff_s = 0.0
            self.stage.committed(self, transaction)
        except BaseException:
            self._give_up(transaction)
            raise
        self.delivery.release_output(transaction.size_bytes)
        self.moved_at = time.monotonic()
        metrics.TRANSACTION_SECONDS.labels(self.stage.name).observe(self.moved_at - begun)
        if transaction.records:
            metrics.BATCH_RECORDS.labels(self.stage.name).observe(transaction.records)

    async def _write(self, transaction: Transaction, offset: int | None) -> int | None:
        database = self.stage.state.database(self.tp.partition)
        try:
            return await transaction.write(
                self.producer, self.stage, self.tp, offset, self.delivery.group, database.changelog_offset
            )
        except ChangelogLost:
            database.note(RESEEDING, b"1")  # also where the new one is already longer than the old one was
            raise

    @staticmethod
    def position_of(transaction: Transaction) -> int | None:
        """The input offset that a transaction commits, if it has input."""
        raw = transaction.out.local.get(APPLIED)
        return None if raw is None else msgspec.msgpack.decode(raw, type=Applied).offset + 1

    @property
    def idle_reason(self) -> str:
        """For the stall watch: why nothing has to move, or empty when something should."""
        if self.stopped:
            return self.stopped
        return "" if self.inbox or self._posted else "no input"
