"""One sink: reads topics and writes them to a database, each record's effect once.

Where to go on stands in the database and changes with the rows. Processes of a PostgreSQL sink share partitions in a consumer
group, whose offsets only tell others the lag; a DuckDB file takes them all, without a group: a second machine has a file of
its own. While the database is away the sink waits with what it has read, and nobody else does.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import aiokafka
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.errors import KafkaError, NoOffsetForPartitionError, OffsetOutOfRangeError
from aiokafka.structs import TopicPartition

from app import metrics, topics
from app.delivery.presence import tell_of_missing
from app.delivery.probe import config_of
from app.errors import BrokerError, HeadraceError, SinkUnavailable
from app.kafka import explained
from app.settings import Settings
from app.settings_sinks import SinkSettings
from app.sinks.batch import Batch, Place
from app.sinks.consumer import make_consumer, shares
from app.sinks.database import Database, Fenced
from app.sinks.positions import Positions
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
COMMIT_S, CLOSE_S = 3.0, 5.0
"""A sink that is to stop doesn't wait longer for a Kafka that is away; the group's offsets are only for looking."""


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
        self._positions = Positions(own.name, self._cleanup_policy)
        self._settled = asyncio.Event()
        """Partitions are assigned, and aren't being moved."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"sink-{own.name}")
        self._said = ""
        self._kafka_wait_s, self._outages = FIRST_WAIT_S, 0
        self._rows, self._told_at = 0, time.monotonic()

    @property
    def name(self) -> str:
        return self._own.name

    # -- partitions --------------------------------------------------------------------------------------------------

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """A batch under way may end: if the next owner is quicker, it is fenced."""
        self._settled.clear()
        self._positions.forget()

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        self._positions.forget()
        self._settled.set()
        log.info(
            "sink %s: has %s", self.name, ", ".join(sorted(f"{tp.topic}/{tp.partition}" for tp in assigned)) or "none"
        )

    def gone(self, tp: TopicPartition, error: KafkaError) -> None:
        """A fetch found a partition's topic deleted: what comes next may be another, and is looked at before it is read."""
        self._failed("kafka", error)
        self._positions.forget()

    # -- the loop ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Runs until it is stopped; an outage of Kafka or of the database is waited out.

        Raises:
            SinkError: the database can't be used like this.
        """
        try:
            await self._insist(self._database.start)
            while not self._stop.is_set():
                try:
                    async with self._consumer() as consumer:
                        await self.copy(consumer)
                except (KafkaError, BrokerError, OSError, TimeoutError) as error:
                    self._failed("kafka", error)
                    await self._wait(self._kafka_wait_s)
                    self._kafka_wait_s = min(self._kafka_wait_s * 2, LONGEST_WAIT_S)
        except _Stopped:
            pass  # asked for
        finally:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._database.close)
            self._thread.shutdown(wait=False)

    @asynccontextmanager
    async def _consumer(self) -> AsyncIterator[aiokafka.AIOKafkaConsumer]:
        counts = await self._or_stop(topics.counts(self._settings, list(self._tables)))
        if missing := sorted(set(self._tables) - set(counts)):
            raise BrokerError(
                f"sink {self.name}: topics that aren't there, or that this user may not see: {', '.join(missing)}; workers make "
                "them at their start"
            )
        consumer = make_consumer(self._settings, self._own)
        tell_of_missing(consumer._client, self.gone)
        try:
            await self._or_stop(consumer.start())
            await asyncio.sleep(0)  # stopped before its tasks have begun, aiokafka 0.14 waits for them for ever
            if shares(self._own):
                consumer.subscribe(list(self._tables), listener=self)
            else:
                self._take_all(consumer, {topic: set(range(count)) for topic, count in counts.items()})
            yield consumer
        finally:
            self.on_partitions_revoked(())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await consumer.stop()

    def _take_all(self, consumer: aiokafka.AIOKafkaConsumer, partitions: Mapping[str, set[int] | None]) -> None:
        """Takes every partition, also those that were added since."""
        had = consumer.assignment()
        found = {TopicPartition(topic, p) for topic, known in partitions.items() for p in known or ()} | had
        if found != had:
            self.on_partitions_revoked(had)
            consumer.assign(list(found))
            self.on_partitions_assigned(found)

    async def copy(self, consumer: aiokafka.AIOKafkaConsumer) -> None:
        """Copies what a consumer reads whose listener this sink is, until it is to stop."""
        while True:
            if not shares(self._own):
                self._take_all(consumer, {topic: consumer.partitions_for_topic(topic) for topic in self._tables})
            await self._until_settled()
            if not await self._take_up(consumer):
                continue
            batch = await self._gather(consumer)
            if batch is None:
                continue
            if batch.moves:
                await self._write(consumer, batch)
            self._positions.measure(consumer.last_stable_offset)
            self._tell()

    async def _until_settled(self) -> None:
        while not self._settled.is_set():
            self._check_stop()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_MS / 1000):
                    await self._settled.wait()

    async def _take_up(self, consumer: aiokafka.AIOKafkaConsumer) -> bool:
        """Asks the database where new partitions go on, and goes there; False when partitions moved meanwhile."""
        generation = self._positions.generation
        new = [tp for tp in consumer.assignment() if (tp.topic, tp.partition) not in self._positions.at]
        if not new:
            return True
        starts = await self._or_stop(consumer.beginning_offsets(new))
        ends = await self._or_stop(consumer.end_offsets(new))
        first = {(tp.topic, tp.partition): starts[tp] for tp in new}
        found, marks = await self._insist(lambda: (self._database.positions(first), self._database.marks()))
        if self._positions.generation != generation:
            return False
        for tp in new:
            place = (tp.topic, tp.partition)
            consumer.seek(tp, self._positions.begin(place, found[place], marks.get(place), starts[tp], ends[tp]))
        return True

    async def _gather(self, consumer: aiokafka.AIOKafkaConsumer) -> Batch | None:
        """Reads until a batch is full, or its first record has waited for flush_s; None when partitions moved meanwhile."""
        batch, generation = Batch(self._tables, dict(self._positions.at)), self._positions.generation
        begun = time.monotonic()
        while batch.records < self._own.batch_records and batch.size_bytes < BATCH_BYTES:
            self._check_stop()
            got = await self._read(consumer, min(POLL_RECORDS, self._own.batch_records - batch.records))
            if self._positions.generation != generation:
                return None
            for records in got.values():
                for record in records:
                    if record.offset < batch.at[record.topic, record.partition]:
                        self._positions.recognise(record)
                    else:
                        batch.add(record)
            for place in batch.at:
                position = await consumer.position(TopicPartition(*place))
                await self._positions.passed(place, position)
                batch.reach(place, position)
            if not batch.moves or time.monotonic() - begun >= self._own.flush_s:
                break
        return batch if self._positions.generation == generation else None

    async def _read(
        self, consumer: aiokafka.AIOKafkaConsumer, most: int
    ) -> Mapping[TopicPartition, Iterable[aiokafka.ConsumerRecord[bytes, bytes]]]:
        try:
            return await self._or_stop(consumer.getmany(timeout_ms=POLL_MS, max_records=most))
        except NoOffsetForPartitionError:
            return {}  # aiokafka had asked the group, before we said where to go on
        except OffsetOutOfRangeError as error:  # retention was quicker, or the topic was made anew
            self._failed("kafka", error)
            self._positions.forget()
            return {}

    async def _cleanup_policy(self, topic: str) -> str:
        return (await self._or_stop(config_of(self._settings.kafka, topic)))["cleanup.policy"]

    async def _write(self, consumer: aiokafka.AIOKafkaConsumer, batch: Batch) -> None:
        begun, generation, outages = time.monotonic(), self._positions.generation, self._outages
        try:
            written = await self._insist(lambda: self._database.write(batch))
        except Fenced as error:
            self._failed("fenced", error)
            self._positions.forget()  # where they stand now is asked anew
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
        self._kafka_wait_s = FIRST_WAIT_S
        moved = {place: move.following for place, move in batch.moves.items()}
        if self._positions.generation == generation:
            self._positions.at.update(moved)
        if shares(self._own):
            await self._commit(consumer, moved)
        if self._outages != outages:
            self._positions.forget()  # long enough for a topic to be made anew: looks at it again

    async def _commit(self, consumer: aiokafka.AIOKafkaConsumer, moved: Mapping[Place, int]) -> None:
        """Tells others the lag; the database knows where to go on."""
        try:
            async with asyncio.timeout(COMMIT_S):
                await consumer.commit({TopicPartition(*place): following for place, following in moved.items()})
        except (KafkaError, TimeoutError) as error:
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
                self._outages += 1
                self._failed("database", error)
                await self._wait(wait_s)
                wait_s = min(wait_s * 2, LONGEST_WAIT_S)
            else:
                if self._said:
                    log.info("sink %s: goes on", self.name)
                    self._said = ""
                return found

    async def _or_stop(self, work: Coroutine[Any, Any, T]) -> T:
        """Waits for Kafka, but not longer than the sink is to run.

        Raises:
            _Stopped: it is to stop; `work` is cancelled.
        """
        task, stopped = asyncio.create_task(work), asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait([task, stopped], return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise _Stopped
        finally:
            stopped.cancel()
            task.cancel()

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
        said = str(error) if isinstance(error, HeadraceError) else explained(self._settings.kafka, error)
        if said != self._said:
            self._said = said
            log.warning("%s; trying again", said if said.startswith("sink ") else f"sink {self.name}: {said}")

    def _tell(self) -> None:
        if self._rows and time.monotonic() - self._told_at >= STATUS_EVERY_S:
            log.info("sink %s: %s rows in the last minute", self.name, f"{self._rows:,}")
            self._rows, self._told_at = 0, time.monotonic()
