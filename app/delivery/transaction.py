"""One Kafka transaction: outputs, changelog records and the input offset, all or nothing."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiokafka
from aiokafka.errors import IllegalOperation, KafkaError, UnknownTopicOrPartitionError
from aiokafka.producer import sender
from aiokafka.structs import TopicPartition

from app import crash
from app.delivery.outbox import Outbox, Row
from app.delivery.presence import find, missing
from app.errors import ChangelogLost
from app.kafka import client_kwargs
from app.settings import Settings

if TYPE_CHECKING:
    from app.delivery.stage import Stage

__all__ = ["Transaction", "acknowledged", "in_transaction", "marker_behind", "new_producer", "send_rows"]

MAX_BATCH_BYTES = 1_000_000
"""Of one record batch: brokers refuse one above message.max.bytes (1,048,588 by default)."""
RETRY_BACKOFF_MS = 10
"""A broker answers a new transaction right after the last with NotEnoughReplicas until it is verified; the default of
100 ms would be the length of most transactions."""
LOOK_S = 2.0
"""A transaction that takes longer than usual looks this often whether its topics are still there."""
BEGIN_BACKOFF_S = 0.005
"""A transaction right behind another is refused (CONCURRENT_TRANSACTIONS) until the markers of that one are written, which
takes some milliseconds. Back to back each met aiokafka's pause of 20 ms once; asking too early costs one small request."""
sender.BACKOFF_OVERRIDE = BEGIN_BACKOFF_S  # aiokafka 0.14 has no setting for it
NO_HEADERS: list[tuple[str, bytes | None]] = []


async def new_producer(settings: Settings, transactional_id: str) -> aiokafka.AIOKafkaProducer:
    """Starts a transactional producer. Whoever used the id before is fenced; its open transaction is aborted."""
    kafka = settings.kafka
    producer = aiokafka.AIOKafkaProducer(
        transactional_id=transactional_id,
        transaction_timeout_ms=int(settings.delivery.transaction_timeout_s * 1000),
        acks="all",
        max_batch_size=MAX_BATCH_BYTES,
        max_request_size=max(kafka.max_message_bytes, MAX_BATCH_BYTES) + (1 << 20),
        compression_type=None if kafka.compression == "none" else kafka.compression,
        retry_backoff_ms=RETRY_BACKOFF_MS,
        **client_kwargs(kafka),
    )
    _keep_back(producer._txn_manager, producer._message_accumulator)
    try:
        await producer.start()
    except BaseException:
        await producer.stop()
        raise
    return producer


def _keep_back(manager: Any, accumulator: Any) -> None:
    """What a transaction that failed hasn't sent is never sent, and fails with it.

    aiokafka 0.14 forgets then that these partitions were still to be added to the transaction, and sends their batches without
    that. While the marker of the transaction before isn't written yet the broker takes them for a part of it, and its
    marker commits them: State would go on without the outputs.
    """
    usual, again = manager.error_transaction, accumulator.reenqueue

    def give_up(batch: Any, why: BaseException) -> None:
        batch.failure(why)
        batch._drain_waiter.exception(), batch.future.exception()  # asked for, or asyncio says that nobody did

    def error_transaction(why: BaseException) -> None:
        usual(why)
        for tp in list(accumulator._batches):
            for batch in accumulator._batches.pop(tp):
                accumulator._pending_batches.add(batch)  # one that came back is taken out of there when it ends
                give_up(batch, why)
        manager.wait_for_transaction_end().exception()  # told to whoever waits; nobody may

    def reenqueue(batch: Any) -> None:
        """One that was on its way when the transaction failed, and would be sent once more."""
        if manager.is_in_transaction():
            again(batch)
        else:
            give_up(batch, KafkaError("its transaction has failed"))

    manager.error_transaction, accumulator.reenqueue = error_transaction, reenqueue


@asynccontextmanager
async def in_transaction(producer: Any, topics: Iterable[str] = ()) -> AsyncIterator[None]:
    """Begins a transaction; commits it at the end. What fails within leaves it open.

    Args:
        producer: the lane's own.
        topics: what it needs. One that isn't there any more ends it; aiokafka would ask for it for ever, 100 times a second.

    Raises:
        KafkaError: refused, timed out, fenced, or a topic is missing; the next producer with this id aborts it.
    """
    looking = _Look(producer, frozenset(topics))
    try:
        await producer.begin_transaction()
        looking.later()
        yield
        await producer.commit_transaction()
    except (IllegalOperation, AssertionError) as error:
        # No KafkaError of aiokafka's: its sender met one beside us, and has left the transaction before we sent all.
        met = producer._txn_manager.wait_for_transaction_end()
        if met.done() and met.exception() is not None:
            raise met.exception() from error
        raise KafkaError(f"the producer isn't in its transaction any more ({error})") from error
    finally:
        looking.end()


class _Look:
    """Looks now and then, as long as a transaction lasts, whether its topics are there. Costs a timer when it is quick."""

    def __init__(self, producer: Any, topics: frozenset[str]) -> None:
        self._producer, self._topics = producer, topics
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def later(self) -> None:
        if self._topics:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._begin)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def _begin(self) -> None:
        self._task = asyncio.ensure_future(self._look())

    async def _look(self) -> None:
        gone = await missing(self._producer.client, self._topics)
        manager = self._producer._txn_manager
        if gone and manager.is_in_transaction():
            manager.error_transaction(UnknownTopicOrPartitionError(", ".join(sorted(gone))))
        elif not gone:
            self.later()


@dataclass(slots=True)
class Transaction:
    """A decided batch on its way out."""

    out: Outbox
    number: int
    records: int
    posted: list[Any]
    size_bytes: int

    async def write(
        self,
        producer: Any,
        stage: "Stage",
        tp: TopicPartition,
        offset: int | None,
        group: str,
        reached: int | None = None,
    ) -> int | None:
        """Commits it.

        Args:
            producer: the lane's own.
            stage: whose changelog it is.
            tp: the input partition.
            offset: the input offset to commit, or None without input.
            group: the consumer group.
            reached: the changelog offset that the local copy has reached.

        Returns:
            The changelog offset that the local copy reaches with this batch (that of the commit marker), or None when
            State doesn't change.

        Raises:
            KafkaError: refused, timed out or fenced; the transaction is aborted or will be by the next producer.
            ChangelogLost: the changelog is another than the one that State was written to; nothing is committed.
        """
        needed = {tp.topic, stage.changelog, *(topic for (topic, _), rows in self.out.sends.items() if rows)}
        async with in_transaction(producer, needed):
            pending = await self._send(producer, stage, tp.partition)
            rows: list[Row] = [(key, value, NO_HEADERS) for key, value in self.out.changelog.items()]
            changelog, count = await send_rows(producer, stage.changelog, tp.partition, rows)
            crash.at("sent")
            if offset is not None:
                await producer.send_offsets_to_transaction({tp: offset}, group)
            await acknowledged(producer, [*pending, *changelog])
            _check_place(stage.changelog, tp.partition, changelog, reached)
            crash.at("uncommitted")
        crash.at("committed")
        return marker_behind(changelog, count) if changelog else None

    async def _send(self, producer: Any, stage: "Stage", partition: int) -> list[Any]:
        futures: list[Any] = []
        for (topic, where), rows in self.out.sends.items():
            if not rows:
                continue
            targets = {where: rows} if where is not None else stage.delivery.by_partition(topic, rows, partition)
            for target, its in targets.items():
                sent, _ = await send_rows(producer, topic, target, its)
                futures += sent
        return futures


def _check_place(changelog: str, partition: int, sent: list[Any], reached: int | None) -> None:
    """A lane is the only writer of its changelog partition, so what it writes stands behind all it wrote before.

    A topic that was deleted and made again between two transactions takes the next one as if nothing had happened; what
    stood in it is gone, and whoever restores from it later would find a part of State and take it for all.
    """
    if sent and reached is not None and sent[0].result().offset <= reached:
        raise ChangelogLost(
            f"changelog {changelog}, partition {partition}, gave offset {sent[0].result().offset} for what comes after "
            f"{reached}: it was deleted and made again; it is written anew"
        )


async def acknowledged(producer: Any, futures: list[Any]) -> None:
    """Waits until all batches are acknowledged.

    When the transaction fails beside them, for example because a topic is refused, some are never answered: they would be waited
    for until the stall watch ends the worker.
    """
    sent = asyncio.gather(*futures)
    sent.add_done_callback(lambda late: late.cancelled() or late.exception())  # also when nobody waits any more
    failed = producer._txn_manager.wait_for_transaction_end()
    await asyncio.wait([sent, failed], return_when=asyncio.FIRST_COMPLETED)
    if not sent.done():
        failed.result()  # raises why
    await sent


async def send_rows(producer: Any, topic: str, partition: int, rows: list[Row]) -> tuple[list[Any], int]:
    """Fills record batches and hands them to the producer.

    The builder inside aiokafka's BatchBuilder is called directly: its own append costs three times the work it does.

    Returns:
        The futures of the batches, in order, and how many records the last one holds.
    """
    futures: list[Any] = []
    now_ms = int(time.time() * 1000)
    batch, append, count = None, None, 0
    for key, value, headers in rows:
        if append is None or append(count, now_ms, key, value, headers) is None:
            if batch is not None:
                futures.append(await _close(producer, batch, count, topic, partition))
            batch, count = producer.create_batch(), 0
            append = batch._builder.append
            append(0, now_ms, key, value, headers)  # the first record of a batch is taken whatever its size
        count += 1
    if batch is not None:
        futures.append(await _close(producer, batch, count, topic, partition))
    return futures, count


def marker_behind(sent: list[Any], count: int) -> int:
    """The offset of the commit marker behind batches of one partition: what `send_rows` gave, acknowledged."""
    return int(sent[-1].result().offset) + count  # the last batch's records - 1, + 1 for the marker


async def _close(producer: Any, batch: Any, count: int, topic: str, partition: int) -> Any:
    batch._relative_offset = count
    batch.close()
    await find(producer.client, topic, partition)
    return await producer.send_batch(batch, topic, partition=partition)
