"""Kafka's default partitioner, so that any producer's records and ours meet."""

from functools import lru_cache

from aiokafka.partitioner import murmur2

__all__ = ["partition_for"]


@lru_cache(200_000)
def partition_for(key: bytes, count: int) -> int:
    """The partition of a key among `count` (murmur2, as in Kafka's own clients)."""
    return int(murmur2(key) & 0x7FFFFFFF) % count
