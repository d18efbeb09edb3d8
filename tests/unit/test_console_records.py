"""Records of a topic: which are the first and the newest, however partitions come, and that a page keeps rows alone."""

from types import SimpleNamespace
from typing import Any

from aiokafka.structs import TopicPartition
from hypothesis import given, settings
from hypothesis import strategies as st

from app.web.console.pages.records import Found
from app.web.scan import Asked, Budget, Progress, _Reading

Log = dict[int, list[int]]
"""Times of the records of each partition."""


class Partitions:
    """A consumer of partitions that come in turns, `step` records at a time."""

    def __init__(self, log: Log, step: int) -> None:
        self.log, self.step, self.turn = log, step, 0
        self.at: dict[int, int] = {}
        self.given = 0

    async def beginning_offsets(self, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(tps, 0)

    async def end_offsets(self, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: len(self.log[tp.partition]) for tp in tps}

    def assign(self, tps: list[TopicPartition]) -> None: ...

    def pause(self, *tps: TopicPartition) -> None: ...

    def seek(self, tp: TopicPartition, offset: int) -> None:
        self.at[tp.partition] = offset

    async def position(self, tp: TopicPartition) -> int:
        return self.at[tp.partition]

    async def getmany(self, *tps: TopicPartition, timeout_ms: int) -> dict[TopicPartition, list[Any]]:
        tp = sorted(tps)[self.turn % len(tps)]
        self.turn += 1
        first = self.at[tp.partition]
        self.at[tp.partition] = min(first + self.step, len(self.log[tp.partition]))
        found = [record(tp.partition, offset, self.log) for offset in range(first, self.at[tp.partition])]
        self.given += len(found)
        return {tp: found}


def record(partition: int, offset: int, log: Log) -> Any:
    return SimpleNamespace(
        partition=partition, offset=offset, timestamp=log[partition][offset], key=b"k", value=b"v" * 1000, headers=(),
        serialized_key_size=1, serialized_value_size=1000,
    )  # fmt: skip


async def first(
    log: Log, step: int, rows: int, start: Any = "oldest"
) -> tuple[list[tuple[int, int]], Progress, Partitions]:
    consumer, asked = Partitions(log, step), Asked(topic="t", start=start, rows=rows)
    found = Found(rows, newest=start == "newest", row=lambda r: {"id": (r.partition, r.offset)})
    reading = _Reading(consumer, asked, Budget(), lambda records, _: found.take(records))  # type: ignore[arg-type]  # all it calls
    await reading.run([TopicPartition("t", partition) for partition in log])
    return [row["id"] for row in found.rows], reading.end(), consumer


LOGS = st.dictionaries(
    st.integers(0, 3), st.lists(st.integers(0, 50), max_size=30).map(sorted), min_size=1, max_size=4
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(LOGS, st.integers(1, 7), st.integers(1, 10))
async def test_the_first_by_time_are_the_same_however_partitions_come(log: Log, step: int, rows: int) -> None:
    found, progress, _ = await first(log, step, rows)
    ordered = sorted((at, p, offset) for p, times in log.items() for offset, at in enumerate(times))
    assert sorted(log[p][offset] for p, offset in found) == [at for at, *_ in ordered[:rows]]
    assert progress.why == ("rows" if len(ordered) > rows else "complete")


async def test_a_quick_partition_does_not_push_out_older_records_of_a_slow_one_and_no_more_is_read_than_needed() -> (
    None
):
    log = {0: list(range(1000, 2000)), 1: list(range(500, 1500))}
    found, progress, consumer = await first(log, 10, 5)
    assert found == [(1, n) for n in range(5)]
    assert progress.why == "rows"
    assert consumer.given <= 40


async def test_within_a_partition_offsets_rule_even_where_times_go_back() -> None:
    found, *_ = await first({0: [5, 3, 4, 9]}, 2, 3)
    assert found == [(0, 0), (0, 1), (0, 2)]


async def test_the_newest_come_first_over_all_partitions() -> None:
    found, *_ = await first({0: [1, 4, 6], 1: [2, 3, 7]}, 2, 4, start="newest")
    assert found == [(1, 2), (0, 2), (0, 1), (1, 1)]


def test_rows_are_kept_no_records_and_named_by_their_place() -> None:
    made: list[int] = []

    def row(each: Any) -> dict[str, Any]:
        made.append(each.offset)
        return {"id": f"{each.partition}/{each.offset}"}

    found = Found(2, newest=False, row=row)
    log = {0: [1, 2, 3, 4]}
    found.take([record(0, offset, log) for offset in range(4)])
    assert (found.rows, len(found)) == ([{"id": "0/0"}, {"id": "0/1"}], 2)
    assert made == [0, 1]
