"""Who follows a small topic: records that can't be read, a topic that is made anew, and workers that answer oddly."""

import asyncio
import json
import time
from typing import Any

import pytest
from aiokafka.structs import ConsumerRecord
from prometheus_client import REGISTRY

from app.settings import load
from app.web import follow
from app.web.announce import Worker, http_url, worker_of
from app.web.console.snapshots import Snapshots
from app.web.follow import Follower
from app.web.keys import KeyRing, new_key
from app.web.users import User, UserBook, verify_password
from app.web.workers import Answer, Workers
from app.web.writer import Writer

USER = b'{"name":"ada","role":"admin","password":"x","created_ms":1,"changed_ms":1%s}'
TOO_DEEP = b',"more":' + b"[" * 200_000 + b"]" * 200_000


def record(key: bytes, value: bytes | None, offset: int = 0, topic: str = "a-topic") -> Any:
    return ConsumerRecord(topic, 0, offset, 0, 0, key, value, None, len(key), len(value or b""), ())


def unreadable(topic: str = "a-topic") -> float:
    return REGISTRY.get_sample_value("headrace_unreadable_records_total", {"topic": topic}) or 0.0


class Topic:
    """A consumer of one partition, whose records can be exchanged."""

    def __init__(self, records: list[Any]) -> None:
        self.records, self.at = records, 0

    def assign(self, _: Any) -> None:
        pass

    def seek(self, _: Any, offset: int) -> None:
        self.at = offset

    async def beginning_offsets(self, tps: list[Any]) -> dict[Any, int]:
        return {tps[0]: 0}

    async def end_offsets(self, tps: list[Any]) -> dict[Any, int]:
        return {tps[0]: len(self.records)}

    async def getmany(self, tp: Any, timeout_ms: int) -> dict[Any, list[Any]]:
        await asyncio.sleep(0)
        got, self.at = self.records[self.at :], max(self.at, len(self.records))
        return {tp: got}

    async def position(self, _: Any) -> int:
        return self.at


@pytest.fixture
def checks_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "CHECK_EVERY_S", 0.0)


async def until(holds: Any) -> None:
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0)


@pytest.mark.usefixtures("checks_always")
async def test_a_topic_that_is_made_anew_takes_its_entries_away_until_it_is_read() -> None:
    book = UserBook()
    topic = Topic([record(b"ada", USER % b""), record(b"bob", USER.replace(b"ada", b"bob") % b"")])
    follower = Follower(load(), "a-topic", book)
    task = asyncio.create_task(follower._follow(topic))  # type: ignore[arg-type]
    await until(lambda: set(book.entries) == {"ada", "bob"} and follower.current)
    cleared, clear = [], book.clear
    book.clear = lambda: (clear(), cleared.append(follower.current))[0]  # type: ignore[method-assign]
    topic.records = [record(b"bob", USER.replace(b"ada", b"bob") % b"")]
    await until(lambda: cleared and follower.current)
    task.cancel()
    assert set(book.entries) == {"bob"}
    assert cleared == [False]  # nobody is let in, and nobody's cookie taken, by what isn't read yet


@pytest.mark.usefixtures("checks_always")
async def test_a_record_that_nobody_foresaw_is_left_out_and_counted() -> None:
    class Picky:
        def __init__(self) -> None:
            self.taken: list[int] = []

        def apply(self, given: Any) -> None:
            if given.offset == 1:
                raise KeyError(given.offset)
            self.taken.append(given.offset)

        def clear(self) -> None:
            raise AssertionError

    book, before = Picky(), unreadable()
    follower = Follower(load(), "a-topic", book)
    task = asyncio.create_task(follower._follow(Topic([record(b"", b"", n) for n in range(3)])))  # type: ignore[arg-type]
    await until(lambda: follower.current)
    task.cancel()
    assert book.taken == [0, 2]
    assert unreadable() == before + 1


@pytest.mark.parametrize("damaged", [USER % TOO_DEEP, USER.replace(b"admin", b"\xff") % b"", b"{", b"[]"])
def test_a_damaged_user_is_away_and_counted(damaged: bytes) -> None:
    book, before = UserBook(), unreadable()
    book.apply(record(b"ada", USER % b""))
    book.apply(record(b"ada", damaged))
    assert book.entries == {}
    assert unreadable() == before + 1


async def test_a_password_hash_that_is_no_ascii_is_nobody_s() -> None:
    assert not await verify_password(
        User(name="ada", role="admin", password="$argon2id$ä", created_ms=1, changed_ms=1), "x"
    )


def test_a_key_whose_hash_is_no_ascii_is_nobody_s() -> None:
    ring = KeyRing()
    token, key = new_key(["read"], "", 0)
    stored = {"id": key.id, "sha256": "ä", "scopes": ["read"], "created_ms": 0}
    ring.apply(record(key.id.encode(), json.dumps(stored).encode()))
    assert key.id in ring.entries
    assert ring.find(token) is None


def announced(url: str) -> bytes:
    now_ms = int(time.time() * 1000)
    beat = {"id": "w", "url": url, "host": "h", "pid": 1, "role": "all", "started_ms": now_ms, "beat_ms": now_ms}
    return json.dumps(beat).encode()


def test_a_worker_s_record_that_is_nested_too_deep_is_left_out() -> None:
    before = unreadable()
    assert worker_of(record(b"w", announced("http://a")[:-1] + TOO_DEEP + b"}")) is None
    assert unreadable() == before + 1
    assert isinstance(worker_of(record(b"w", announced("http://a"))), Worker)


@pytest.mark.parametrize("url", ["http://[::1", "http://\x00a", "http://xn--a", "ftp://a", "x", "http://a:99999"])
async def test_a_worker_that_announces_no_address_is_silent(url: str) -> None:
    workers = Workers(load())
    workers.apply(record(b"w", announced(url)))
    (answer,) = await workers.ask_all("/metrics")
    await workers.aclose()
    assert (answer.status, answer.body) == (0, b"")
    assert answer.why


@pytest.mark.parametrize(
    "body", [b'headrace_lag_records{a="b" 1', b"headrace_lag_records x", b"headrace_lag_records \xff"]
)
async def test_a_worker_whose_metrics_can_t_be_read_is_silent(body: bytes) -> None:
    worker = worker_of(record(b"w", announced("http://a")))
    assert worker is not None

    class Odd(Workers):
        async def ask_all(self, path: str, params: dict[str, str] | None = None) -> list[Answer]:
            return [Answer(worker, 200, body), Answer(worker, 200, b"headrace_lag_records 3"), Answer(worker, 401, b"")]

    snapshots = Snapshots(load(), Odd(load()), Writer(load()))
    pages, answered, silent = await snapshots._ask()
    assert list(pages.values()) == [{("headrace_lag_records", ()): 3.0}]
    assert answered == [worker]
    assert silent == [(worker, "its metrics can't be read"), (worker, "401")]


def test_an_address_of_ipv6_has_brackets() -> None:
    assert http_url("::1", 8080) == "http://[::1]:8080"
    assert http_url("127.0.0.1", 8080) == "http://127.0.0.1:8080"
