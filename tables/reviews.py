"""Reviews: events that wait for a person, and what was decided. Partitioned as `review-decisions` is, by event_id."""

import msgspec

from app.delivery.maps import COPY, Counted, Map
from models.results import Review
from models.reviews import Decision

__all__ = [
    "DECIDED",
    "REVIEWS",
    "TOTAL",
    "WAITING",
    "WAITING_COUNT",
    "Count",
    "ReviewRow",
    "at_of",
    "place",
    "read_at",
    "show_at",
]

TOTAL = b"total"
TIME_BYTES = 8


class ReviewRow(msgspec.Struct, kw_only=True):
    """An event that went to review."""

    review: Review
    decision: Decision | None = None
    """The latest; None: it waits."""
    at_ms: int
    """When it was opened, or was decided: its place in `waiting` or `decided`."""
    decided_ms: int = 0
    """Of the latest decision, one to undo too: an older one that comes later, out of dead letters, changes nothing."""


class Count(msgspec.Struct, array_like=True):
    """How many reviews of a partition wait."""

    waiting: int = 0


def place(at_ms: int, event_id: bytes) -> bytes:
    """A key that sorts as the time does."""
    return at_ms.to_bytes(TIME_BYTES, "big") + event_id


def at_of(key: bytes) -> tuple[int, bytes]:
    """The time and the event's id of such a key."""
    return int.from_bytes(key[:TIME_BYTES], "big"), key[TIME_BYTES:]


def show_at(key: bytes) -> str:
    """The same as a person writes it: `MS/EVENT_ID`."""
    at_ms, event_id = at_of(key)
    return f"{at_ms}/{event_id.decode('utf-8', 'replace')}"


def read_at(text: str) -> bytes:
    """The key of such a text; of any other text one that isn't there."""
    at_ms, _, event_id = text.partition("/")
    return place(int(at_ms), event_id.encode()) if at_ms.isdecimal() and len(at_ms) < 18 else b""


def _event_id(key: bytes) -> bytes:
    return key[TIME_BYTES:]


def _same(key: bytes) -> bytes:
    return key


def _recounted(count: Count, counted: Counted) -> Count:
    return Count(counted(WAITING, b""))


REVIEWS: Map[ReviewRow] = Map(
    "reviews", b"v", ReviewRow, help="event_id -> review and decision; expires after reviews.keep_s", moves=_same
)
WAITING: Map[str] = Map("waiting", b"w", str, help="time and event_id -> task of a review that waits", moves=_event_id)
DECIDED: Map[str] = Map("decided", b"d", str, help="time and event_id -> task of a decided review", moves=_event_id)
WAITING_COUNT: Map[Count] = Map(
    "size",
    b"z",
    Count,
    help="how many reviews of a partition wait",
    moves=COPY,
    moved=_recounted,
    left=_recounted,
)
