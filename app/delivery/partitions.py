"""Kafka's default partitioner, so that any producer's records and ours meet."""

from aiokafka.partitioner import murmur2

__all__ = ["partition_for"]

MAX_KNOWN_KEYS = 200_000

_hashes: dict[bytes, int] = {}
"""murmur2 is Python in aiokafka and keys repeat; emptied when full, which costs less than keeping an order of use."""


def partition_for(key: bytes, count: int) -> int:
    """The partition of a key among `count` (murmur2, as in Kafka's own clients)."""
    found = _hashes.get(key)
    if found is None:
        if len(_hashes) >= MAX_KNOWN_KEYS:
            _hashes.clear()
        found = _hashes[key] = int(murmur2(key) & 0x7FFFFFFF)
    return found % count
