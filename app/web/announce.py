"""Workers announce themselves in a compacted topic, so that commands and the console find them."""

import asyncio
import contextlib
import json
import os
import socket
import time
import uuid
from dataclasses import dataclass
from typing import Any

import aiokafka
from aiokafka.errors import KafkaError
from aiokafka.structs import TopicPartition

from app.core import App
from app.delivery.probe import probe, read_tail
from app.kafka import client_kwargs
from app.settings import Settings

__all__ = ["Worker", "announce", "workers"]

EVERY_S = 5.0
STALE_S = 20.0
"""A worker that said nothing for four beats is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A worker that is alive."""

    id: str
    url: str
    host: str
    pid: int
    role: str
    started_ms: int
    beat_ms: int


async def announce(app: App) -> None:
    """Runs as long as the worker; at the end its entry is removed."""
    settings, key = app.settings, uuid.uuid4().hex.encode()
    topic = settings.topic("workers")
    producer = aiokafka.AIOKafkaProducer(acks=1, **client_kwargs(settings.kafka))
    await producer.start()
    entry = {
        "id": key.decode(),
        "url": f"http://{_reachable(app.conf.web_bind)}:{app.conf.web_port}",
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "role": settings.role,
        "started_ms": int(app.started_at * 1000),
    }
    try:
        while True:
            with contextlib.suppress(
                KafkaError
            ):  # the next beat tries again; a worker that stays silent counts as gone
                await producer.send_and_wait(
                    topic, json.dumps({**entry, "beat_ms": int(time.time() * 1000)}).encode(), key
                )
            await asyncio.sleep(EVERY_S)
    finally:
        with contextlib.suppress(KafkaError, TimeoutError):
            async with asyncio.timeout(2):
                await producer.send_and_wait(topic, None, key)
        await producer.stop()


def _reachable(bind: str) -> str:
    """The name others reach this worker by: a wildcard bind is no address."""
    return socket.getfqdn() if bind in ("0.0.0.0", "::") else bind  # noqa: S104  # compared, not bound


async def workers(settings: Settings) -> list[Worker]:
    """The workers that are alive, from their topic (small: compacted)."""
    tp = TopicPartition(settings.topic("workers"), 0)
    latest: dict[bytes, dict[str, Any] | None] = {}
    async with probe(settings.kafka) as consumer:
        if tp.topic not in await consumer.topics():
            return []
        end = (await consumer.end_offsets([tp]))[tp]
        start = (await consumer.beginning_offsets([tp]))[tp]
        async for record in read_tail(consumer, tp, start, end):
            latest[record.key or b""] = json.loads(record.value) if record.value else None
    alive = time.time() * 1000 - STALE_S * 1000
    found = [Worker(**entry) for entry in latest.values() if entry is not None and entry["beat_ms"] > alive]
    return sorted(found, key=lambda w: w.started_ms)
