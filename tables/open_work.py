"""Events that wait for a model, and what was answered. One State, partitioned as model-requests."""

import msgspec

from app.delivery.maps import Map, PackedMap
from models.events import ModelRequest

__all__ = ["ANSWERED", "OPEN", "Answered", "OpenItem", "open_key"]


class OpenItem(msgspec.Struct, kw_only=True):
    """One event that no tier has decided yet."""

    request: ModelRequest
    opened_ms: int
    light_category: str = ""
    """What the light model said, when its confidence was too low; the deep model decides."""
    light_confidence: float = 0.0
    light_done: bool = False


class Answered(msgspec.Struct, array_like=True, gc=False):
    """A decided event, for `headrace trace`."""

    at_ms: int
    """The timestamp of its result: the record is found by it."""
    tier: str
    category: str
    why: str


OPEN: Map[OpenItem] = Map(
    "open", b"o", OpenItem, help="offset -> event that waits for a model; removed with its result"
)
ANSWERED: PackedMap[Answered] = PackedMap(
    "answered", b"a", b"A", Answered, help="event_id -> tier and answer; expires after classify.trace_horizon_s"
)


def open_key(offset: int) -> bytes:
    """Sorts as the offset does."""
    return offset.to_bytes(8, "big")
