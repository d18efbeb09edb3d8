"""What is drained from fetched buffers: the committed records from the position on, and never a damaged batch."""

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.consumer.fetcher import READ_COMMITTED, FetchError, FetchResult, PartitionRecords
from aiokafka.errors import CorruptRecordException, TopicAuthorizationFailedError
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.structs import TopicPartition

from app.delivery.drain import drain
from app.delivery.transport import ConsumerThread, Fetched

TP = TopicPartition("raw", 3)
ABORT = b"\x00\x00\x00\x00"


def batch(first: int, values: list[bytes], producer: int = -1, control: bool = False) -> bytes:
    """A record batch as a broker stores it: offsets from `first` on."""
    transactional = producer >= 0
    builder = DefaultRecordBatchBuilder(2, 0, transactional, producer, 0, 0, 1 << 20)
    for place, value in enumerate(values):
        builder.append(place, 1000 + place, ABORT if control else b"k", value, [("h", b"1")])
    raw = bytearray(builder.build())
    raw[0:8] = first.to_bytes(8, "big")
    if control:
        raw[22] |= 0x20  # attributes, bit 5; the checksum is not checked for these
    return bytes(raw)


class FakeFetcher:
    """The parts of aiokafka's fetcher that `drain` uses."""

    def __init__(self, raw: bytes, position: int, aborted: list[tuple[int, int]] = [], check: bool = False) -> None:  # noqa: B006
        self.position, self.active, self.paused = position, True, False
        records = PartitionRecords(TP, MemoryRecords(raw), aborted, position, None, None, check, READ_COMMITTED)
        result: Any = FetchResult(TP, assignment=self, partition_records=records, backoff=0)
        self._records: dict[TopicPartition, Any] = {TP: result}
        self._subscriptions, self.reassignment_in_progress = self, False
        self._wait_consume_future = None
        self.notified = 0

    def state_value(self, tp: TopicPartition) -> "FakeFetcher":
        return self

    def consumed_to(self, position: int) -> None:
        self.position = position

    def _notify(self, future: object) -> None:
        self.notified += 1


def take(fetcher: Any, limit: int = 1000) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.value) for record in drain(fetcher, TP, limit)]


def test_records_come_with_all_their_parts() -> None:
    fetcher: Any = FakeFetcher(batch(7, [b"a"]), 7)
    (record,) = drain(fetcher, TP, 10)
    assert (record.topic, record.partition, record.offset, record.timestamp) == ("raw", 3, 7, 1000)
    assert (record.key, record.value, list(record.headers)) == (b"k", b"a", [("h", b"1")])
    assert fetcher.position == 8
    assert not fetcher._records
    assert fetcher.notified == 1


def test_a_fetch_that_was_taken_is_freed_at_once() -> None:
    fetcher: Any = FakeFetcher(batch(0, [b"a", b"b"]), 0)
    held = weakref.ref(fetcher._records[TP]._partition_records)
    gc.disable()
    try:
        assert len(take(fetcher)) == 2
        assert held() is None
    finally:
        gc.enable()


def test_a_position_in_the_middle_of_a_batch_skips_what_is_before_it() -> None:
    assert take(FakeFetcher(batch(0, [b"a", b"b", b"c"]), 1)) == [(1, b"b"), (2, b"c")]


def test_the_limit_ends_at_a_batch_and_the_rest_comes_next() -> None:
    fetcher = FakeFetcher(batch(0, [b"a", b"b"]) + batch(2, [b"c"]), 0)
    assert take(fetcher, 1) == [(0, b"a"), (1, b"b")]
    assert fetcher.position == 2
    assert fetcher.notified == 0
    assert take(fetcher, 1) == [(2, b"c")]
    assert not fetcher._records


def test_aborted_transactions_and_markers_are_passed_over() -> None:
    raw = batch(0, [b"gone"], producer=5) + batch(1, [b"marker"], producer=5, control=True) + batch(2, [b"kept"], 5)
    fetcher = FakeFetcher(raw, 0, aborted=[(5, 0)])
    assert take(fetcher) == [(2, b"kept")]
    assert fetcher.position == 3


def test_a_buffer_that_holds_only_markers_moves_the_position() -> None:
    fetcher = FakeFetcher(batch(4, [b"marker"], producer=5, control=True), 4)
    assert take(fetcher) == []
    assert fetcher.position == 5


def test_a_damaged_batch_is_an_error_and_is_fetched_again() -> None:
    raw = bytearray(batch(0, [b"abc"]))
    raw[-2] ^= 1
    fetcher: Any = FakeFetcher(bytes(raw), 0, check=True)
    with pytest.raises(CorruptRecordException, match="raw, partition 3"):
        drain(fetcher, TP, 10)
    assert fetcher.position == 0
    assert not fetcher._records


def test_a_buffer_from_before_a_seek_is_dropped() -> None:
    fetcher = FakeFetcher(batch(0, [b"a"]), 0)
    fetcher.position = 50
    assert take(fetcher) == []
    assert not fetcher._records


def test_what_the_fetch_met_is_raised_once() -> None:
    fetcher: Any = FakeFetcher(b"", 0)
    fetcher._records[TP] = FetchError(error=TopicAuthorizationFailedError("raw"), backoff=0)
    with pytest.raises(TopicAuthorizationFailedError):
        drain(fetcher, TP, 10)
    assert not fetcher._records


def test_nothing_is_taken_during_a_rebalance() -> None:
    fetcher = FakeFetcher(batch(0, [b"a"]), 0)
    fetcher.reassignment_in_progress = True
    assert take(fetcher) == []
    assert fetcher._records


async def test_a_fetch_of_markers_alone_reaches_the_lane_so_that_the_next_one_is_no_gap() -> None:
    """A transaction's marker may come in a fetch of its own, and the position moves over it."""
    fetcher: Any = FakeFetcher(batch(7, [b"\x00" * 6], producer=1, control=True), 7)
    assignment = SimpleNamespace(_tp_state={TP: PositionOf(fetcher)})
    subscription = SimpleNamespace(subscription=SimpleNamespace(assignment=assignment))
    consumer: Any = SimpleNamespace(_fetcher=fetcher, _subscription=subscription)
    thread: Any = SimpleNamespace(delivery=SimpleNamespace(room_for=lambda tp: 10))
    taken = await ConsumerThread._take(thread, consumer, {TP})
    assert taken == {TP: Fetched([], 7, 8, 0)}


class PositionOf:
    """aiokafka's state of a partition, as far as the transport looks."""

    def __init__(self, fetcher: FakeFetcher) -> None:
        self._fetcher = fetcher

    @property
    def _position(self) -> int:
        return self._fetcher.position
