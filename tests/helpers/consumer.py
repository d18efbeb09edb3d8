"""A consumer of logs in memory, with aiokafka's methods: what no broker does on request, at the moment that a test names."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from aiokafka.structs import TopicPartition

from models.events import Received

__all__ = ["FakeConsumer"]


class FakeConsumer:
    """Reads what is in `logs`.

    Args:
        logs: records of each partition, by offset. What isn't there is a marker, or was compacted away.
    """

    def __init__(self, logs: Mapping[TopicPartition, Iterable[Received]]) -> None:
        self.logs = {tp: {record.offset: record for record in records} for tp, records in logs.items()}
        self.assigned = set(self.logs)
        self.starts = dict.fromkeys(self.logs, 0)
        self.ends = {tp: max(log, default=-1) + 1 for tp, log in self.logs.items()}
        self.positions: dict[TopicPartition, int] = {}
        self.committed: dict[TopicPartition, int] = {}
        self.errors: list[Exception] = []
        """Raised by the next reads, one each."""
        self.during: dict[str, Callable[[], Any]] = {}
        """By method: called once, while it is awaited."""

    async def _call(self, name: str) -> None:
        await asyncio.sleep(0)
        found = self.during.pop(name, lambda: None)()
        if asyncio.iscoroutine(found):
            await found

    def add(self, tp: TopicPartition, *records: Received) -> None:
        self.logs[tp].update({record.offset: record for record in records})
        self.ends[tp] = max(self.logs[tp]) + 1

    def assign(self, tps: Iterable[TopicPartition]) -> None:
        self.assigned = set(tps)
        self.positions.clear()

    def assignment(self) -> set[TopicPartition]:
        return set(self.assigned)

    async def beginning_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        await self._call("beginning_offsets")
        return {tp: self.starts[tp] for tp in tps}

    async def end_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        await self._call("end_offsets")
        return {tp: self.ends[tp] for tp in tps}

    def seek(self, tp: TopicPartition, offset: int) -> None:
        self.positions[tp] = offset

    async def position(self, tp: TopicPartition) -> int:
        return self.positions[tp]

    def last_stable_offset(self, tp: TopicPartition) -> int:
        return self.ends[tp]

    def partitions_for_topic(self, topic: str) -> set[int]:
        return {tp.partition for tp in self.logs if tp.topic == topic}

    async def getmany(self, *, timeout_ms: int, max_records: int) -> dict[TopicPartition, list[Received]]:
        await self._call("getmany")
        if self.errors:
            raise self.errors.pop(0)
        found: dict[TopicPartition, list[Received]] = {}
        for tp in sorted(self.assigned):
            at = self.positions.get(tp, self.starts[tp])
            records = [self.logs[tp][o] for o in range(at, self.ends[tp]) if o in self.logs[tp]][:max_records]
            self.positions[tp] = records[-1].offset + 1 if len(records) == max_records else max(at, self.ends[tp])
            max_records -= len(records)
            if records:
                found[tp] = records
            if not max_records:
                break
        if not found:
            await asyncio.sleep(timeout_ms / 10_000)  # a tenth of what a broker would take
        return found

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        await self._call("commit")
        self.committed.update(offsets)
