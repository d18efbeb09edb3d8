"""Workers announce themselves in a compacted topic, so that commands and the console find them."""

import asyncio
import contextlib
import json
import os
import socket
import time
import uuid
from dataclasses import dataclass
from urllib.parse import quote

import aiokafka
import msgspec
from aiokafka.errors import KafkaError
from aiokafka.structs import ConsumerRecord

from app.core import App
from app.delivery.presence import find
from app.kafka import client_kwargs
from app.web.follow import UNREADABLE, skipped

__all__ = ["STALE_S", "Worker", "announce", "http_url", "path_part", "worker_of"]

EVERY_S = 5.0
STALE_S = 20.0
"""A worker that said nothing for four beats is gone."""


def path_part(text: str) -> str:
    """An id in the path of a worker's page. Dots too: clients take `..` for the folder above, encoded they don't."""
    return quote(text, safe="").replace(".", "%2E")


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
        "url": http_url(_reachable(app.conf.web_bind), app.conf.web_port),
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
                await find(producer.client, topic)
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


def http_url(host: str, port: int) -> str:
    """The address of a host and port; IPv6 stands in brackets (RFC 3986, 3.2.2)."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def worker_of(record: ConsumerRecord[bytes, bytes]) -> Worker | None:
    """The worker that a record of the topic `workers` tells of; None: it is gone, or the record can't be read."""
    try:
        return msgspec.json.decode(record.value, type=Worker) if record.value else None
    except UNREADABLE as error:
        skipped(record, type(error).__name__)
        return None
