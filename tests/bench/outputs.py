"""The topics of a run: made before it, and read after it by a client of their own."""

import asyncio
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import aiokafka
import msgspec
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError
from aiokafka.structs import TopicPartition

from tests.bench.data import PARTITIONS, Expected

__all__ = ["OUTPUTS", "PARTITIONS", "RESULTS", "Bar", "Outcome", "await_progress", "drop", "judge", "make", "no_bar"]

OUTPUTS = ("clean-events", "sink-noise", "dead-letter")
RESULTS = "ai-results"
POLL_S = 0.25
STALL_S = 60.0
Bar = Callable[[int], object]
"""Told how many events more are done."""


def no_bar(more: int) -> None:
    """Shows nothing."""


class EventId(msgspec.Struct, gc=False):
    event_id: str


@dataclass
class Outcome:
    """What was found in the output topics."""

    stamps: Counter[int] = field(default_factory=Counter)
    """Records by the broker's append time in ms."""
    wrong: list[str] = field(default_factory=list)

    def interval(self, events: int, not_before: float = 0.0) -> tuple[float, float, float]:
        """Begin and end of the measured time in seconds since the epoch, and the input events that fall into it.

        It runs from the first output, or the first after `not_before`, to the last. Outputs with the first stamp don't
        count: their work was done before the clock started. Events are as many as their outputs' share.
        """
        counted = {ms: n for ms, n in self.stamps.items() if ms >= not_before * 1000}
        if len(counted) < 2:
            return 0.0, 0.0, 0.0
        first, last = min(counted), max(counted)
        share = (sum(counted.values()) - counted[first]) / self.stamps.total()
        return first / 1000, last / 1000, events * share


async def make(bootstrap: str, names: list[str], stamped: bool, partitions: int = PARTITIONS) -> None:
    """Makes topics; `stamped` ones tell when the broker appended each record."""
    config = {"message.timestamp.type": "LogAppendTime"} if stamped else {}
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(name, partitions, 1, topic_configs=config) for name in names])
    finally:
        await admin.close()


async def drop(bootstrap: str, prefix: str) -> None:
    """Deletes all topics with a prefix, so that rounds don't fill the disk."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.delete_topics([name for name in await admin.list_topics() if name.startswith(prefix)])
    finally:
        await admin.close()


async def await_progress(
    bootstrap: str, group: str, topic: str, count: int, alive: Callable[[], bool], bar: Bar = no_bar
) -> str:
    """Waits until a group has committed `count` records of a topic.

    Returns:
        Nothing, or why it won't get there: the processes ended, or nothing moved for a minute.
    """
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    loop = asyncio.get_running_loop()
    moved, last = loop.time(), 0
    try:
        while True:
            await asyncio.sleep(POLL_S)
            lived, refused = alive(), ""
            try:
                found = await admin.list_consumer_group_offsets(group)
            except KafkaError as error:  # the coordinator isn't there before a group's first member
                found, refused = {}, f"; the broker said {error!r}"
            done = sum(max(0, o.offset) for tp, o in found.items() if tp.topic == topic)
            if done > last:
                bar(done - last)
                moved, last = loop.time(), done
            if done >= count:
                return ""
            if not lived:
                return f"ended at {last} of {count} events{refused}"
            if loop.time() - moved > STALL_S:
                return f"stalled at {last} of {count} events{refused}"
    finally:
        await admin.close()


async def judge(
    bootstrap: str, prefix: str, expected: Expected, *, results: bool = False, partitions: int = PARTITIONS
) -> Outcome:
    """Reads all outputs and compares them with the input.

    With `results` there must be one result for every clean event, and the stamps are those of the results alone.
    """
    outcome = Outcome()
    for topic in (*OUTPUTS, RESULTS) if results else OUTPUTS:
        ids, dead, stamps = await _read(bootstrap, prefix + topic, topic == "dead-letter", partitions)
        if topic == RESULTS or not results:
            outcome.stamps.update(stamps)
        if topic == "dead-letter":
            if dead != expected.broken:
                lost, invented = (expected.broken - dead).total(), (dead - expected.broken).total()
                outcome.wrong.append(f"dead-letter: {lost} lost, {invented} invented or copies")
            continue
        want = expected.noise if topic == "sink-noise" else expected.clean
        copies = ids.total() - len(ids)
        if copies or ids.keys() != want:
            lost, invented = len(want - ids.keys()), len(ids.keys() - want)
            outcome.wrong.append(f"{topic}: {lost} lost, {invented} invented, {copies} copies")
    return outcome


async def _read(
    bootstrap: str, topic: str, broken: bool, partitions: int
) -> tuple[Counter[str], Counter[int], Counter[int]]:
    """Event ids, or CRCs of broken records, and append times of a topic, read committed."""
    decode = msgspec.json.Decoder(EventId).decode
    ids: Counter[str] = Counter()
    dead: Counter[int] = Counter()
    stamps: Counter[int] = Counter()
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=bootstrap, isolation_level="read_committed", enable_auto_commit=False,
        max_partition_fetch_bytes=8 << 20, check_crcs=False,
    )  # fmt: skip
    await consumer.start()
    try:
        tps = [TopicPartition(topic, p) for p in range(partitions)]
        consumer.assign(tps)
        await consumer.seek_to_beginning(*tps)
        ends = await consumer.end_offsets(tps)
        while any([await consumer.position(tp) < ends[tp] for tp in tps]):
            for records in (await consumer.getmany(timeout_ms=300)).values():
                stamps.update([r.timestamp for r in records])
                if broken:
                    dead.update([zlib.crc32(r.value) for r in records])
                else:
                    ids.update([decode(r.value).event_id for r in records])
    finally:
        await consumer.stop()
    return ids, dead, stamps
