"""What became of dead letters: the topic `redriven` has a marker under the position of each that was dealt with."""

import asyncio
import logging
from collections.abc import Mapping

import msgspec
from aiokafka.structs import ConsumerRecord, TopicPartition

from app.delivery.probe import bounds, probe, read_tail
from app.logic.redrive import DeadLetter, position_of
from app.settings import Settings

__all__ = ["Marker", "Markers"]

log = logging.getLogger("headrace.redrive")


class Marker(msgspec.Struct, kw_only=True):
    """A record on `redriven`; the key is the dead letter's `partition/offset`."""

    letter_ms: int
    """The dead letter's timestamp: another one at this place (the topic was made anew) isn't meant."""
    at_ms: int
    to: str
    """The topic; empty when it was discarded."""
    attempt: int


_decode = msgspec.json.Decoder(Marker).decode


class Markers:
    """All there are, as far as they were read.

    Args:
        settings: for Kafka.
    """

    def __init__(self, settings: Settings) -> None:
        self._kafka, self._tp = settings.kafka, TopicPartition(settings.topic("redriven"), 0)
        self._known: dict[str, Marker] = {}
        """By position."""
        self._next = 0
        self._reading = asyncio.Lock()

    async def read(self) -> None:
        """Reads what was added since the last time.

        Raises:
            KafkaError: the topic can't be read. Retryable.
            TimeoutError: likewise.
        """
        async with self._reading, probe(self._kafka) as consumer:
            start = end = 0
            if self._tp.topic in await consumer.topics():
                start, end = (await bounds(consumer, [self._tp]))[self._tp]
            if end < self._next:  # the topic was made anew
                self._known, self._next = {}, 0
            async for record in read_tail(consumer, self._tp, max(start, self._next), end):
                self._take(record)
            self._next = end

    def _take(self, record: ConsumerRecord[bytes, bytes]) -> None:
        """What a record says; who isn't us may have written it."""
        position = (record.key or b"").decode("utf-8", "replace")
        if position_of(position) is None:
            return
        if record.value is None:
            self._known.pop(position, None)
            return
        try:
            self._known[position] = _decode(record.value)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            log.warning("%s/%d is no marker and is left out (%s)", record.topic, record.offset, type(error).__name__)

    def of(self, letter: DeadLetter) -> Marker | None:
        """What became of a dead letter; None: nothing yet."""
        marker = self._known.get(letter.position)
        return marker if marker is not None and marker.letter_ms == letter.at_ms else None

    def before(self, starts: Mapping[int, int]) -> list[str]:
        """Positions of dead letters that retention has removed: those before each partition's first offset."""
        places = ((position, position_of(position)) for position in self._known)
        return [position for position, place in places if place is not None and place[1] < starts.get(place[0], 0)]
