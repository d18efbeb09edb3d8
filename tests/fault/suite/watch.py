"""Looks at the group from outside while a run goes on: committed offsets beside log ends, and how long none moved."""

import asyncio
import threading
import time
from dataclasses import dataclass
from typing import Any

import aiokafka
import psutil
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError
from aiokafka.structs import TopicPartition

from tests.fault.suite.load import PARTITIONS

__all__ = ["Level", "Sample", "Watch", "level_of", "longest_stall_s"]

EVERY_S = 0.2
INPUTS = ("raw", "model-requests")
OUTPUTS = ("clean-events", "sink-noise", "dead-letter", "headrace-classify-changelog", "raw")


@dataclass(frozen=True)
class Sample:
    """Committed offsets, and log ends (of uncommitted records too) that were asked for after them."""

    at: float
    committed: dict[tuple[str, int], int]
    ends: dict[tuple[str, int], int]


class Watch:
    """Samples from a thread of its own; a broker that doesn't answer gives no sample."""

    def __init__(self, bootstrap: str, prefix: str) -> None:
        self.bootstrap, self.prefix = bootstrap, prefix
        self.samples: list[Sample] = []
        self._ending = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="watch")

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._ending.set()
        self._thread.join(30)

    @property
    def last(self) -> Sample:
        return self.samples[-1] if self.samples else Sample(0.0, {}, {})

    async def _run(self) -> None:
        while not self._ending.is_set():
            try:
                await self._connected()
            except (KafkaError, OSError, TimeoutError):
                await asyncio.sleep(0.5)

    async def _connected(self) -> None:
        client = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap, request_timeout_ms=5000)
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=self.bootstrap, request_timeout_ms=5000)
        try:
            async with asyncio.timeout(6):
                await client.start()
                await consumer.start()
            await asyncio.sleep(0)
            while not self._ending.is_set():
                async with asyncio.timeout(6):
                    await self._sample(client, consumer)
                await asyncio.sleep(EVERY_S)
        finally:
            for each in (client.close, consumer.stop):
                try:
                    async with asyncio.timeout(2):
                        await each()
                except (KafkaError, OSError, TimeoutError):
                    pass

    async def _sample(self, client: Any, consumer: Any) -> None:
        offsets = await client.list_consumer_group_offsets(f"{self.prefix}headrace")
        at, cut = time.monotonic(), len(self.prefix)
        committed = {
            (tp.topic[cut:], tp.partition): entry.offset
            for tp, entry in offsets.items()
            if tp.topic[cut:] in INPUTS and entry.offset >= 0
        }
        tps = [TopicPartition(self.prefix + name, p) for name in OUTPUTS for p in range(PARTITIONS)]
        ends = await consumer.end_offsets(tps)
        self.samples.append(Sample(at, committed, {(tp.topic[cut:], tp.partition): end for tp, end in ends.items()}))


def longest_stall_s(samples: list[Sample], since: float = 0.0) -> float:
    """The longest that a partition of the input with records to read didn't move, in seconds."""
    longest, begun = 0.0, dict[int, tuple[int, float]]()
    for sample in samples:
        if sample.at < since:
            continue
        for partition in range(PARTITIONS):
            stands = sample.committed.get(("raw", partition))
            if stands is None:
                continue
            if stands >= sample.ends.get(("raw", partition), 0):
                begun.pop(partition, None)
                continue
            was, at = begun.get(partition, (-1, 0.0))
            if was != stands:
                begun[partition] = (stands, sample.at)
            else:
                longest = max(longest, sample.at - at)
    return longest


@dataclass(frozen=True)
class Level:
    """What a process holds."""

    threads: int
    handles: int
    memory_mb: int


def level_of(pid: int) -> Level:
    process = psutil.Process(pid)
    with process.oneshot():
        return Level(process.num_threads(), process.num_fds(), process.memory_info().rss >> 20)
