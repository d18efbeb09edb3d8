"""What a step of an event wrote is found among records that others may have written."""

import json
from typing import Any

import pytest
from aiokafka.structs import OffsetAndTimestamp, TopicPartition

from app.settings import load
from app.web.history import History, ended, merged, ordered
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


def step(of: str, at_ms: int = AT_MS, **more: Any) -> dict[str, Any]:
    return {"stage": "s", "map": of, "topic": "t", "partition": 0, "at_ms": at_ms, **more}


SEEN, ASKED = step("seen", outcome="rule"), step("seen", outcome="asked")
OPEN, DEEP, TO_REVIEW = (
    step("open", AT_MS + 1),
    step("answered", AT_MS + 2, tier="deep"),
    step("answered", tier="review"),
)
WAITS, WAITED, DECIDED = (
    step("waiting", open=True),
    step("waiting", open=False),
    step("decided", AT_MS + 9, tier="review"),
)


@pytest.mark.parametrize(
    ("steps", "reviewed", "over"),
    [
        ([], True, False),
        ([SEEN], True, True),
        ([step("seen", outcome="noise")], True, True),
        ([ASKED], True, False),
        ([ASKED, OPEN], True, False),
        ([SEEN, OPEN], True, False),
        ([OPEN, DEEP], True, True),
        ([ASKED, TO_REVIEW], True, False),
        ([ASKED, TO_REVIEW], False, True),
        ([ASKED, TO_REVIEW, WAITS], True, False),
        ([ASKED, TO_REVIEW, WAITED, DECIDED], True, True),
        ([WAITED], True, False),
    ],
)
def test_an_event_has_its_end_when_it_waits_for_nobody_any_more(
    steps: list[dict[str, Any]], reviewed: bool, over: bool
) -> None:
    assert ended(steps, reviewed=reviewed) is over


def test_what_was_told_stays_also_where_a_worker_is_silent_or_state_has_forgotten_it() -> None:
    first = merged([], [OPEN, ASKED])
    assert first == [ASKED, {**OPEN, "over": False}]
    assert merged(first, []) == first
    answered = merged(first, [DEEP])
    assert answered == [ASKED, {**OPEN, "over": True}, DEEP]
    assert merged(answered, [ASKED, DEEP]) == answered


def test_a_decision_goes_when_it_is_taken_back_and_not_while_its_worker_is_silent() -> None:
    decided = merged([WAITS], [WAITED, DECIDED])
    assert decided == [WAITED, DECIDED]
    assert merged(decided, []) == decided
    assert merged(decided, [WAITS]) == [WAITS]
    again = {**DECIDED, "at_ms": AT_MS + 20}
    assert merged(decided, [WAITED, again]) == [WAITED, again]
