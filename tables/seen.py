"""Which events were taken, and what became of them at ingest. One State a source, partitioned as its topic."""

import msgspec

from app.delivery.maps import COPY, PackedMap

__all__ = ["SEEN", "Seen"]


class Seen(msgspec.Struct, array_like=True, gc=False):
    """The first record of an event_id within the horizon."""

    offset: int
    """Of the record that this stage read: the raw one, or the rekeyed one where there was a hop."""
    at_ms: int
    """When it was taken, ms since the epoch: the horizon counts from here."""
    crc: int
    """zlib.crc32 of the raw value: a second one that differs is a conflict, not a plain duplicate."""
    outcome: str
    """rule, asked (a model decides), noise, filtered or untasked."""
    detail: str
    """The rule's or the task's name."""


SEEN: PackedMap[Seen] = PackedMap(
    "seen",
    b"s",
    b"S",
    Seen,
    help="event_id -> first record and outcome; expires after ingest.dedup_horizon_s",
    moves=COPY,  # keyed by event_id, partitioned by the entity: a copy may come back in any partition that has a part
)
