"""Writes to Kafka for gateway and console: one shared producer, and an outcome for each record only when Kafka acked it."""

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass
from typing import Any

import aiokafka
from aiokafka.errors import KafkaConnectionError, KafkaError
from aiokafka.structs import RecordMetadata

from app import topics
from app.delivery.partitions import Partitioner
from app.kafka import KAFKA_FAILURES, client_kwargs
from app.settings import Settings
from app.web.problems import Problem
from models.events import Headers

__all__ = ["RETRY_AFTER_S", "Item", "Writer", "unavailable"]

log = logging.getLogger("headrace.web")

LINGER_MS = 2
"""Records of requests that come together share a request to the broker."""
MAX_BATCH_BYTES = 128 << 10
"""A list of 100 goes out in one batch a partition; the default of 16 KiB makes many."""
RETRY_AFTER_S = 2
CHECK_EVERY_S = 2.0
SILENT_S = 10.0
"""Not heard of Kafka for so long: requests are refused at once instead of waiting for their time-out."""


@dataclass(slots=True)
class Item:
    """A record to write."""

    event_id: str
    key: bytes
    value: bytes
    headers: Headers = ()


class Writer:
    """Owns the producer. `run` keeps it, also when Kafka comes later than the gateway."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._producer: aiokafka.AIOKafkaProducer | None = None
        self._partitioners: dict[str, Partitioner] = {}
        self._timeout_s = settings.gateway.ack_timeout_s
        self._heard_at = float("-inf")
        self._in_flight = 0

    @property
    def reachable(self) -> bool:
        """Kafka answered lately."""
        return self._producer is not None and time.monotonic() - self._heard_at < SILENT_S

    @property
    def in_flight_bytes(self) -> int:
        return self._in_flight

    def take(self, size: int) -> None:
        """Counts bytes of a body.

        Raises:
            Problem: 429, too much is waiting for Kafka.
        """
        self._in_flight += size
        if self._in_flight > self._settings.gateway.max_in_flight_bytes:
            raise Problem(
                429, "busy", "this gateway has taken more than it can write at once (gateway.max_in_flight_bytes)",
                headers={"Retry-After": "1", "Connection": "close"},
            )  # fmt: skip

    def give_back(self, size: int) -> None:
        self._in_flight -= size

    async def run(self) -> None:
        """Starts the producer as soon as Kafka is there, and asks it every two seconds; closes it when it is cancelled."""
        try:
            await self._keep()
        finally:
            await self._stop()

    async def _keep(self) -> None:
        said = False
        while True:
            try:
                if self._producer is None:
                    await self._start()
                    log.info("web: Kafka at %s is there", self._settings.kafka.bootstrap_servers)
                await self._look()
                said = False
            except KAFKA_FAILURES as error:
                if not said:
                    log.warning("web: no Kafka (%s: %s); requests get 503", type(error).__name__, error)
                said = True
            await asyncio.sleep(CHECK_EVERY_S)

    async def _start(self) -> None:
        counts = await topics.ensure(self._settings)
        self._partitioners = {topic: Partitioner(count) for topic, count in counts.items()}
        kafka = self._settings.kafka
        producer = aiokafka.AIOKafkaProducer(
            acks="all",
            linger_ms=LINGER_MS,
            max_batch_size=MAX_BATCH_BYTES,
            max_request_size=kafka.max_message_bytes + (1 << 20),
            compression_type=None if kafka.compression == "none" else kafka.compression,
            **{**client_kwargs(kafka), "request_timeout_ms": int(self._timeout_s * 1000)},
        )
        try:
            await producer.start()
        except BaseException:
            await producer.stop()
            raise
        self._producer = producer

    async def _look(self) -> None:
        assert self._producer is not None
        async with asyncio.timeout(SILENT_S):
            if not await self._producer.client.force_metadata_update():
                raise TimeoutError("no broker tells its metadata")
        self._heard_at = time.monotonic()

    async def _stop(self) -> None:
        """Writes what is there, then closes; no longer than the ack time-out."""
        if self._producer is not None:
            with contextlib.suppress(TimeoutError, KafkaError):
                async with asyncio.timeout(self._timeout_s):
                    await self._producer.stop()
            self._producer = None

    def check(self) -> None:
        """Refuses at once when Kafka is known to be away.

        Raises:
            Problem: 503.
        """
        if not self.reachable:
            raise unavailable("Kafka isn't reachable; nothing was stored")

    def partitions(self, topic: str) -> int:
        """How many partitions a topic of ours has.

        Raises:
            Problem: 503, Kafka hasn't been reached yet.
        """
        known = self._partitioners.get(topic)
        if known is None:
            raise unavailable("Kafka isn't reachable")
        return known.count

    async def write(self, topic: str, items: list[Item]) -> list[RecordMetadata | Exception]:
        """Writes records and waits for the acks, within gateway.ack_timeout_s.

        Returns:
            For each record, in order, its place, or why it isn't known to be stored.
        """
        producer = self._producer
        assert producer is not None
        partitions = self._partitioners[topic].of([item.key for item in items])
        futures: list[Any] = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timeout_s):
                for item, partition in zip(items, partitions, strict=True):
                    futures.append(await self._send(producer, topic, item, partition))
                waiting = [future for future in futures if isinstance(future, asyncio.Future)]
                if waiting:
                    await asyncio.wait(waiting)
        outcomes = [_outcome(future) for future in futures]
        if any(isinstance(outcome, RecordMetadata) for outcome in outcomes):
            self._heard_at = time.monotonic()
        return outcomes + [TimeoutError()] * (len(items) - len(outcomes))

    @staticmethod
    async def _send(producer: aiokafka.AIOKafkaProducer, topic: str, item: Item, partition: int) -> Any:
        try:
            return await producer.send(topic, item.value, item.key, partition, headers=item.headers)
        except KafkaError as error:
            return error

    async def send_aside(self, topic: str, key: bytes, value: bytes | None, partition: int = 0) -> None:
        """Writes one record beside the events.

        Raises:
            KafkaError: it isn't known to be stored.
            TimeoutError: likewise.
        """
        if self._producer is None:
            raise KafkaConnectionError("Kafka hasn't been reached yet")
        async with asyncio.timeout(self._timeout_s):
            await self._producer.send_and_wait(topic, value, key, partition)


def unavailable(detail: str) -> Problem:
    return Problem(503, "kafka-unavailable", detail, headers={"Retry-After": str(RETRY_AFTER_S)})


def _outcome(sent: Any) -> RecordMetadata | Exception:
    if isinstance(sent, Exception):
        return sent
    if not sent.done():
        sent.add_done_callback(_forget)
        return TimeoutError()
    error = sent.exception()
    return sent.result() if error is None else error


def _forget(future: "asyncio.Future[Any]") -> None:
    """Nobody waits any more: the reply said that it isn't known to be stored."""
    if not future.cancelled():
        future.exception()
