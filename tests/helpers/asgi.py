"""The gateway's application in this process, with keys and without Kafka: what is refused needs no broker."""

import time
from collections.abc import Iterable
from typing import Any

import httpx
from aiokafka.errors import KafkaConnectionError
from aiokafka.structs import RecordMetadata, TopicPartition
from fastapi import FastAPI

from app.settings import load
from app.settings_web import Scope
from app.web.gateway.api import build
from app.web.keys import new_key
from app.web.writer import Item, Writer

__all__ = ["ListWriter", "client", "gateway_app", "token"]


class ListWriter(Writer):
    """Keeps what is written in lists; `down` makes it refuse, as if Kafka were away."""

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self.rows: list[tuple[str, Item]] = []
        self.aside: list[tuple[str, bytes, bytes | None]] = []
        """What is written beside events."""
        self.down = False
        self.failing: dict[str, Exception] = {}
        """By event_id, what Kafka says instead of an ack."""

    @property
    def reachable(self) -> bool:
        return not self.down

    async def write(self, topic: str, items: list[Item]) -> list[RecordMetadata | Exception]:
        found: list[RecordMetadata | Exception] = []
        for item in items:
            if item.event_id in self.failing:
                found.append(self.failing[item.event_id])
                continue
            self.rows.append((topic, item))
            offset = len(self.rows) - 1
            found.append(RecordMetadata(topic, 0, TopicPartition(topic, 0), offset, None, 0, 0))
        return found

    async def send_aside(self, topic: str, key: bytes, value: bytes | None, partition: int = 0) -> None:
        if self.down:
            raise KafkaConnectionError("away")
        self.aside.append((topic, key, value))


def gateway_app(**gateway: Any) -> tuple[FastAPI, ListWriter]:
    """The application with some of its settings changed."""
    tree = load()
    settings = tree.model_copy(update={"gateway": tree.gateway.model_copy(update=gateway)})
    app = build(settings)
    writer = app.state.gateway.writer = ListWriter(settings)
    app.state.gateway.keys.current_at = time.monotonic() + 3600
    return app, writer


def token(app: FastAPI, scopes: Iterable[Scope]) -> str:
    """A key that the application knows."""
    made, key = new_key(scopes, "test", 0)
    app.state.gateway.ring.entries[key.id] = key
    return made


def client(app: FastAPI, *scopes: Scope) -> httpx.AsyncClient:
    """A client with a key of these scopes; none: without a key."""
    headers = {"Authorization": f"Bearer {token(app, scopes)}"} if scopes else {}
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://gateway", headers=headers)
