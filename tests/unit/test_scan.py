"""Scans for people: how many read at a time, and what a broker that gives nothing does to one."""

import asyncio
from typing import Any

import pytest
from aiokafka.structs import TopicPartition

from agents.markers import Markers
from app.settings import load
from app.web import scan as scans
from app.web.letters import Letters, Wanted
from app.web.scan import SCANS_AT_ONCE, Asked, Budget, _Reading, scan


async def test_scans_of_records_and_of_dead_letters_wait_while_too_many_read(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, most, go_on = 0, 0, asyncio.Event()

    async def counts(settings: Any, names: list[str]) -> dict[str, int]:
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        await go_on.wait()
        reading -= 1
        return {}

    async def read(markers: Markers) -> None: ...

    monkeypatch.setattr("app.topics.counts", counts)
    monkeypatch.setattr(Markers, "read", read)
    monkeypatch.setattr(scans, "_turns", asyncio.Semaphore(SCANS_AT_ONCE))
    tree = load()
    asked = Asked(topic=tree.topic("ai-results"))
    records = [scan(tree, asked, Budget(), lambda found, progress: None) for _ in range(SCANS_AT_ONCE)]
    letters = [Letters(tree).scan(Wanted(), Budget(), lambda found: None) for _ in range(SCANS_AT_ONCE)]
    together = asyncio.gather(*records, *letters)
    for _ in range(10):
        await asyncio.sleep(0)
    assert reading == SCANS_AT_ONCE
    go_on.set()
    await together
    assert most == SCANS_AT_ONCE


class Silent:
    """A consumer whose broker gives nothing."""

    async def beginning_offsets(self, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(tps, 0)

    async def end_offsets(self, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(tps, 9)

    def assign(self, tps: list[TopicPartition]) -> None: ...

    def seek(self, tp: TopicPartition, offset: int) -> None: ...

    async def position(self, tp: TopicPartition) -> int:
        return 0

    async def getmany(self, *tps: TopicPartition, timeout_ms: int) -> dict[TopicPartition, list[Any]]:
        await asyncio.sleep(0)
        return {}


async def test_a_broker_that_gives_nothing_is_not_taken_for_a_lack_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scans, "READ_TIMEOUT_S", 0.01)
    reading = _Reading(Silent(), Asked(topic="t"), Budget(), lambda found, progress: None)  # type: ignore[arg-type]  # all it calls
    with pytest.raises(TimeoutError, match="nothing read"):
        await reading.run([TopicPartition("t", 0)])
