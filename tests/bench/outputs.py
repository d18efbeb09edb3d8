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

__all__ = ["Outcome", "await_progress", "drop", "judge", "make"]

OUTPUTS = ("clean-events", "sink-noise", "dead-letter")
POLL_S = 0.25
STALL_S = 60.0


class EventId(msgspec.Struct, gc=False):
    event_id: str


@dataclass
class Outcome:
    """What was found in the output topics."""

    begin: float = 0.0
    """Append time of the first output record, seconds since the epoch."""
    end: float = 0.0
    records: int = 0
    at_begin: int = 0
    """Records with the first append time: their work was done before the clock started."""
    wrong: list[str] = field(default_factory=list)


async def make(bootstrap: str, names: list[str], stamped: bool) -> None:
    """Makes topics; `stamped` ones tell when the broker appended each record."""
    config = {"message.timestamp.type": "LogAppendTime"} if stamped else {}
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(name, PARTITIONS, 1, topic_configs=config) for name in names])
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


async def await_progress(bootstrap: str, group: str, topic: str, count: int, alive: Callable[[], bool]) -> None:
    """Waits until a group has committed `count` records of a topic, or fails when it ends or stalls."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    loop = asyncio.get_running_loop()
    moved, last = loop.time(), -1
    try:
        while last < count:
            await asyncio.sleep(POLL_S)
            try:
                found = await admin.list_consumer_group_offsets(group)
            except KafkaError:  # the coordinator isn't there before a group's first member
                found = {}
            done = sum(max(0, o.offset) for tp, o in found.items() if tp.topic == topic)
            if done != last:
                moved, last = loop.time(), done
            elif not alive() or loop.time() - moved > STALL_S:
                raise TimeoutError(f"{group} ended or stalled at {last} of {count}")
    finally:
        await admin.close()


async def judge(bootstrap: str, prefix: str, expected: Expected) -> Outcome:
    """Reads all outputs and compares them with the input."""
    outcome = Outcome()
    decode = msgspec.json.Decoder(EventId).decode
    stamps: Counter[int] = Counter()
    for topic in OUTPUTS:
        ids: Counter[str] = Counter()
        dead: Counter[int] = Counter()
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap, isolation_level="read_committed", enable_auto_commit=False,
            max_partition_fetch_bytes=8 << 20, check_crcs=False,
        )  # fmt: skip
        await consumer.start()
        try:
            tps = [TopicPartition(prefix + topic, p) for p in range(PARTITIONS)]
            consumer.assign(tps)
            await consumer.seek_to_beginning(*tps)
            ends = await consumer.end_offsets(tps)
            while any([await consumer.position(tp) < ends[tp] for tp in tps]):
                for records in (await consumer.getmany(timeout_ms=300)).values():
                    stamps.update([r.timestamp for r in records])
                    if topic == "dead-letter":
                        dead.update([zlib.crc32(r.value) for r in records])
                    else:
                        ids.update([decode(r.value).event_id for r in records])
        finally:
            await consumer.stop()
        if topic == "dead-letter":
            if dead != expected.broken:
                outcome.wrong.append(f"dead-letter: {dead.total()} records for {expected.broken.total()}")
            continue
        want = expected.clean if topic == "clean-events" else expected.noise
        copies = ids.total() - len(ids)
        if copies or ids.keys() != want:
            lost, invented = len(want - ids.keys()), len(ids.keys() - want)
            outcome.wrong.append(f"{topic}: {lost} lost, {invented} invented, {copies} copies")
    if stamps:
        first, last = min(stamps), max(stamps)
        outcome.begin, outcome.end = first / 1000, last / 1000
        outcome.records, outcome.at_begin = stamps.total(), stamps[first]
    return outcome
