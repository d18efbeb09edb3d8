"""Follows a small topic of one partition, so that every process of a deployment knows what it holds."""

import asyncio
import logging
import time
from collections.abc import Callable

import aiokafka
from aiokafka.errors import KafkaError
from aiokafka.structs import ConsumerRecord, TopicPartition

from app.delivery.probe import probe
from app.errors import HeadraceError
from app.settings import Settings

__all__ = ["Follower"]

log = logging.getLogger("headrace.web")

CHECK_EVERY_S = 1.0
CHECK_TIMEOUT_S = 5.0
"""A broker that doesn't tell the topic's end within this time counts as not reachable."""
RETRY_S = 1.0
FETCH_WAIT_MS = 500
"""The broker answers as soon as there is something; asking more often would be in vain."""

Apply = Callable[[ConsumerRecord[bytes, bytes]], None]


class Follower:
    """Reads a topic from its beginning, then what comes; goes on where it stood when Kafka was away.

    Args:
        settings: for Kafka.
        topic: full name; one partition.
        apply: called with every record, in order.
    """

    def __init__(self, settings: Settings, topic: str, apply: Apply) -> None:
        self._kafka, self._apply = settings.kafka, apply
        self._tp = TopicPartition(topic, 0)
        self._next = 0
        self._said = ""
        self.caught_up = asyncio.Event()
        """All that was there at the start is applied."""
        self.current_at = float("-inf")
        """When Kafka last said where the topic ends (time.monotonic), and all before was applied."""

    @property
    def silent_s(self) -> float:
        """How long it is since this was surely current, seconds."""
        return time.monotonic() - self.current_at

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            try:
                async with probe(self._kafka, fetch_wait_ms=FETCH_WAIT_MS) as consumer:
                    await self._follow(consumer)
            except (KafkaError, HeadraceError, OSError, TimeoutError) as error:
                if self._said != type(error).__name__:
                    self._said = type(error).__name__
                    log.warning("%s can't be read (%s); trying again", self._tp.topic, self._said)
                await asyncio.sleep(RETRY_S)

    async def _follow(self, consumer: aiokafka.AIOKafkaConsumer) -> None:
        tp = self._tp
        consumer.assign([tp])
        start = (await consumer.beginning_offsets([tp]))[tp]
        self._next = max(self._next, start)
        consumer.seek(tp, self._next)
        end, asked = 0, float("-inf")
        while True:
            if time.monotonic() - asked >= CHECK_EVERY_S:
                async with asyncio.timeout(CHECK_TIMEOUT_S):
                    end = (await consumer.end_offsets([tp]))[tp]
                asked = time.monotonic()
                self._said = ""
                if end < self._next:  # the topic was made anew
                    self._next = 0
                    consumer.seek(tp, 0)
            for record in (await consumer.getmany(tp, timeout_ms=int(CHECK_EVERY_S * 1000))).get(tp, []):
                self._apply(record)
            self._next = await consumer.position(tp)
            if self._next >= end:
                self.current_at = max(self.current_at, asked)
                self.caught_up.set()
