"""The reviewers' desk: who sees what, and what becomes of decisions."""

import asyncio
import json
import time
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from aiokafka.errors import KafkaTimeoutError

from app.delivery.partitions import partition_for
from app.settings import load
from app.web.announce import Worker
from app.web.console.desk import CLAIM_S, SHARED_S, Desk
from app.web.problems import Problem
from app.web.workers import Answer, Workers
from models.reviews import Decision


class Queues(Workers):
    """Workers that hold reviews: for each, times and ids."""

    def __init__(self, held: dict[str, list[tuple[int, str]]]) -> None:
        self.held, self.silent, self.asked = held, set[str](), 0
        self.answer_of_silent = lambda worker: Answer(worker, 0, b"", "ConnectError")

    @property
    def alive(self) -> list[Worker]:
        return [
            Worker(id=name, url=f"http://{name}", host="h", pid=1, role="all", started_ms=1, beat_ms=1)
            for name in self.held
        ]

    async def _ask(self, worker: Worker, path: str, params: dict[str, str]) -> Answer:
        self.asked += 1
        if worker.id in self.silent:
            return self.answer_of_silent(worker)
        rows = [{"at_ms": at, "review": {"event_id": event_id}} for at, event_id in sorted(self.held[worker.id])]
        body = {"reviews": rows[: int(params["limit"])], "waiting": len(rows), "restoring": [3]}
        return Answer(worker, 200, json.dumps(body).encode())


class Sent:
    """A writer that keeps what it is given, or refuses."""

    def __init__(self) -> None:
        self.records: list[tuple[str, bytes, dict[str, Any], int]] = []
        self.refuses = False

    def partitions(self, topic: str) -> int:
        return 4

    async def send_aside(self, topic: str, key: bytes, value: bytes, partition: int = 0) -> None:
        if self.refuses:
            raise KafkaTimeoutError
        self.records.append((topic, key, msgspec.json.decode(value), partition))


def desk(**held: list[tuple[int, str]]) -> tuple[Desk, Queues, Sent]:
    workers, sent = Queues(held), Sent()
    return Desk(load(), workers, sent), workers, sent  # type: ignore[arg-type]  # all that is used of a Writer


async def ids(of: Desk, session: str, limit: int = 20) -> list[str]:
    return [row["review"]["event_id"] for row in (await of.waiting(session, limit=limit)).reviews]


async def test_the_oldest_of_all_workers_come_first_and_who_is_silent_is_named() -> None:
    of, workers, _ = desk(a=[(3, "c"), (1, "a")], b=[(2, "b"), (4, "d")])
    assert await ids(of, "me", 3) == ["a", "b", "c"]
    workers.silent = {"b"}
    found = await of.waiting("me")
    assert ([row["at_ms"] for row in found.reviews], found.waiting, found.silent) == (
        [1, 3],
        2,
        ["http://b (ConnectError)"],
    )
    assert found.restoring == [3]
    workers.held = {}
    with pytest.raises(Problem, match="no worker"):
        await of.waiting("me")


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [(401, b"{}", "401: web.token isn't the worker's"), (500, b"oh", "500"), (503, b"{}", "503"), (404, b"{}", "404"),
     (200, b"<html>", "its answer isn't JSON")],
)  # fmt: skip
async def test_a_worker_that_refuses_or_fails_is_named_and_not_taken_for_an_empty_queue(
    status: int, body: bytes, why: str
) -> None:
    of, workers, _ = desk(a=[(1, "a")])
    workers.silent = {"a"}
    workers.answer_of_silent = lambda worker: Answer(worker, status, body)
    found = await of.waiting("me")
    assert (found.reviews, found.waiting, found.silent) == ([], 0, [f"http://a ({why})"])


async def test_what_somebody_looks_at_is_shown_to_nobody_else_until_it_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of, _, _ = desk(a=[(1, "a"), (2, "b"), (3, "c")])
    assert of.claim("a", "me", "p1")
    assert not of.claim("a", "you", "q1")
    assert await ids(of, "you", 2) == ["b", "c"]
    assert await ids(of, "me", 2) == ["a", "b"]
    assert of.claim("a", "me", "p2")  # the same person's page, loaded anew
    of.release("p1")
    assert not of.claim("a", "you", "q1")
    of.release("p2")
    assert of.claim("a", "you", "q1")
    later = time.monotonic() + CLAIM_S + 1
    monkeypatch.setattr("app.web.console.desk.time", SimpleNamespace(monotonic=lambda: later))
    assert of.claim("a", "me", "p1")


async def test_what_is_decided_is_not_shown_again_while_state_lags_unless_it_is_given_back() -> None:
    of, _, _ = desk(a=[(1, "a"), (2, "b")])
    of.claim("a", "me", "p")
    of.taken("a")
    assert await ids(of, "me") == ["b"]
    assert not of.claim("a", "you", "q")
    of.given_back("a")
    assert await ids(of, "you") == ["a", "b"]


async def test_a_decision_goes_to_the_partition_of_its_event() -> None:
    of, _, sent = desk(a=[])
    decision = Decision(event_id="é/1", category="happy", reviewer="anna", decided_ms=7)
    await of.write(decision)
    ((topic, key, value, partition),) = sent.records
    assert (topic, key, partition) == ("review-decisions", "é/1".encode(), partition_for("é/1".encode(), 4))
    assert value == {"event_id": "é/1", "category": "happy", "reviewer": "anna", "decided_ms": 7}
    sent.refuses = True
    with pytest.raises(KafkaTimeoutError):
        await of.write(decision)


async def test_pages_that_wait_share_one_look_at_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    of, workers, _ = desk(a=[(1, "a"), (2, "b"), (3, "c")])
    of.claim("a", "me", "p")
    mine, yours = await asyncio.gather(of.waiting("me", fresh=False), of.waiting("you", fresh=False))
    assert workers.asked == 1
    assert [[row["review"]["event_id"] for row in each.reviews] for each in (mine, yours)] == [
        ["a", "b", "c"],
        ["b", "c"],
    ]
    await of.waiting("me", task="mood", fresh=False)
    await of.waiting("me", limit=50, fresh=False)
    await of.waiting("me")
    assert workers.asked == 4
    later = time.monotonic() + SHARED_S
    monkeypatch.setattr("app.web.console.looks.time", SimpleNamespace(monotonic=lambda: later))
    await of.waiting("me", fresh=False)
    assert workers.asked == 5


async def test_a_page_that_goes_leaves_its_look_to_the_others() -> None:
    of, workers, _ = desk(a=[(1, "a")])
    gone = asyncio.ensure_future(of.waiting("me", fresh=False))
    await asyncio.sleep(0)
    stays = asyncio.ensure_future(of.waiting("you", fresh=False))
    gone.cancel()
    assert ((await stays).waiting, workers.asked) == (1, 1)
