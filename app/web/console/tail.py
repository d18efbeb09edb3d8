"""The newest results, sampled: at 30,000 a second nobody reads them all, and reading them would cost a core."""

import logging
import time
from collections import deque
from typing import Any

import aiokafka
import msgspec
from aiokafka.structs import ConsumerRecord, TopicPartition

from app.kafka import client_kwargs
from app.settings import Settings

__all__ = ["Shown", "Tail"]

log = logging.getLogger("headrace.web")

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
        until, found = time.monotonic() + FETCH_MS / 1000, []
        waiting = set(moved)
        while waiting and (left_ms := int((until - time.monotonic()) * 1000)) > 0:
            for tp, records in (await consumer.getmany(*waiting, timeout_ms=left_ms)).items():
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
            consumer: Any = aiokafka.AIOKafkaConsumer(
                group_id=None, enable_auto_commit=False, isolation_level="read_committed", fetch_max_wait_ms=50,
                max_poll_records=KEPT * partitions, **client_kwargs(self._settings.kafka),
            )  # fmt: skip
            try:
                await consumer.start()
            except BaseException:  # also when it took too long: its tasks would go on
                await consumer.stop()
                raise
            tps = [TopicPartition(self._topic, p) for p in range(partitions)]
            consumer.assign(tps)
            consumer.pause(*tps)
            self._consumer = consumer
        return self._consumer

    async def close(self) -> None:
        """Nobody looks any more."""
        if self._consumer is not None:
            consumer, self._consumer = self._consumer, None
            await consumer.stop()


def show(record: ConsumerRecord[bytes, bytes]) -> Shown | None:
    """A result as it is shown; None: it can't be read."""
    try:
        shown = _decode(record.value or b"")
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    shown.at_ms = record.timestamp
    return shown
