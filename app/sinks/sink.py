"""One sink: reads topics in a consumer group of its own and writes them to a database, each record's effect once.

Where to go on stands in the database and changes with the rows; the group's offsets in Kafka only tell others the lag. While
the database is away the sink waits with what it has read, and nobody else does: nothing of the pipeline knows of it.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeVar

import aiokafka
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.errors import IllegalStateError, KafkaError
from aiokafka.structs import TopicPartition

from app import metrics, topics
from app.errors import BrokerError, SinkError, SinkUnavailable
from app.kafka import client_kwargs
from app.settings import Settings
from app.settings_sinks import SinkSettings
from app.sinks.batch import Batch, Place
from app.sinks.database import Database, Fenced
from app.sinks.tables import TABLES

__all__ = ["Sink"]

log = logging.getLogger("headrace.sinks")

T = TypeVar("T")

POLL_MS = 200
"""How long it takes to see that the sink is to stop."""
POLL_RECORDS = 1000
BATCH_BYTES = 8 << 20
"""Reviews may be large: so much is enough for one transaction."""
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 30.0
STATUS_EVERY_S = 60.0
NEVER_IDLE_MS = 2**31 - 1
"""While the database is away nothing is read, for hours if need be: aiokafka would leave the group after max_poll_interval,
and not come back before somebody reads. A process that hangs sends no heartbeats, and loses its partitions by that."""


class _Stopped(Exception):
    """The sink is to stop."""


class Sink(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """Runs until it is stopped, or can't go on.

    Args:
        settings: for Kafka and the topics' names.
        own: the sink's.
        database: where rows go.
        stop: set when it is to end.
    """

    def __init__(self, settings: Settings, own: SinkSettings, database: Database, stop: asyncio.Event) -> None:
        self._settings, self._own, self._database, self._stop = settings, own, database, stop
        self._tables = {settings.topic(topic): TABLES[topic] for topic in own.topics}
        self._at: dict[Place, int] = {}
        """Where the positions of this process's partitions stand in the database."""
        self._generation = 0
        """Changes whenever what was gathered isn't to be written by this process any more."""
        self._settled = asyncio.Event()
        """Partitions are assigned, and aren't being moved."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"sink-{own.name}")
        self._said = ""
        self._rows, self._told_at = 0, time.monotonic()

    @property
    def name(self) -> str:
        return self._own.name

    # -- partitions --------------------------------------------------------------------------------------------------

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """A batch under way may end: if the next owner is quicker, it is fenced."""
        self._settled.clear()
        self._forget()

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        self._forget()
        self._settled.set()
        log.info(
            "sink %s: has %s", self.name, ", ".join(sorted(f"{tp.topic}/{tp.partition}" for tp in assigned)) or "none"
        )

    def _forget(self) -> None:
        self._at.clear()
        self._generation += 1

    # -- the loop ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Runs until it is stopped; an outage of Kafka or of the database is waited out.

        Raises:
            SinkError: the database can't be used like this.
        """
        wait_s = FIRST_WAIT_S
        try:
            await self._insist(self._database.start)
            while not self._stop.is_set():
                try:
                    async with self._consumer() as consumer:
                        wait_s = FIRST_WAIT_S
                        await self.copy(consumer)
                except (KafkaError, BrokerError, OSError, TimeoutError) as error:
                    self._failed("kafka", error)
                    await self._wait(wait_s)
                    wait_s = min(wait_s * 2, LONGEST_WAIT_S)
        except _Stopped:
            pass  # asked for
        finally:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._database.close)
            self._thread.shutdown(wait=False)

    @asynccontextmanager
    async def _consumer(self) -> AsyncIterator[aiokafka.AIOKafkaConsumer]:
        await topics.ensure(self._settings)
        kafka = self._settings.kafka
        consumer = aiokafka.AIOKafkaConsumer(
            group_id=self._settings.topic(f"headrace-sink-{self.name}"), enable_auto_commit=False,
            auto_offset_reset="earliest", isolation_level="read_committed",
            session_timeout_ms=int(kafka.session_timeout_s * 1000),
            heartbeat_interval_ms=int(min(1.0, kafka.session_timeout_s / 5) * 1000),
            max_poll_interval_ms=NEVER_IDLE_MS, **client_kwargs(kafka),
        )  # fmt: skip
        try:
            await consumer.start()
            consumer.subscribe(list(self._tables), listener=self)
            yield consumer
        finally:
            self.on_partitions_revoked(())
            await consumer.stop()

    async def copy(self, consumer: aiokafka.AIOKafkaConsumer) -> None:
        """Copies what a consumer reads whose listener this sink is, until it is to stop."""
        while True:
            await self._until_settled()
            if not await self._take_up(consumer):
                continue
            batch = await self._gather(consumer)
            if batch is None:
                continue
            if batch.records:
                await self._write(consumer, batch)
            self._measure(consumer)
            self._tell()

    async def _until_settled(self) -> None:
        while not self._settled.is_set():
            self._check_stop()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_MS / 1000):
                    await self._settled.wait()

    async def _take_up(self, consumer: aiokafka.AIOKafkaConsumer) -> bool:
        """Asks the database where new partitions go on, and goes there; False when partitions moved meanwhile."""
        generation = self._generation
        new = [tp for tp in consumer.assignment() if (tp.topic, tp.partition) not in self._at]
        if not new:
            return True
        starts, ends = await consumer.beginning_offsets(new), await consumer.end_offsets(new)
        first = {(tp.topic, tp.partition): starts[tp] for tp in new}
        found = await self._insist(lambda: self._database.positions(first))
        if self._generation != generation:
            return False
        for tp in new:
            at = found[tp.topic, tp.partition]
            if at > ends[tp]:
                raise SinkError(
                    f"sink {self.name}: {tp.topic} partition {tp.partition} ends at {ends[tp]}, and {at} records of it are "
                    "written already: the topic was made anew or cut. To take it from its beginning, delete the sink's rows in "
                    "headrace_positions, and the topic's table"
                )
            if at < starts[tp]:
                metrics.RECORDS_LOST.labels(f"sink-{self.name}", tp.partition).inc(starts[tp] - at)
                log.error(
                    "sink %s: %s partition %d: up to %d records were removed by retention before they were written",
                    self.name, tp.topic, tp.partition, starts[tp] - at,
                )  # fmt: skip
            consumer.seek(tp, max(at, starts[tp]))
            self._at[tp.topic, tp.partition] = at
        return True

    async def _gather(self, consumer: aiokafka.AIOKafkaConsumer) -> Batch | None:
        """Reads until a batch is full, or its first record has waited for flush_s; None when partitions moved meanwhile."""
        batch, generation = Batch(self._tables, dict(self._at)), self._generation
        begun = time.monotonic()
        while batch.records < self._own.batch_records and batch.size_bytes < BATCH_BYTES:
            self._check_stop()
            room = min(POLL_RECORDS, self._own.batch_records - batch.records)
            got = await consumer.getmany(timeout_ms=POLL_MS, max_records=room)
            if self._generation != generation:
                return None
            for records in got.values():
                for record in records:
                    batch.add(record)
            if not batch.records:
                return batch
            if time.monotonic() - begun >= self._own.flush_s:
                break
        return batch

    async def _write(self, consumer: aiokafka.AIOKafkaConsumer, batch: Batch) -> None:
        begun, generation = time.monotonic(), self._generation
        try:
            written = await self._insist(lambda: self._database.write(batch))
        except Fenced as error:
            self._failed("fenced", error)
            self._forget()  # where they stand now is asked anew
            return
        metrics.SINK_WRITE_SECONDS.labels(self.name).observe(time.monotonic() - begun)
        for outcome, count in (
            ("written", written.rows),
            ("deleted", written.deleted),
            ("rejected", len(written.rejected)),
        ):
            metrics.SINK_ROWS.labels(self.name, outcome).inc(count)
        for record, _ in written.rejected:
            log.warning(
                "sink %s: %s partition %d offset %d is no row; headrace_rejected has it, and the reason",
                self.name, record.topic, record.partition, record.offset,
            )  # fmt: skip
        self._rows += written.rows
        moved = {place: move.following for place, move in batch.moves.items()}
        if self._generation == generation:
            self._at.update(moved)
        try:
            await consumer.commit({TopicPartition(*place): following for place, following in moved.items()})
        except KafkaError as error:  # only told to others: the database knows where to go on
            log.debug("sink %s: the group's offsets aren't committed (%s)", self.name, type(error).__name__)

    async def _insist(self, work: Callable[[], T]) -> T:
        """Does something with the database, and again until it is there.

        Raises:
            Fenced, SinkError: another attempt wouldn't help.
            _Stopped: the sink is to stop.
        """
        loop, wait_s = asyncio.get_running_loop(), FIRST_WAIT_S
        while True:
            try:
                found = await loop.run_in_executor(self._thread, work)
            except SinkUnavailable as error:
                self._failed("database", error)
                await self._wait(wait_s)
                wait_s = min(wait_s * 2, LONGEST_WAIT_S)
            else:
                if self._said:
                    log.info("sink %s: goes on", self.name)
                    self._said = ""
                return found

    # -- around it ---------------------------------------------------------------------------------------------------

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise _Stopped

    async def _wait(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stop.wait()
        self._check_stop()

    def _failed(self, kind: str, error: Exception) -> None:
        """Counts an error; says it once, not with every attempt."""
        metrics.SINK_ERRORS.labels(self.name, kind).inc()
        if (said := str(error)) != self._said:
            self._said = said
            log.warning("%s; trying again", said if said.startswith("sink ") else f"sink {self.name}: {said}")

    def _measure(self, consumer: aiokafka.AIOKafkaConsumer) -> None:
        for topic, partition in self._at:
            tp = TopicPartition(topic, partition)
            try:
                end = consumer.last_stable_offset(tp)
            except IllegalStateError:  # it has just been moved
                continue
            metrics.SINK_LAG.labels(self.name, topic, partition).set(max(0, (end or 0) - self._at[topic, partition]))

    def _tell(self) -> None:
        if self._rows and time.monotonic() - self._told_at >= STATUS_EVERY_S:
            log.info("sink %s: %s rows in the last minute", self.name, f"{self._rows:,}")
            self._rows, self._told_at = 0, time.monotonic()
