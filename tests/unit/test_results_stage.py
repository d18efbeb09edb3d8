"""The results stage: what is kept, for how long, and how much."""

import pytest

from agents.results import Results
from app.delivery.outbox import Outbox
from app.delivery.stage import Batch
from app.settings import load
from models.events import Received
from tables.results import KEPT, SIZE, TOTAL, Size
from tests.helpers.held import Held

NOW_MS = 1_796_000_000_000


class Kept(Held):
    """State of the results stage."""

    @property
    def keys(self) -> set[bytes]:
        return set(self.keys_of(KEPT))

    @property
    def counted(self) -> tuple[int, int]:
        """What SIZE says, and what is there."""
        there = sum(len(value) for key, value in self.rows.items() if key.startswith(KEPT.records))
        return (self.get(SIZE, TOTAL) or Size()).bytes, there


@pytest.fixture
def stage() -> tuple[Results, Kept]:
    return Results(load()), Kept()


def take(stage: tuple[Results, Kept], first: int, results: dict[str, bytes | None], now_ms: int = NOW_MS) -> None:
    logic, state = stage
    records = [
        Received("ai-results", 0, first + n, now_ms, key.encode(), value)
        for n, (key, value) in enumerate(results.items())
    ]
    out = Outbox(now_ms)
    logic.decide(Batch(records, 0, state, out))  # type: ignore[arg-type]  # all that is read of a View
    state.apply(out)


def expire(stage: tuple[Results, Kept], now_ms: int) -> None:
    logic, state = stage
    out = Outbox(now_ms)
    logic.expiry._remove(state, out)  # type: ignore[arg-type]  # likewise
    state.apply(out)


def test_the_latest_result_of_an_event_stays(stage: tuple[Results, Kept]) -> None:
    take(stage, 0, {"a": b"1", "b": b"1"})
    take(stage, 2, {"a": b"2"})
    state = stage[1]
    assert (state.get(KEPT, b"a").result, state.get(KEPT, b"b").result) == (b"2", b"1")
    assert state.get(KEPT, b"c") is None


def test_results_go_after_their_time_but_not_those_that_were_renewed(stage: tuple[Results, Kept]) -> None:
    day_ms = 86_400_000
    take(stage, 0, {"a": b"1", "b": b"1"})
    take(stage, 2, {"a": b"2"}, NOW_MS + day_ms // 2)
    expire(stage, NOW_MS + day_ms // 2)
    assert stage[1].keys == {b"a", b"b"}
    expire(stage, NOW_MS + day_ms + 700_000)
    assert stage[1].keys == {b"a"}
    expire(stage, NOW_MS + 2 * day_ms)
    assert stage[1].keys == set()
    assert stage[1].counted == (0, 0)


def test_above_the_bound_the_oldest_go(stage: tuple[Results, Kept]) -> None:
    logic, state = stage
    logic.expiry.max_bytes = 100_000
    for n in range(30):
        take(stage, n, {f"e{n:02}": b"x" * 10_000}, NOW_MS + n)
    assert state.counted[0] == state.counted[1] > 300_000
    expire(stage, NOW_MS + 100)
    assert state.keys == {b"e%02d" % n for n in range(21, 30)}
    assert state.counted[0] == state.counted[1] <= 100_000


def test_a_large_batch_is_divided_into_records_that_a_topic_takes(stage: tuple[Results, Kept]) -> None:
    logic, state = stage
    records = [Received("ai-results", 0, n, NOW_MS, b"k%d" % n, b"x" * 1000) for n in range(3000)]
    out = Outbox(NOW_MS)
    logic.decide(Batch(records, 0, state, out))  # type: ignore[arg-type]  # all that is read of a View
    assert max(len(value or b"") for value in out.changelog.values()) < 400_000
    state.apply(out)
    assert len(state.keys) == 3000
    assert state.counted[0] == state.counted[1]


def test_records_without_key_or_value_are_passed_over(stage: tuple[Results, Kept]) -> None:
    logic, state = stage
    records = [Received("ai-results", 0, 0, NOW_MS, None, b"x"), Received("ai-results", 0, 1, NOW_MS, b"k", None)]
    out = Outbox(NOW_MS)
    logic.decide(Batch(records, 0, state, out))  # type: ignore[arg-type]  # all that is read of a View
    state.apply(out)
    assert state.keys == set()


def test_a_result_that_comes_while_its_old_record_expires_stays(stage: tuple[Results, Kept]) -> None:
    logic, state = stage
    take(stage, 0, {"a": b"1"})
    later = NOW_MS + 2 * 86_400_000
    out = Outbox(later)
    logic.decide(Batch([Received("ai-results", 0, 1, later, b"a", b"2")], 0, state, out))  # type: ignore[arg-type]  # see above
    logic.expiry._remove(state, out)  # type: ignore[arg-type]  # the same transaction
    state.apply(out)
    assert state.get(KEPT, b"a").result == b"2"
    assert state.counted[0] == state.counted[1]


def test_two_removals_in_one_transaction_count_once(stage: tuple[Results, Kept]) -> None:
    logic, state = stage
    take(stage, 0, {"a": b"1"})
    take(stage, 1, {"b": b"1" * 50}, NOW_MS + 86_400_000)
    out = Outbox(NOW_MS + 86_400_000 + 700_000)
    for _ in range(2):
        logic.expiry._remove(state, out)  # type: ignore[arg-type]  # all that is read of a View
    state.apply(out)
    assert state.keys == {b"b"}
    assert state.counted[0] == state.counted[1] > 0
