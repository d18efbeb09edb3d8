"""Where a sink's partitions stand: a lag is shown of those that the consumer still has."""

from aiokafka.errors import IllegalStateError
from aiokafka.structs import TopicPartition
from prometheus_client import REGISTRY

from app.sinks.positions import Positions


def lag(partition: int) -> float | None:
    labels = {"sink": "positions-test", "topic": "t", "partition": str(partition)}
    return REGISTRY.get_sample_value("headrace_sink_lag_records", labels)


async def plain(topic: str) -> str:
    return "delete"


def test_a_partition_that_has_just_been_moved_keeps_no_other_from_showing_its_lag() -> None:
    def end_of(tp: TopicPartition) -> int | None:
        if tp.partition == 0:
            raise IllegalStateError(tp)
        return {1: 9, 2: None}[tp.partition]  # None: nothing was fetched of it yet

    positions = Positions("positions-test", plain)
    for partition in range(3):
        positions.begin(("t", partition), 4, None, 0, 9)
    positions.measure(end_of)
    assert [lag(partition) for partition in range(3)] == [None, 5, 0]
    positions.forget()
    assert [lag(partition) for partition in range(3)] == [None, None, None]
