"""Kafka's default partitioner, so that any producer's records and ours meet.

aiokafka's murmur2 is a Python loop over the key's bytes; event ids are all different, so no cache helps. Keys of one
length are hashed together in numpy, for a tenth of the time.
"""

from collections.abc import Sequence

import numpy as np
from aiokafka.partitioner import murmur2

__all__ = ["partition_for", "partitions_for"]

SEED, M = 0x9747B28C, 0x5BD1E995
FEW_KEYS = 8
"""Fewer keys of one length than this are hashed one by one."""
LONG_KEY_BYTES = 256


def partition_for(key: bytes, count: int) -> int:
    """The partition of a key among `count` (murmur2, as in Kafka's own clients)."""
    return int(murmur2(key) & 0x7FFFFFFF) % count


def partitions_for(keys: Sequence[bytes], count: int) -> list[int]:
    """The partitions of many keys, in their order."""
    by_length: dict[int, list[int]] = {}
    for index, key in enumerate(keys):
        by_length.setdefault(len(key), []).append(index)
    found = [0] * len(keys)
    for length, indexes in by_length.items():
        if len(indexes) < FEW_KEYS or length > LONG_KEY_BYTES:
            for index in indexes:
                found[index] = partition_for(keys[index], count)
            continue
        partitions = (_murmur2([keys[index] for index in indexes], length) & np.uint32(0x7FFFFFFF)) % np.uint32(count)
        for index, partition in zip(indexes, partitions.tolist(), strict=True):
            found[index] = partition
    return found


def _murmur2(keys: list[bytes], length: int) -> "np.ndarray[tuple[int], np.dtype[np.uint32]]":
    """Hashes of keys of one length, uint32, in order."""
    m, whole = np.uint32(M), length // 4 * 4
    octets = np.frombuffer(b"".join(keys), np.uint8).reshape(len(keys), length)
    words = np.ascontiguousarray(octets[:, :whole]).view("<u4").T
    hashed = np.full(len(keys), SEED ^ length, np.uint32)
    for word in words:
        k = word * m
        k ^= k >> np.uint32(24)
        hashed = hashed * m ^ k * m
    rest = octets[:, whole:].astype(np.uint32)
    for place in range(length - whole - 1, -1, -1):
        hashed ^= rest[:, place] << np.uint32(8 * place)
    if length > whole:
        hashed *= m
    hashed ^= hashed >> np.uint32(13)
    hashed *= m
    return hashed ^ hashed >> np.uint32(15)
