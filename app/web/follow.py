"""Follows a small topic of one partition, so that every process of a deployment knows what it holds."""

import asyncio
import logging
import time
from typing import Protocol

import aiokafka
import msgspec
from aiokafka.structs import ConsumerRecord, TopicPartition

from app import metrics
from app.delivery.probe import probe
from app.kafka import KAFKA_FAILURES
from app.settings import Settings

__all__ = ["STALE_S", "UNREADABLE", "Followed", "Follower", "skipped"]

log = logging.getLogger("headrace.web")

CHECK_EVERY_S = 1.0
CHECK_TIMEOUT_S = 5.0
"""A broker that doesn't tell the topic's end within this time counts as not reachable."""
RETRY_S = 1.0
STALE_S = 30.0
"""Who couldn't read a topic for so long doesn't know what was revoked since."""
FETCH_WAIT_MS = 500
"""The broker answers as soon as there is something; asking more often would be in vain."""

UNREADABLE = (msgspec.MsgspecError, RecursionError)
"""What msgspec raises for damaged values; RecursionError: they are nested too deep."""


class Followed(Protocol):
    """What a topic tells."""

    def apply(self, record: ConsumerRecord[bytes, bytes]) -> None:
        """Takes a record, in order; none twice, unless `clear` was called."""

    def clear(self) -> None:
        """Forgets what the topic told: it was made anew, and is read from its beginning."""


def skipped(record: ConsumerRecord[bytes, bytes], why: str) -> None:
    """Logs and counts a record that can't be read: it must not end who follows the topic."""
    metrics.UNREADABLE_RECORDS.labels(record.topic).inc()
    log.warning("%s, offset %d: can't be read (%s); left out", record.topic, record.offset, why)


class Follower:
    """Reads a topic from its beginning, then what comes; goes on where it stood when Kafka was away.

    Args:
        settings: for Kafka.
        topic: full name; one partition.
        book: takes every record.
    """

    def __init__(self, settings: Settings, topic: str, book: Followed) -> None:
        self._kafka, self._book = settings.kafka, book
        self._tp = TopicPartition(topic, 0)
        self._next = 0
        self._said = ""
        self.current_at = float("-inf")
        """When Kafka last said where the topic ends (time.monotonic), and all before was applied."""

    @property
    def current(self) -> bool:
        """Whether all that the topic tells is known, or was STALE_S ago. Else nobody may be let in by what it told."""
        return time.monotonic() - self.current_at < STALE_S

    @property
    def was_read(self) -> bool:
        """Whether all was known at some time."""
        return self.current_at > float("-inf")

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            try:
                async with probe(self._kafka, fetch_wait_ms=FETCH_WAIT_MS) as consumer:
                    await self._follow(consumer)
            except KAFKA_FAILURES as error:
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
                if end < self._next:
                    self._begin_anew()
                    consumer.seek(tp, 0)
            for record in (await consumer.getmany(tp, timeout_ms=int(CHECK_EVERY_S * 1000))).get(tp, []):
                self._take(record)
            self._next = await consumer.position(tp)
            if self._next >= end:
                self.current_at = asked

    def _begin_anew(self) -> None:
        """The topic was made anew, so nothing it told holds any more, and nothing is known until it is read."""
        log.warning("%s was made anew; reading it from its beginning", self._tp.topic)
        self.current_at = float("-inf")
        self._book.clear()
        self._next = 0

    def _take(self, record: ConsumerRecord[bytes, bytes]) -> None:
        try:
            self._book.apply(record)
        except Exception as error:  # noqa: BLE001  # whoever may write the topic could end every process that follows it
            skipped(record, type(error).__name__)
