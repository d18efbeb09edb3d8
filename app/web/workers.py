"""Asks workers over their web ports: which are alive, who owns a partition, what State holds."""

import asyncio
import json
import time
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

import httpx
import msgspec
from aiokafka.structs import ConsumerRecord

from app.delivery.partitions import partition_for
from app.settings import Settings
from app.web.announce import STALE_S, Worker, worker_of
from app.web.problems import Problem

__all__ = ["ABSENT", "Answer", "Heard", "Silent", "Workers", "heard"]

ASK_TIMEOUT_S = 5.0
"""A key look-up takes a millisecond; a worker that takes longer than this is named and left out."""
ABSENT, ELSEWHERE = 404, 421
NO_ADDRESS = (httpx.InvalidURL, UnicodeError)
"""What httpx raises for an address that is none; UnicodeError: of its host's name."""


class Answer(msgspec.Struct, frozen=True):
    """What one worker said."""

    worker: Worker
    status: int
    """0: it didn't answer."""
    body: bytes
    why: str = ""


class Silent(msgspec.Struct, frozen=True):
    """A worker that said nothing useful: what it owns is missing."""

    worker: str
    """Its address."""
    why: str

    def __str__(self) -> str:
        return f"{self.worker} ({self.why})"


class Heard(msgspec.Struct, frozen=True):
    """What a question to all workers brought."""

    bodies: list[tuple[Worker, Any]]
    """What workers told, from JSON."""
    silent: list[Silent]


def heard(answers: Iterable[Answer], *, absent_ok: bool = False) -> Heard:
    """Sorts answers: a worker that refuses (401), fails (500) or sends what isn't JSON has told nothing either.

    Args:
        answers: of all workers.
        absent_ok: 404 is an answer too: the worker has none of what was asked for.
    """
    bodies: list[tuple[Worker, Any]] = []
    silent = []
    for answer in answers:
        if answer.status == ABSENT and absent_ok:
            continue
        why = _trouble(answer)
        try:
            if not why:
                bodies.append((answer.worker, json.loads(answer.body)))
        except (ValueError, RecursionError):
            why = "its answer isn't JSON"
        if why:
            silent.append(Silent(answer.worker.url, why))
    return Heard(bodies, silent)


def _trouble(answer: Answer) -> str:
    """Why an answer holds nothing; empty: it does."""
    if answer.status == HTTPStatus.OK:
        return ""
    if not answer.status:
        return answer.why
    if answer.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return f"{answer.status}: web.token isn't the worker's"
    return str(answer.status)


class Workers:
    """The workers of a deployment."""

    def __init__(self, settings: Settings) -> None:
        token = settings.web.token.get_secret_value()
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._known: dict[str, Worker] = {}
        self._owners: dict[int, str] = {}
        """Which worker answered for a partition of `ai-results` last."""
        self._client: httpx.AsyncClient | None = None

    def apply(self, record: ConsumerRecord[bytes, bytes]) -> None:
        """Takes a record of the topic `workers`."""
        key = (record.key or b"").decode("utf-8", "replace")
        worker = worker_of(record)
        if worker is None:
            self._known.pop(key, None)
        else:
            self._known[key] = worker

    def clear(self) -> None:
        """Forgets them: the topic was made anew."""
        self._known.clear()

    @property
    def alive(self) -> list[Worker]:
        """Those that said so lately, the oldest first."""
        limit = (time.time() - STALE_S) * 1000
        return sorted((w for w in self._known.values() if w.beat_ms > limit), key=lambda w: w.started_ms)

    async def ask_all(self, path: str, params: dict[str, str] | None = None) -> list[Answer]:
        """GETs a path of every worker at once; those that don't answer are in it with status 0.

        Raises:
            Problem: 503, none is alive.
        """
        alive = self.alive
        if not alive:
            raise Problem(503, "no-worker", "no worker is alive now", headers={"Retry-After": "2"})
        return list(await asyncio.gather(*[self._ask(worker, path, params or {}) for worker in alive]))

    async def result(self, event_id: str, partitions: int) -> bytes | None:
        """The result of an event from the worker that owns its partition, or None where none is kept.

        Raises:
            Problem: 503, nobody has the partition now (a rebalance, a restore), or no worker is alive.
        """
        key = event_id.encode("utf-8", "surrogatepass")
        partition = partition_for(key, partitions)
        params = {"event_id": event_id, "partition": str(partition)}
        owner = next((w for w in self.alive if w.id == self._owners.get(partition)), None)
        if owner is not None:
            answer = await self._ask(owner, "/results", params)
            if answer.status in (200, ABSENT):
                return answer.body if answer.status == 200 else None
        answers = await self.ask_all("/results", params)
        for answer in answers:
            if answer.status in (200, ABSENT):
                self._owners[partition] = answer.worker.id
                return answer.body if answer.status == 200 else None
        restoring = any(answer.status == 503 for answer in answers)
        why = "is being restored" if restoring else "has no owner now (a rebalance, or no worker keeps results)"
        raise Problem(
            503, "restoring" if restoring else "no-owner", f"partition {partition} of the results {why}",
            headers={"Retry-After": "1"},
        )  # fmt: skip

    async def _ask(self, worker: Worker, path: str, params: dict[str, str]) -> Answer:
        if self._client is None:
            self._client = httpx.AsyncClient(headers=self._headers, timeout=ASK_TIMEOUT_S, trust_env=False)
        try:
            reply = await self._client.get(worker.url + path, params=params)
        except (httpx.HTTPError, *NO_ADDRESS) as error:
            return Answer(worker, 0, b"", type(error).__name__)
        return Answer(worker, reply.status_code, reply.content)

    async def aclose(self) -> None:
        """Ends the connections to them."""
        if self._client is not None:
            await self._client.aclose()
