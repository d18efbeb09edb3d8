"""The newest results, sampled: at 30,000 a second nobody reads them all, and reading them would cost a core."""

import contextlib
import time
from collections import deque

import aiokafka
import msgspec
from aiokafka.structs import ConsumerRecord, TopicPartition

from app.delivery.probe import probe
from app.settings import Settings
from app.web.follow import UNREADABLE

__all__ = ["Shown", "Tail"]

KEPT = 50
FETCH_MS = 150
"""All that is wanted is in the broker's memory."""


class Shown(msgspec.Struct, kw_only=True):
    """What is shown of a result."""

    event_id: str = ""
    event_type: str = ""
    task: str = ""
    category: str = ""
    tier: str = ""
    confidence: float | None = None
    why: str = ""
    at_ms: int = 0
    """When it was written."""


_decode = msgspec.json.Decoder(Shown, strict=False).decode


class Tail:
    """Looks at the end of `ai-results` when it is asked to. Between two looks nothing is fetched."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._topic = settings, settings.topic("ai-results")
        self._consumer: aiokafka.AIOKafkaConsumer | None = None
        self._open = contextlib.AsyncExitStack()
        self._seen: dict[TopicPartition, int] = {}
        self.kept: deque[Shown] = deque(maxlen=KEPT)
        """The newest last."""

    async def look(self, partitions: int) -> None:
        """Takes in the newest of what came since the last look.

        Raises:
            KafkaError: it can't be read now.
        """
        consumer = await self._opened(partitions)
        tps = list(consumer.assignment())
        ends = await consumer.end_offsets(tps)
        moved = [tp for tp in tps if ends[tp] > self._seen.get(tp, 0)]
        for tp in moved:
            consumer.seek(tp, max(self._seen.get(tp, 0), ends[tp] - KEPT))
            consumer.resume(tp)
        until, most, found = time.monotonic() + FETCH_MS / 1000, KEPT * partitions, []
        waiting = set(moved)
        while waiting and (left_ms := int((until - time.monotonic()) * 1000)) > 0:
            for tp, records in (await consumer.getmany(*waiting, timeout_ms=left_ms, max_records=most)).items():
                found += records[-KEPT:]
                if await consumer.position(tp) >= ends[tp]:
                    waiting.discard(tp)
        for tp in moved:
            consumer.pause(tp)
            self._seen[tp] = ends[tp]
        found.sort(key=lambda record: record.timestamp)
        self.kept.extend(shown for record in found[-KEPT:] if (shown := show(record)) is not None)

    async def _opened(self, partitions: int) -> aiokafka.AIOKafkaConsumer:
        if self._consumer is None:
            consumer = await self._open.enter_async_context(probe(self._settings.kafka))
            tps = [TopicPartition(self._topic, p) for p in range(partitions)]
            consumer.assign(tps)
            consumer.pause(*tps)
            self._consumer = consumer
        return self._consumer

    async def close(self) -> None:
        """Nobody looks any more."""
        self._consumer = None
        await self._open.aclose()


def show(record: ConsumerRecord[bytes, bytes]) -> Shown | None:
    """A result as it is shown; None: it can't be read."""
    try:
        shown = _decode(record.value or b"")
    except UNREADABLE:
        return None
    shown.at_ms = record.timestamp
    return shown
