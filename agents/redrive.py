"""Sends dead letters back to the topic of the stage that failed, each once, however often it is asked for; or discards them.

One Kafka transaction writes some records and, for each, a marker under its position into the topic `redriven`. A run reads
the markers first and leaves out what has one. Two runs at a time can't double anything: both use one transactional id, so
the later fences the earlier before it reads the markers.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Set
from dataclasses import dataclass, field

import aiokafka
import msgspec
from aiokafka.errors import KafkaError, ProducerFenced
from aiokafka.structs import TopicPartition

from agents.markers import Marker, Markers
from app import topics
from app.delivery.outbox import Row, size_of
from app.delivery.partitions import partition_for
from app.delivery.probe import bounds, probe, read_tail
from app.delivery.transaction import acknowledged, in_transaction, new_producer, send_rows
from app.errors import BrokerError
from app.logic.redrive import DeadLetter, Selection, examine
from app.settings import Settings

__all__ = ["MAX_ATTEMPTS", "OnProgress", "Redrive", "Tally", "editable_of", "group_of", "may_edit", "targets_of"]

log = logging.getLogger("headrace.redrive")

CHUNK_RECORDS = 500
CHUNK_BYTES = 2 << 20
"""A transaction of this size takes a fraction of a second, so that it can be cut off at any time."""

MAX_ATTEMPTS = 5
"""What came back so often isn't sent again before somebody finds out why."""

OnProgress = Callable[[int, int], None]
"""Told how many records of the dead letter topic were looked at, and how many there are."""
Group = tuple[str, str, str]
"""Reason, stage and topic that it goes to."""


_encode = msgspec.json.Encoder().encode


def targets_of(settings: Settings) -> set[str]:
    """The topics that a dead letter may be sent back to."""
    ours = {settings.topic(topic.name) for topic in topics.OURS if topic.redrivable}
    return ours | {settings.source_topic(source) for source in settings.sources}


def editable_of(settings: Settings) -> set[str]:
    """Those that it may be sent back to with another value."""
    ours = {settings.topic(topic.name) for topic in topics.OURS if topic.editable}
    return ours | {settings.source_topic(source) for source in settings.sources}


def may_edit(letter: DeadLetter, editable: Set[str]) -> bool:
    """Whether it may be sent back with another value: what a stage made isn't to be made up."""
    return letter.topic in editable and not letter.is_output


def group_of(letter: DeadLetter) -> Group:
    return letter.reason or "(none)", letter.stage or "(none)", letter.topic


@dataclass(slots=True)
class Tally:
    """What a run found and did, by group."""

    selected: Counter[Group] = field(default_factory=Counter)
    moved: Counter[Group] = field(default_factory=Counter)
    already: int = 0
    """Sent back or discarded by an earlier run."""
    no_topic: int = 0
    """Its headers name no topic that may be written."""
    too_often: int = 0
    withheld: int = 0
    """Whoever asks may not send it there, or not with another value."""
    stopped: bool = False
    """It was told to stop before it came to the end: doing it again moves the rest."""


class Redrive:
    """One run.

    Args:
        settings: the tree.
        selection: which dead letters.
        max_attempts: one that came back so often stays where it is.
        rate_per_s: records a second; 0: as fast as it goes.
        progress: how far it is.
        edited: values that are sent instead of those that were received, by position.
        withheld: topics that nothing is sent to in this run.
        stop: once it is set, the run ends after the transaction under way.
    """

    def __init__(
        self,
        settings: Settings,
        selection: Selection,
        *,
        max_attempts: int,
        rate_per_s: float = 0.0,
        progress: OnProgress | None = None,
        edited: Mapping[str, bytes | None] | None = None,
        withheld: Set[str] = frozenset(),
        stop: asyncio.Event | None = None,
    ) -> None:
        self._settings, self._selection, self._edited = settings, selection, edited or {}
        self._stop = stop or asyncio.Event()
        self._max_attempts, self._rate = max_attempts, rate_per_s
        self._progress = progress or (lambda done, total: None)
        self._dead, self._redriven = settings.topic("dead-letter"), settings.topic("redriven")
        self._targets, self._editable, self._withheld = targets_of(settings), editable_of(settings), withheld
        self._markers = Markers(settings)
        self._counts: dict[str, int] = {}
        self.tally = Tally()

    async def look(self, *, discard: bool = False) -> Tally:
        """What `run` (or `discard`) would move. Writes nothing."""
        await self._learn()
        async for letter in self._letters(discard=discard):
            self.tally.selected[group_of(letter)] += 1
        return self.tally

    async def run(self) -> Tally:
        """Moves what is selected.

        Raises:
            BrokerError: Kafka fails; what was moved is marked, so the run may be repeated. Retryable.
        """
        return await self._work(discard=False)

    async def discard(self) -> Tally:
        """Marks what is selected as done with, sent back or not: no run moves it any more.

        Raises:
            BrokerError: as `run`.
        """
        return await self._work(discard=True)

    async def _work(self, *, discard: bool) -> Tally:
        await topics.ensure(self._settings)
        producer = await new_producer(self._settings, f"{self._settings.topic('headrace')}-redrive")
        try:
            await self._learn()
            chunk: list[DeadLetter] = []
            size = 0
            async for letter in self._letters(discard=discard):
                self.tally.selected[group_of(letter)] += 1
                chunk.append(letter)
                size += 0 if discard else size_of((letter.key, self._value(letter), list(letter.headers)))
                if len(chunk) >= CHUNK_RECORDS or size >= CHUNK_BYTES:
                    await self._move(producer, chunk, discard=discard)
                    chunk, size = [], 0
            if self._stop.is_set():
                self.tally.stopped = self.tally.stopped or bool(chunk)
                return self.tally
            await self._move(producer, chunk, discard=discard)
            await self._forget_old(producer)
        except ProducerFenced as error:
            raise BrokerError("another redrive was started meanwhile; this one stopped, nothing is doubled") from error
        except (KafkaError, TimeoutError) as error:
            raise BrokerError(
                f"the redrive was cut off ({type(error).__name__}); run it again, what was moved stays moved"
            ) from error
        finally:
            await producer.stop()
        return self.tally

    # -- reading ---------------------------------------------------------------------------------------------------

    async def _learn(self) -> None:
        """Reads the markers, and how many partitions there are."""
        self._counts = await topics.counts(self._settings, [self._dead, *self._targets])
        await self._markers.read()

    async def _letters(self, *, discard: bool = False) -> AsyncIterator[DeadLetter]:
        """What is selected and may be moved (or discarded), partition by partition."""
        tps = [TopicPartition(self._dead, p) for p in range(self._counts.get(self._dead, 0))]
        async with probe(self._settings.kafka) as consumer:
            ranges = await self._ranges(consumer, tps)
            total, before = sum(end - start for _, start, end in ranges), 0
            for tp, start, end in ranges:
                async for record in read_tail(consumer, tp, start, end):  # not what this run brings back
                    if self._stop.is_set():
                        self.tally.stopped = True
                        return
                    letter = examine(record, self._targets)
                    self._progress(before + record.offset - start + 1, total)
                    if self._selection.takes(letter) and self._may_move(letter, discard=discard):
                        yield letter
                before += end - start
            self._progress(total, total)

    async def _ranges(
        self, consumer: aiokafka.AIOKafkaConsumer, tps: list[TopicPartition]
    ) -> list[tuple[TopicPartition, int, int]]:
        """What is to be read: from an offset up to another."""
        whole = await bounds(consumer, tps, self._selection.since_ms)
        if self._selection.positions is None:
            return [(tp, start, end) for tp, (start, end) in whole.items()]
        places = [(TopicPartition(self._dead, p), offset) for p, offset in self._selection.positions]
        return [(tp, at, at + 1) for tp, at in places if tp in whole and whole[tp][0] <= at < whole[tp][1]]

    def _may_move(self, letter: DeadLetter, *, discard: bool) -> bool:
        if self._markers.of(letter) is not None:
            self.tally.already += 1
        elif discard:
            return True
        elif letter.topic not in self._counts:
            self.tally.no_topic += 1
        elif letter.topic in self._withheld or self._made_up(letter):
            self.tally.withheld += 1
        elif letter.attempt >= self._max_attempts:
            self.tally.too_often += 1
        else:
            return True
        return False

    def _made_up(self, letter: DeadLetter) -> bool:
        return letter.position in self._edited and not may_edit(letter, self._editable)

    # -- writing ---------------------------------------------------------------------------------------------------

    def _value(self, letter: DeadLetter) -> bytes | None:
        return self._edited.get(letter.position, letter.value)

    async def _move(
        self, producer: aiokafka.AIOKafkaProducer, letters: list[DeadLetter], *, discard: bool = False
    ) -> None:
        """One transaction: the records and their markers; of what is discarded, the markers."""
        if not letters:
            return
        begun, now_ms = time.monotonic(), int(time.time() * 1000)
        rows: dict[tuple[str, int], list[Row]] = {}
        markers: list[Row] = []
        for letter in letters:
            to, attempt = ("", letter.attempt) if discard else (letter.topic, letter.attempt + 1)
            if not discard:
                place = (letter.topic, self._partition(letter))
                rows.setdefault(place, []).append((letter.key, self._value(letter), list(letter.headers)))
            marker = Marker(letter_ms=letter.at_ms, at_ms=now_ms, to=to, attempt=attempt)
            markers.append((letter.position.encode(), _encode(marker), []))
        rows[self._redriven, 0] = markers
        await _write(producer, rows)
        for letter in letters:
            self.tally.moved[group_of(letter)] += 1
        if self._rate:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, len(letters) / self._rate - (time.monotonic() - begun))):
                    await self._stop.wait()

    def _partition(self, letter: DeadLetter) -> int:
        """Where it was read: copies of an event meet there, whatever partitioner its producer has."""
        count = self._counts[letter.topic]
        if letter.topic_partition is not None and letter.topic_partition < count:
            return letter.topic_partition
        return partition_for(letter.key, count) if letter.key else 0

    async def _forget_old(self, producer: aiokafka.AIOKafkaProducer) -> None:
        """Removes the markers of dead letters that retention has removed."""
        tps = [TopicPartition(self._dead, p) for p in range(self._counts.get(self._dead, 0))]
        async with probe(self._settings.kafka) as consumer:
            starts = {tp.partition: at for tp, at in (await consumer.beginning_offsets(tps)).items()} if tps else {}
        old: list[Row] = [(position.encode(), None, []) for position in self._markers.before(starts)]
        for at in range(0, len(old), CHUNK_RECORDS):
            await _write(producer, {(self._redriven, 0): old[at : at + CHUNK_RECORDS]})


async def _write(producer: aiokafka.AIOKafkaProducer, rows: dict[tuple[str, int], list[Row]]) -> None:
    """All of it, or nothing."""
    try:
        async with in_transaction(producer):
            pending = [
                future for (topic, p), its in rows.items() for future in (await send_rows(producer, topic, p, its))[0]
            ]
            await acknowledged(producer, pending)
    except ProducerFenced:
        raise  # the other one has settled it
    except BaseException:
        await _abort(producer)
        raise


async def _abort(producer: aiokafka.AIOKafkaProducer) -> None:
    try:
        await producer.abort_transaction()
    except (KafkaError, AssertionError) as error:
        # Not in a state to be aborted any more: the broker does it when the next run starts its producer.
        log.warning("the transaction could not be aborted (%s)", type(error).__name__)
