"""Delivery: all stages and lanes of this worker, their shared limits, and the tasks beside them."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from aiokafka.errors import KafkaError
from aiokafka.structs import TopicPartition

from app.delivery.database import share_memory
from app.delivery.lane import Lane
from app.delivery.outbox import LARGE_BYTES, Outbox, Row, size_of
from app.delivery.partitions import Partitioner
from app.delivery.stage import Stage
from app.delivery.supervisor import Supervisor
from app.delivery.turns import Turns
from app.errors import OutputError
from app.settings import Settings

if TYPE_CHECKING:
    from app.delivery.restore import Restore

__all__ = ["Delivery"]

log = logging.getLogger("headrace.delivery")

FRESH_MS = 5000
"""A partition counts as read to its end when a fetch said so not longer ago; fetches come several times a second."""
RAW_HEADROOM_BYTES = 64 << 10
"""Topics that carry a raw record onwards take this much more than the brokers' limit, for our headers."""


class Delivery:
    """The delivery layer of one worker. `app.core` makes it and hangs it on the Faust app."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.app: Any = None
        self.group = ""
        self.stages: dict[str, Stage] = {}
        self.lanes: dict[TopicPartition, Lane] = {}
        self.batch_records = settings.delivery.batch_records
        self.gather_s = 0.0
        """How long a lane gathers records under light load; follows how many lanes have input."""
        self.lane_bytes = settings.delivery.max_input_bytes
        self.partitions: dict[str, int] = {}
        """Partition count of every topic we write, filled at start."""
        self._partitioners: dict[str, Partitioner] = {}
        self.raw_topics: set[str] = set()
        self.dead_letter = settings.topic("dead-letter")
        self.decided: Callable[[str, str, int, int], None] = lambda task, tier, events, chars: None
        """Told of events that have their outcome, once that is committed: task, tier, how many, characters."""
        self.restore: Restore | None = None
        """Set by Faust's table manager when it starts."""
        self._consumer: Any = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._watched: set[asyncio.Task[Any]] = set()
        self.turns = Turns()
        self._output_bytes = 0
        self._output_room: asyncio.Condition | None = None
        share_memory(settings.delivery.block_cache_bytes, settings.delivery.write_buffer_bytes)

    def attach(self, app: Any) -> None:
        """Joins the Faust app that this serves."""
        self.app, self.group = app, app.conf.id

    def add(self, stage: Stage) -> Stage:
        self.stages[stage.topic] = stage
        return stage

    # -- partitions ------------------------------------------------------------------------------------------------

    def by_partition(self, topic: str, rows: list[Row], fallback: int) -> dict[int, list[Row]]:
        """Records by Kafka's own partition for their keys; one without a key goes where its input was, modulo the count.

        Raises:
            OutputError: the topic isn't known.
        """
        count = self.partitions.get(topic)
        if count is None:
            raise OutputError(f"topic {topic} isn't there; `headrace check` tells what is missing")
        partitioner = self._partitioners.get(topic)
        if partitioner is None or partitioner.count != count:
            partitioner = self._partitioners[topic] = Partitioner(count)
        keys = [key for key, _, _ in rows if key is not None]
        partitions = partitioner.of(keys)
        if len(keys) < len(rows):
            keyed = iter(partitions)
            partitions = [fallback % count if key is None else next(keyed) for key, _, _ in rows]
        if partitions.count(partitions[0]) == len(rows):
            return {partitions[0]: rows}  # keyed as the input was
        found: dict[int, list[Row]] = {}
        for row, partition in zip(rows, partitions, strict=True):
            its = found.get(partition)
            if its is None:
                its = found[partition] = []
            its.append(row)
        return found

    async def fence(self, assigned: set[Any]) -> None:
        """Opens a lane for each input partition: from here on nobody else can write for it.

        Called on every assignment, before the changelogs' ends and the committed offsets are read.
        """
        await self.close_lanes()
        mine = [tp for tp in assigned if tp.topic in self.stages]
        lanes = [Lane(self, self.stages[tp.topic], TopicPartition(tp.topic, tp.partition)) for tp in mine]
        if lanes:
            # Half of the budget queues in lanes; the rest is what fetches under way may bring.
            self.lane_bytes = max(1 << 18, self.settings.delivery.max_input_bytes // 2 // len(lanes))
        await asyncio.gather(*[lane.try_open() for lane in lanes])
        self.lanes = {lane.tp: lane for lane in lanes}

    def lane_of(self, changelog: TopicPartition) -> Lane | None:
        """The lane whose State a changelog partition is."""
        return next(
            (
                lane
                for lane in self.lanes.values()
                if (lane.stage.changelog, lane.tp.partition) == (changelog.topic, changelog.partition)
            ),
            None,
        )

    async def begin(self, consumer: Any) -> None:
        """Restore is done: lanes find their positions and start."""
        self._output_room = self._output_room or asyncio.Condition()
        for lane in self.lanes.values():
            lane.stage.state.note_kinds(lane)
            lane.start()
        mine = ", ".join(
            f"{s.name}: {sum(lane.stage is s for lane in self.lanes.values())}" for s in self.stages.values()
        )
        log.info("ready; partitions of this worker: %s", mine if self.lanes else "none, it stands by")

    def join(self, consumer: Any) -> None:
        """The group's consumer, known from the first assignment on."""
        self._consumer = consumer

    async def committed(self, tp: TopicPartition) -> int | None:
        return await self._consumer.committed(tp)  # type: ignore[no-any-return]

    async def seek(self, tp: TopicPartition, offset: int) -> None:
        await self._consumer.seek_wait({tp: offset})

    def log_end(self, tp: TopicPartition) -> int | None:
        """The end of an input partition as the last fetch told it."""
        return None if self._consumer is None else self._consumer.last_stable_offset(tp)

    def caught_up(self, lane: Lane) -> bool:
        """Whether a lane has all that its partition holds. Never guessed: a broker that doesn't answer says nothing."""
        return not lane.inbox and self._consumer is not None and self._consumer.caught_up(lane.tp, FRESH_MS)

    async def close_lanes(self) -> None:
        """Revoke or stop: transactions under way finish or are aborted within 2 s."""
        lanes, self.lanes = self.lanes, {}
        if lanes:
            await asyncio.gather(*[lane.close() for lane in lanes.values()])

    async def stop(self) -> None:
        """Closes the lanes, then ends all helper tasks; producers get a moment to abort what was open."""
        await self.close_lanes()
        for task in list(self._watched):
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=4.0)

    def stop_producer(self, producer: Any) -> None:
        """Ends a producer beside everything else; its open transaction is aborted so that readers don't wait for it."""

        async def stop() -> None:
            with contextlib.suppress(KafkaError, TimeoutError, OSError):
                async with asyncio.timeout(3):
                    if producer._txn_manager.is_in_transaction():
                        await producer.abort_transaction()
            with contextlib.suppress(KafkaError, TimeoutError, OSError):
                async with asyncio.timeout(3):
                    await producer.stop()

        task = asyncio.ensure_future(stop())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- input -----------------------------------------------------------------------------------------------------

    def room_for(self, tp: Any) -> int:
        """How many records of a partition may be fetched now. Called from the consumer's thread."""
        lane = self.lanes.get(tp)
        return 0 if lane is None else lane.room()

    def accept(self, topic: str, partition: int, fetched: Any) -> None:
        lane = self.lanes.get(TopicPartition(topic, partition))
        if lane is not None:
            lane.accept(fetched)

    def refused(self, tp: Any, error: KafkaError) -> None:
        """A partition can't be read. Called from the consumer's thread."""
        lane = self.lanes.get(tp)
        if lane is not None:
            self.app.loop.call_soon_threadsafe(lane.refuse, error)

    def missing_inputs(self) -> dict[str, str]:
        """Inputs that aren't there, by stage; no lane tells of them, since the group has no partitions to give away."""
        consumer = self._consumer
        return {} if consumer is None else {s.name: s.topic for s in self.stages.values() if consumer.lacks(s.topic)}

    def look_again(self) -> None:
        """Asks the brokers for missing inputs now."""
        self._consumer.look_again()

    def room(self) -> None:
        """Some lane has room again."""
        if self._consumer is not None:
            self._consumer._thread.room()

    # -- output ----------------------------------------------------------------------------------------------------

    def limit_bytes(self, topic: str) -> int:
        limit = self.settings.kafka.max_message_bytes
        return limit + RAW_HEADROOM_BYTES if topic in self.raw_topics else limit

    def fit(self, out: Outbox, stage: Stage) -> None:
        """Sends what is too large for its topic to the dead letter topic instead, before anything is sent.

        Raises:
            OutputError: it doesn't even fit there; the lane goes back, says so, and tries again with backoff.
        """
        floor = self.settings.kafka.max_message_bytes
        if not out.large and floor > LARGE_BYTES:
            return
        for (topic, partition), rows in list(out.sends.items()):
            limit = max(floor, self.limit_bytes(topic))
            large = [row for row in rows if size_of(row) > limit]
            if not large:
                continue
            out.sends[topic, partition] = [row for row in rows if size_of(row) <= limit]
            for row in large:
                self._bury(out, topic, row, stage)

    def _bury(self, out: Outbox, topic: str, row: Row, stage: Stage) -> None:
        key, value, headers = row
        note = f"{size_of(row)} bytes, more than {topic} takes ({self.limit_bytes(topic)})".encode()
        headers = [
            *headers,
            ("headrace.reason", b"output-too-large"),
            ("headrace.field", topic.encode()),
            ("headrace.stage", stage.name.encode()),
            ("__connect.errors.exception.message", note),
        ]
        if size_of((key, value, headers)) > self.limit_bytes(self.dead_letter):
            raise OutputError(
                f"an output of {size_of(row)} bytes fits neither {topic} nor {self.dead_letter}; raise "
                "max.message.bytes of the dead letter topic and kafka.max_message_bytes"
            )
        out.send(self.dead_letter, key, value, headers)

    async def reserve_output(self, size: int) -> None:
        """Waits until there is room for output not yet written."""
        if not size or self._output_room is None:
            return
        limit = self.settings.delivery.max_output_bytes
        async with self._output_room:
            await self._output_room.wait_for(lambda: self._output_bytes == 0 or self._output_bytes + size <= limit)
            self._output_bytes += size

    def release_output(self, size: int) -> None:
        if size and self._output_room is not None:
            self._output_bytes -= size

            async def tell(room: asyncio.Condition) -> None:
                async with room:
                    room.notify_all()

            task = asyncio.ensure_future(tell(self._output_room))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    # -- tasks -----------------------------------------------------------------------------------------------------

    def supervise(self) -> None:
        """Starts the watch over the lanes."""
        self.watch(Supervisor(self).run(), "supervisor")

    def watch(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Runs a helper task; one that dies takes the worker down with its reason."""
        task = asyncio.ensure_future(work)
        task.set_name(name)
        self._tasks.add(task)
        self._watched.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        self._watched.discard(task)
        if task.cancelled() or task.exception() is None:
            return
        error = task.exception()
        assert error is not None
        self.end(task.get_name(), error)

    def end(self, what: str, error: BaseException) -> None:
        """Takes the worker down, with its reason."""
        log.critical("%s died: %s; ending the worker", what, error, exc_info=error)
        crash = asyncio.ensure_future(self.app.crash(error))
        self._tasks.add(crash)
