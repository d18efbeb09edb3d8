"""Results of the last day, to be asked for by event_id. Partitioned as `ai-results` is, by event_id."""

import msgspec

from app.delivery.maps import STAY, Map, PackedMap

__all__ = ["KEPT", "SIZE", "TOTAL", "Kept", "Size"]

TOTAL = b"total"


class Kept(msgspec.Struct, array_like=True, gc=False):
    """The latest result of an event."""

    at_ms: int
    """The timestamp of its record."""
    result: bytes
    """JSON, as it stands on `ai-results`."""


class Size(msgspec.Struct, array_like=True):
    """How much a partition holds."""

    bytes: int = 0
    """Of the packed records; the rows beside them take about as much again."""


KEPT: PackedMap[Kept] = PackedMap(
    "kept", b"r", b"R", Kept, help="event_id -> its result; expires after results.keep_s", moves=STAY
)
SIZE: Map[Size] = Map("size", b"z", Size, help="how many bytes a partition keeps", moves=STAY)
