"""Partitions of many keys at once are those that aiokafka's own partitioner gives each."""

from aiokafka.partitioner import DefaultPartitioner
from hypothesis import given
from hypothesis import strategies as st

from app.delivery.partitions import Partitioner, partition_for, partitions_for

lengths = st.integers(0, 40)


@given(st.lists(st.binary(max_size=40), max_size=50), st.integers(1, 48), lengths, st.randoms())
def test_many_keys_get_the_partitions_that_each_gets_alone(keys: list[bytes], count: int, length: int, rnd) -> None:  # type: ignore[no-untyped-def]  # hypothesis' Random
    keys = keys + [rnd.randbytes(length) for _ in range(20)]
    everyone = list(range(count))
    expected = [DefaultPartitioner()(key, everyone, everyone) if key else partition_for(b"", count) for key in keys]
    assert partitions_for(keys, count) == expected


def test_long_keys_are_hashed_too() -> None:
    keys = [bytes([n % 256]) * 10_000 for n in range(12)]
    assert partitions_for(keys, 24) == [partition_for(key, 24) for key in keys]


def test_a_memory_gives_the_same_partitions_and_begins_anew_when_full() -> None:
    partitioner = Partitioner(7, limit=10)
    keys = [b"u%d" % (n % 8) for n in range(100)]
    for start in range(0, 100, 10):
        assert partitioner.of(keys[start : start + 10]) == partitions_for(keys[start : start + 10], 7)
    more = [b"v%d" % n for n in range(5)]
    assert partitioner.of(more) == partitions_for(more, 7)
    assert partitioner._known == {}


def test_a_memory_of_keys_that_never_come_again_ends() -> None:
    partitioner = Partitioner(7, limit=10)
    keys = [b"e%d" % n for n in range(12)]
    assert partitioner.of(keys) == partitions_for(keys, 7)
    assert partitioner._known is None
    assert partitioner.of(keys) == partitions_for(keys, 7)
