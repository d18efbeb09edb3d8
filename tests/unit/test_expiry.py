"""What is removed at a time: enough to keep up with any load, and never so much that the worker stands still."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents import expiry
from agents.expiry import Expiry
from app.delivery.outbox import Outbox
from tables.seen import SEEN, Seen
from tests.helpers.held import Held

NOW_MS = 1_796_000_000_000
HORIZON_MS = 1000


class Lane:
    """A lane that does what is posted at once, on its own State."""

    def __init__(self) -> None:
        self.ready, self.view, self.removed = True, Held(), list[int]()

    def keep(self, sizes: list[int]) -> None:
        for number, size in enumerate(sizes):
            out = Outbox(NOW_MS)
            rows = [(b"%d-%d" % (number, n), SEEN.encode(Seen(n, NOW_MS, 0, "noise", ""))) for n in range(size)]
            out.put_packed(SEEN, NOW_MS, number, rows)
            self.view.apply(out)

    def post(self, work: Any) -> None:
        out = Outbox(NOW_MS + 2 * SEEN.bucket_s * 1000)
        work(self.view, out)
        self.removed.append(sum(value is None and key.startswith(SEEN.prefix) for key, value in out.local.items()))
        self.view.apply(out)


def tick(sizes: list[int], ticks: int) -> Lane:
    lane: Any = Lane()
    lane.keep(sizes)
    its = Expiry(SEEN, HORIZON_MS)
    for number in range(ticks):
        its.tick(lane, NOW_MS + 2 * SEEN.bucket_s * 1000 + number)
    return lane  # type: ignore[no-any-return]


def test_records_of_full_batches_are_removed_a_few_at_a_time_one_tick_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(expiry, "ROWS_A_TIME", 100)
    lane = tick([40] * 7, ticks=4)
    assert lane.removed == [120, 120, 40]
    assert not lane.view.rows


def test_a_second_removes_as_many_small_records_as_a_lane_makes_in_one() -> None:
    lane = tick([1] * 500, ticks=1)
    assert lane.removed == [500]


def test_large_records_are_not_held_in_memory_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "BYTES_A_TIME", 500)
    lane = tick([30] * 3, ticks=3)
    assert lane.removed == [30, 30, 30]


@given(st.one_of(st.integers(0, 40), st.sampled_from([65_535, 65_536, 70_000])))
def test_a_packed_record_tells_how_many_rows_it_holds(rows: int) -> None:
    assert SEEN.count(msgspec.msgpack.encode([(b"", b"")] * rows)) == rows
