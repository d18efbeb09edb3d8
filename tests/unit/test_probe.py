"""Short reads beside the group, with a broker that only answers what is asked (app.delivery.probe)."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.structs import TopicPartition

from app.delivery import probe as module
from app.delivery.probe import crc_of, log_of
from app.delivery.state import Applied
from app.settings import KafkaSettings
from tests.helpers.cluster import Client

INPUT = TopicPartition("t", 0)
MARKER = Applied(9, 1000, 7, "life")


class Consumer:
    """Of one partition with offsets 5 to 19."""

    def __init__(self, *there: int) -> None:
        self._client = Client(t=1)
        self.records = [SimpleNamespace(offset=offset, timestamp=1000 + offset, value=b"v") for offset in there]
        self.at = 0

    async def beginning_offsets(self, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(tps, 5)

    async def end_offsets(self, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(tps, 20)

    def assign(self, tps: list[TopicPartition]) -> None:
        """There is one."""

    def seek(self, tp: TopicPartition, offset: int) -> None:
        self.at = offset

    async def getmany(self, tp: TopicPartition, timeout_ms: int) -> dict[TopicPartition, list[Any]]:
        found = [record for record in self.records if record.offset >= self.at]
        self.at = 20
        return {tp: found}

    async def position(self, tp: TopicPartition) -> int:
        return self.at


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Has a consumer and a cleanup policy used; returns whose configuration was asked for."""

    def use(consumer: Consumer, policy: str) -> list[str]:
        topics: list[str] = []

        @asynccontextmanager
        async def probe(kafka: object) -> AsyncIterator[Consumer]:
            yield consumer

        async def config_of(kafka: object, topic: str) -> dict[str, str]:
            topics.append(topic)
            return {"cleanup.policy": policy}

        monkeypatch.setattr(module, "probe", probe)
        monkeypatch.setattr(module, "config_of", config_of)
        return topics

    return use


@pytest.mark.parametrize(("policy", "compacted"), [("delete", False), ("compact,delete", True)])
async def test_where_the_marker_s_record_is_lacking_the_topic_is_asked_whether_it_is_compacted(
    policy: str, compacted: bool, asked: Callable[..., list[str]]
) -> None:
    topics = asked(Consumer(8, 10), policy)
    log = await log_of(KafkaSettings(), INPUT, MARKER, 10, "earliest")
    assert (log.start, log.end, log.committed, log.at_marker, log.compacted) == (5, 20, 10, None, compacted)
    assert topics == ["t"]


async def test_a_record_at_the_marker_is_told_and_nothing_else_is_asked(asked: Callable[..., list[str]]) -> None:
    topics = asked(Consumer(9, 10), "compact")
    log = await log_of(KafkaSettings(), INPUT, MARKER, None, "earliest")
    assert log.at_marker == (1009, crc_of(SimpleNamespace(value=b"v")))  # type: ignore[arg-type]  # as far as it is read
    assert (topics, log.compacted) == ([], False)


@pytest.mark.parametrize("offset", [4, 20])
async def test_a_marker_outside_the_log_is_no_hole_in_it(offset: int, asked: Callable[..., list[str]]) -> None:
    topics = asked(Consumer(9), "compact")
    log = await log_of(KafkaSettings(), INPUT, Applied(offset, 1000, 7, "life"), None, "earliest")
    assert (log.at_marker, topics) == (None, [])
