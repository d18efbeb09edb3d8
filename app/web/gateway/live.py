"""Results as they are written: one consumer a gateway, handed on to every reader that asked.

A place in the stream is the next offset of every partition, so a reader that comes back with its last id misses nothing and
gets nothing twice, at this gateway or another. What lies between that place and now is read by a consumer of its own; then
the reader is joined to the live one, at exactly that place.
"""

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import aiokafka
import msgspec
from aiokafka.structs import ConsumerRecord, TopicPartition

from app.delivery.probe import probe
from app.kafka import KAFKA_FAILURES
from app.settings import Settings
from app.web.follow import UNREADABLE

__all__ = ["BadPlace", "Filter", "Live", "NotReachable", "Offered", "Reader", "SlowReader", "read_place"]

log = logging.getLogger("headrace.web")

POLL_MS = 200
JOIN_GAP = 500
"""A reader that is fewer offsets behind is joined to the live consumer while it reads them."""
START_TIMEOUT_S = 10.0
RETRY_S = 1.0
IDLE_S = 10.0
"""Nobody has read for so long: the consumer is stopped."""

Place = dict[int, int]
"""Next offset by partition."""

_PLACE = re.compile(r"(\d{1,5}-\d{1,18})(\.\d{1,5}-\d{1,18}){0,2000}", re.ASCII)


class BadPlace(ValueError):
    """A last id that no stream of this deployment gave."""


class SlowReader(Exception):
    """The reader takes less than comes; it may come back with its last id."""


class NotReachable(Exception):
    """Kafka isn't there, or went away while a reader caught up."""


class Filtered(msgspec.Struct):
    """What filters look at."""

    task: str = ""
    category: str = ""
    tier: str = ""
    entity: str = ""


_decode = msgspec.json.Decoder(Filtered).decode


class Filter(msgspec.Struct, frozen=True):
    """Which results a reader wants: for each field, any of these; empty: all."""

    task: frozenset[str] = frozenset()
    category: frozenset[str] = frozenset()
    tier: frozenset[str] = frozenset()
    entity: frozenset[str] = frozenset()

    def takes(self, result: Filtered) -> bool:
        return (
            (not self.task or result.task in self.task)
            and (not self.category or result.category in self.category)
            and (not self.tier or result.tier in self.tier)
            and (not self.entity or result.entity in self.entity)
        )


class Offered(msgspec.Struct, frozen=True):
    """A result for one reader."""

    value: bytes
    """Empty: retention has removed results that this reader hasn't seen."""
    place: str
    """The reader's place behind it: what it gives to go on from here."""


def read_place(text: str, partitions: int) -> Place:
    """A place as it was given out.

    Raises:
        BadPlace: nothing that was given out looks so.
    """
    if not _PLACE.fullmatch(text):
        raise BadPlace("it isn't an id of this stream")
    parts = [part.partition("-") for part in text.split(".")]
    place = {int(p): int(at) for p, _, at in parts}
    if len(place) != len(parts):
        raise BadPlace("it names a partition twice")
    if max(place) >= partitions:
        raise BadPlace("it names a partition that isn't there")
    return place


def write_place(place: Mapping[int, int]) -> str:
    return ".".join(f"{partition}-{at}" for partition, at in sorted(place.items()))


class Reader:
    """One stream's reader. While it catches up, what comes live is held; `join` queues that, and `take` waits for the next."""

    def __init__(self, wanted: Filter, place: Place | None, most: int) -> None:
        self.wanted, self.place, self._most = wanted, dict(place or {}), most
        self.resumed = place is not None
        self._held: list[tuple[int, int, bytes | None, Filtered | None]] | None = None
        self._queue: asyncio.Queue[Offered | None] = asyncio.Queue()
        self.dropped = False

    def pass_by(self, partition: int, next_offset: int, value: bytes | None, seen: Filtered | None) -> Offered | None:
        """Takes note of a record, in the order of its partition; gives it back if it is wanted and new."""
        if next_offset <= self.place.get(partition, 0):
            return None
        self.place[partition] = next_offset
        if value is None or seen is None or not self.wanted.takes(seen):
            return None
        return Offered(value, write_place(self.place))

    def offer(self, partition: int, next_offset: int, value: bytes | None, seen: Filtered | None) -> None:
        """Called with every record that comes live."""
        if self.dropped:
            return
        if self._held is not None:
            self._held.append((partition, next_offset, value, seen))
            self.dropped = len(self._held) > self._most
            return
        offered = self.pass_by(partition, next_offset, value, seen)
        if offered is None:
            return
        if self._queue.qsize() >= self._most:
            self.dropped = True
            self._queue.put_nowait(None)
        else:
            self._queue.put_nowait(offered)

    def hold(self) -> None:
        """From now on what comes live waits for `join`."""
        self._held = []

    def join(self) -> None:
        """All before what is held has passed by.

        Raises:
            SlowReader: more came meanwhile than this reader may keep.
        """
        held, self._held = self._held or [], None
        if self.dropped:
            raise SlowReader
        for each in held:
            self.offer(*each)

    async def take(self, wait_s: float) -> Offered | None:
        """The next result, or None when there was none for so long: time for a sign of life.

        Raises:
            SlowReader: more waited than this reader may keep; those that wait are handed out first.
        """
        try:
            async with asyncio.timeout(wait_s):
                found = await self._queue.get()
        except TimeoutError:
            return None
        if found is None:
            raise SlowReader
        return found

    @property
    def mark(self) -> str:
        """The place now, where nothing waits: also what the filter left out is behind it."""
        return write_place(self.place) if self._queue.empty() else ""


class Live:
    """Keeps the consumer while anybody reads."""

    def __init__(self, settings: Settings, partitions: Callable[[], int]) -> None:
        self._settings, self._partitions = settings, partitions
        self._topic = settings.topic("ai-results")
        self._readers: set[Reader] = set()
        self._place: Place | None = None
        """Of the live consumer; None while it isn't there."""
        self._there = asyncio.Event()
        self._wanted = asyncio.Event()
        self._left_at = 0.0
        self.readers = 0
        """Readers that are there, also those that catch up."""

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            await self._wanted.wait()
            try:
                async with probe(self._settings.kafka) as consumer:
                    await self._follow(consumer)
            except KAFKA_FAILURES as error:
                log.warning("results can't be followed (%s); trying again", type(error).__name__)
                await asyncio.sleep(RETRY_S)

    async def _follow(self, consumer: aiokafka.AIOKafkaConsumer) -> None:
        tps = [TopicPartition(self._topic, p) for p in range(self._partitions())]
        consumer.assign(tps)
        if self._place is None:
            self._place = {tp.partition: at for tp, at in (await consumer.end_offsets(tps)).items()}
        for tp in tps:
            consumer.seek(tp, self._place[tp.partition])
        self._there.set()
        while self._wanted.is_set():
            for tp, records in (await consumer.getmany(timeout_ms=POLL_MS)).items():
                for record in records:
                    self._hand_on(record)
                position = await consumer.position(tp)  # behind transaction markers too
                self._place[tp.partition] = max(self._place[tp.partition], position)
            if not self.readers and time.monotonic() - self._left_at > IDLE_S:
                self._wanted.clear()
        self._there.clear()
        self._place = None

    def _hand_on(self, record: ConsumerRecord[bytes, bytes]) -> None:
        assert self._place is not None
        self._place[record.partition] = record.offset + 1
        if self._readers:
            seen = seen_of(record.value)
            for reader in self._readers:
                reader.offer(record.partition, record.offset + 1, record.value, seen)

    @contextlib.asynccontextmanager
    async def reading(self, wanted: Filter, place: Place | None) -> AsyncIterator[Reader]:
        """A reader from a place on, or from now on. First what `catch_up` gives is to be read.

        Raises:
            NotReachable: Kafka isn't there.
        """
        reader = Reader(wanted, place, self._settings.gateway.stream_items)
        self.readers += 1
        try:
            self._wanted.set()
            async with asyncio.timeout(START_TIMEOUT_S):
                await self._there.wait()
            yield reader
        except TimeoutError:
            if self._there.is_set():
                raise
            raise NotReachable from None
        finally:
            self.readers -= 1
            self._readers.discard(reader)
            self._left_at = time.monotonic()

    async def catch_up(self, reader: Reader) -> AsyncIterator[Offered]:
        """What lies between a reader's place and now. When it ends, the reader gets what comes live.

        Raises:
            SlowReader: more came meanwhile than this reader may keep.
            NotReachable: Kafka went away.
        """
        if not reader.resumed:
            reader.place = dict(self._now())
            self._readers.add(reader)
            return
        try:
            async with probe(self._settings.kafka) as consumer:
                async for offered in self._clamp(consumer, reader):
                    yield offered
                while True:
                    target = dict(self._now())
                    gap = sum(max(0, at - reader.place[p]) for p, at in target.items())
                    if gap <= JOIN_GAP:
                        reader.hold()
                        self._readers.add(reader)  # no await since the target was taken: nothing falls between
                    for partition, end in target.items():
                        async for offered in self._read(consumer, reader, partition, end):
                            yield offered
                    if gap <= JOIN_GAP:
                        reader.join()
                        return
        except KAFKA_FAILURES as error:
            raise NotReachable from error

    def _now(self) -> Place:
        if self._place is None:
            raise NotReachable
        return self._place

    async def _clamp(self, consumer: aiokafka.AIOKafkaConsumer, reader: Reader) -> AsyncIterator[Offered]:
        """A place behind the end becomes the end; one that retention has passed becomes the start, and that is said."""
        tps = [TopicPartition(self._topic, p) for p in self._now()]
        starts, ends = await consumer.beginning_offsets(tps), await consumer.end_offsets(tps)
        place = {tp.partition: min(reader.place.get(tp.partition, 0), ends[tp]) for tp in tps}
        reader.place = {tp.partition: max(place[tp.partition], starts[tp]) for tp in tps}
        if reader.place != place:
            yield Offered(b"", write_place(reader.place))

    async def _read(
        self, consumer: aiokafka.AIOKafkaConsumer, reader: Reader, partition: int, end: int
    ) -> AsyncIterator[Offered]:
        if reader.place[partition] >= end:
            return
        tp = TopicPartition(self._topic, partition)
        consumer.assign([tp])
        consumer.seek(tp, reader.place[partition])
        while await consumer.position(tp) < end:
            for record in (await consumer.getmany(tp, timeout_ms=POLL_MS)).get(tp, []):
                if record.offset < end:
                    offered = reader.pass_by(partition, record.offset + 1, record.value, seen_of(record.value))
                    if offered is not None:
                        yield offered
        reader.place[partition] = max(reader.place[partition], end)


def seen_of(value: Any) -> Filtered | None:
    """What filters look at, of a result that can be read."""
    try:
        return _decode(value) if value else None
    except UNREADABLE:
        return None
