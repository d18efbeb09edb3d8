"""What a step of an event wrote is found among records that others may have written."""

import json
from typing import Any

import pytest
from aiokafka.structs import OffsetAndTimestamp, TopicPartition

from app.settings import load
from app.web.history import History, ordered
from tests.helpers.records import record

AT_MS = 1_790_000_000_000
RESULT = {
    "event_id": "e", "event_type": "note", "task": "mood", "category": "happy", "confidence": 1.0, "tier": "rule",
    "why": "r", "latency_ms": 1, "created_ms": AT_MS, "source": {"topic": "raw-events", "partition": 0, "offset": 3},
    "entity": "u", "new": "in a later version",
}  # fmt: skip


class Topic:
    """A consumer of one partition with these records."""

    def __init__(self, records: list[Any]) -> None:
        self.records, self.at = records, 0

    async def offsets_for_times(self, times: dict[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp]:
        return {tp: OffsetAndTimestamp(0, at) for tp, at in times.items()}

    async def beginning_offsets(self, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
        if any(tp.partition for tp in tps):
            raise AssertionError("there is one partition")
        return dict.fromkeys(tps, 0)

    async def end_offsets(self, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(tps, len(self.records))

    def assign(self, tps: list[TopicPartition]) -> None: ...

    def seek(self, tp: TopicPartition, offset: int) -> None:
        self.at = offset

    async def position(self, tp: TopicPartition) -> int:
        return self.at

    async def getmany(self, *tps: TopicPartition, timeout_ms: int) -> dict[TopicPartition, list[Any]]:
        found, self.at = self.records[self.at :], len(self.records)
        return {tps[0]: found}


def history(*values: bytes | None) -> History:
    records = [record(value, key=b"e") for value in values]
    for offset, each in enumerate(records):
        each.offset, each.timestamp = offset, AT_MS + 1
    found = History(load())
    found._consumer, found._counts = Topic(records), {"ai-results": 1}  # type: ignore[assignment]  # all it calls
    return found


def result(**more: Any) -> bytes:
    return json.dumps({**RESULT, **more}).encode()


@pytest.mark.parametrize(
    "strange",
    [
        None,
        b"",
        b"[]",
        result(source="raw-events"),
        result(tokens=7),
        result(cost_usd="much"),
        result()[:-1] + b',"x":"\xff"}',
        result()[:-1] + b',"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        result(created_ms=AT_MS - 1),
    ],
)
async def test_what_is_no_result_of_ours_is_passed_over(strange: bytes | None) -> None:
    step = {"map": "answered", "tier": "rule", "at_ms": AT_MS}
    written = await history(strange, result()).written(step, "e")
    assert written is not None
    assert (written["offset"], written["value"]) == (1, RESULT)
    assert await history(strange).written(step, "e") is None


@pytest.mark.parametrize("place", [(-1, 0), (1, 0), (0, -1), (0, 2)])
async def test_a_place_that_there_is_not_has_no_record(place: tuple[int, int]) -> None:
    assert await history(result()).at("ai-results", *place) is None


def test_steps_of_one_time_come_in_the_order_of_the_path() -> None:
    maps = ["decided", "waiting", "answered", "open", "seen"]
    told = [{"steps": [{"map": name, "at_ms": AT_MS + 5 * (name == "decided")}]} for name in maps]
    assert [step["map"] for step in ordered(told)] == maps[::-1]
    assert ordered([{"error": "being restored"}, {"steps": [{"map": "waiting", "at_ms": 1}, {"map": "seen", "at_ms": 2}]}]) == [
        {"map": "waiting", "at_ms": 1}, {"map": "seen", "at_ms": 2},
    ]  # fmt: skip
