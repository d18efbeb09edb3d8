"""The inbox of a lane: whatever way records are fetched and taken, each comes once and in order."""

from hypothesis import given
from hypothesis import strategies as st

from app.delivery.inbox import Inbox
from app.delivery.transport import fetched_of
from app.errors import StateError
from models.events import Received


def records(start: int, following: int, holes: frozenset[int] = frozenset()) -> list[Received]:
    return [Received("t", 0, n, 1, b"k", b"v" * (n % 7)) for n in range(start, following) if n not in holes]


def size_of(waiting: list[Received]) -> int:
    return fetched_of(waiting, 0, 0).size_bytes


@given(
    first=st.integers(0, 5),
    fetches=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 8), st.integers(0, 6)), max_size=12),
    holes=st.frozensets(st.integers(0, 100), max_size=20),
)
def test_fetches_that_overlap_give_each_record_once_and_in_order(
    first: int, fetches: list[tuple[int, int, int]], holes: frozenset[int]
) -> None:
    inbox, taken = Inbox(), list[Received]()
    inbox.begin(first)
    for back, forth, limit in fetches:
        start, following = max(0, inbox.expected - back), inbox.expected + forth
        inbox.add(fetched_of(records(start, following, holes), start, following))
        assert inbox.expected == following
        batch = inbox.take(limit)
        assert len(batch) <= limit
        taken += batch
        waiting = records(taken[-1].offset + 1 if taken else first, following, holes)
        assert (len(inbox), inbox.size_bytes) == (len(waiting), size_of(waiting))
    end = inbox.expected
    taken += inbox.take(1000)
    assert taken == records(first, end, holes)
    assert (inbox.unreadable, len(inbox), inbox.size_bytes) == (None, 0, 0)


def test_a_gap_makes_the_input_unreadable_until_it_begins_anew() -> None:
    inbox = Inbox()
    inbox.begin(3)
    inbox.add(fetched_of(records(4, 6), 4, 6))
    assert isinstance(inbox.unreadable, StateError)
    assert (len(inbox), inbox.expected) == (0, 3)
    inbox.begin(4)
    inbox.add(fetched_of(records(4, 6), 4, 6))
    assert inbox.unreadable is None
    assert [record.offset for record in inbox.take(10)] == [4, 5]


def test_what_was_dropped_is_taken_again() -> None:
    inbox = Inbox()
    inbox.begin(0)
    inbox.add(fetched_of(records(0, 4), 0, 4))
    inbox.take(1)
    inbox.clear()
    assert (len(inbox), inbox.size_bytes, inbox.take(10)) == (0, 0, [])
    inbox.begin(1)
    inbox.add(fetched_of(records(0, 4), 0, 4))
    assert [record.offset for record in inbox.take(10)] == [1, 2, 3]
