"""Open items over a rebalance, with lanes that only note what is posted."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from aiokafka.structs import TopicPartition
from prometheus_client import REGISTRY

from agents.classify import Classify
from agents.open_items import OpenItems
from agents.pools import Open
from app.delivery.outbox import Outbox
from app.llm.ledger import Ledger
from app.settings import load
from models.events import Answer, ModelRequest, Origin
from tables.open_work import OpenItem, open_key

ANSWER = Answer(category="payment", confidence=1.0, model="stub")


class Partition:
    """State of one partition, and lanes on it in turn."""

    def __init__(self, number: int = 0) -> None:
        self.tp = TopicPartition("model-requests", number)
        self.rows: dict[bytes, OpenItem] = {}

    def scan(self, of: Any, start: bytes) -> Iterator[tuple[bytes, OpenItem]]:
        for key in sorted(self.rows):
            if key >= start:
                yield key, msgspec.structs.replace(self.rows[key])  # decoded anew each time

    def get_raw(self, of: Any, keys: list[bytes]) -> list[bytes | None]:
        return [b"there" if key in self.rows else None for key in keys]

    def lane(self, *others: "Partition") -> Any:
        return NotingLane(self, [self, *others])


class NotingLane:
    """Notes what is posted."""

    ready = True

    def __init__(self, partition: Partition, assigned: list[Partition]) -> None:
        self.tp, self.view = partition.tp, partition
        self.delivery = SimpleNamespace(lanes=dict.fromkeys(each.tp for each in assigned))
        self.posted: list[Any] = []
        self.post = self.posted.append


def item(event_id: str) -> OpenItem:
    request = ModelRequest(
        event_id=event_id, event_type="message", event_time_ms=1, entity="u", task="shop", text=f"text of {event_id}",
        source=Origin("raw", 0, 0), received_ms=1,
    )  # fmt: skip
    return OpenItem(request=request, opened_ms=1)


class Desk:
    """OpenItems, and what they told."""

    def __init__(self) -> None:
        self.opened: list[Open] = []
        self.gone: list[Open] = []
        self.items = OpenItems(load(), self.opened.append, self.gone.append)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def written(lane: Any) -> Outbox:
    out = Outbox(5)
    for work in lane.posted:
        work(lane.view, out)
    return out


def ids_of(out: Outbox) -> list[str]:
    return [msgspec.json.decode(value)["event_id"] for rows in out.sends.values() for _, value, _ in rows]


def test_a_call_goes_on_over_a_rebalance_and_its_answer_is_written_by_the_new_lane(desk: Desk) -> None:
    partition = Partition()
    partition.rows = {open_key(7): item("e-7")}
    before, after = partition.lane(), partition.lane()
    desk.items.ready(before)
    desk.items.closed(before)
    assert desk.items.total == 0
    desk.items.ready(after)
    assert len(desk.opened) == 1, "it is asked about already"
    assert not desk.gone
    desk.items.finish(desk.opened[0], ANSWER, "deep", "why")
    assert ids_of(written(after)) == ["e-7"]
    assert not before.posted


def test_an_answer_that_came_between_two_lanes_is_written_once_and_not_asked_for_again(desk: Desk) -> None:
    partition = Partition()
    partition.rows = {open_key(7): item("e-7"), open_key(8): item("e-8")}
    before, after = partition.lane(), partition.lane()
    desk.items.ready(before)
    first, second = desk.opened
    desk.items.finish(first, ANSWER, "deep", "posted to the old lane, which never got to it")
    desk.items.closed(before)
    desk.items.finish(second, ANSWER, "deep", "no lane was there")
    desk.items.ready(after)
    assert len(desk.opened) == 2
    assert ids_of(written(after)) == ["e-7", "e-8"]
    partition.rows.clear()
    assert desk.items.committed(after)
    assert desk.items.total == 0


def test_an_answer_that_waits_in_a_lane_that_begins_again_is_written_once(desk: Desk) -> None:
    partition = Partition()
    partition.rows = {open_key(7): item("e-7")}
    desk.items.ready(lane := partition.lane())
    desk.items.finish(desk.opened[0], ANSWER, "deep", "why")
    desk.items.ready(lane)  # its transaction failed; what was posted is still there
    assert len(desk.opened) == 1
    assert ids_of(written(lane)) == ["e-7"]


def test_an_outcome_that_the_old_lane_still_wrote_isnt_written_again(desk: Desk) -> None:
    partition = Partition()
    partition.rows = {open_key(7): item("e-7")}
    before, after = partition.lane(), partition.lane()
    desk.items.ready(before)
    desk.items.finish(desk.opened[0], ANSWER, "deep", "why")
    desk.items.closed(before)
    partition.rows.clear()  # its last transaction took effect
    desk.items.ready(after)
    assert not after.posted
    assert desk.gone == desk.opened


def test_what_another_worker_has_now_is_let_go(desk: Desk) -> None:
    kept, moved = Partition(0), Partition(1)
    kept.rows, moved.rows = {open_key(1): item("e-1")}, {open_key(1): item("e-2")}
    lanes = [partition.lane(kept, moved) for partition in (kept, moved)]
    for lane in lanes:
        desk.items.ready(lane)
    for lane in lanes:
        desk.items.closed(lane)
    only = kept.lane()
    desk.items.ready(only)
    assert [open_.item.request.event_id for open_ in desk.gone] == ["e-2"]
    gone = desk.gone[0]
    assert gone.done
    desk.items.finish(gone, ANSWER, "deep", "nobody wants it")
    assert not only.posted


def test_a_round_that_was_used_between_two_lanes_is_kept(desk: Desk) -> None:
    partition = Partition()
    partition.rows = {open_key(7): item("e-7")}
    desk.items.ready(before := partition.lane())
    desk.items.closed(before)
    desk.opened[0].item.round = 1
    desk.items.keep(desk.opened[0])
    desk.items.ready(after := partition.lane())
    (kept,) = written(after).local.values()
    assert kept is not None
    assert msgspec.msgpack.decode(kept, type=OpenItem).round == 1


def test_an_offset_that_holds_another_event_now_is_asked_about_anew(desk: Desk) -> None:
    partition = Partition()
    partition.rows = {open_key(7): item("e-7")}
    desk.items.ready(before := partition.lane())
    desk.items.closed(before)
    partition.rows = {open_key(7): item("other")}
    desk.items.ready(partition.lane())
    assert [open_.item.request.event_id for open_ in desk.opened] == ["e-7", "other"]
    assert [open_.item.request.event_id for open_ in desk.gone] == ["e-7"]


def test_what_is_dropped_between_two_lanes_is_taken_up_anew(desk: Desk) -> None:
    partition = Partition()
    partition.rows = {open_key(7): item("e-7")}
    desk.items.ready(before := partition.lane())
    desk.items.closed(before)
    desk.items.dropped(desk.opened[0])
    desk.items.ready(partition.lane())
    assert len(desk.opened) == 2
    assert not desk.opened[1].done


def test_what_waits_for_its_partition_waits_on_over_a_lane_that_never_got_ready(desk: Desk) -> None:
    partition = Partition()
    partition.rows = {open_key(7): item("e-7")}
    desk.items.ready(before := partition.lane())
    desk.items.closed(before)
    desk.items.closed(partition.lane())  # another rebalance, while State was restored
    desk.items.ready(after := partition.lane())
    assert len(desk.opened) == 1
    desk.items.finish(desk.opened[0], ANSWER, "deep", "why")
    assert ids_of(written(after)) == ["e-7"]


def test_what_another_worker_went_on_with_meanwhile_is_taken_from_state(desk: Desk) -> None:
    partition = Partition()
    partition.rows = {open_key(7): item("e-7")}
    desk.items.ready(before := partition.lane())
    desk.items.closed(before)
    partition.rows[open_key(7)].round = 2
    desk.items.ready(after := partition.lane())
    assert [open_.item.round for open_ in desk.opened] == [0, 2]
    assert desk.gone == desk.opened[:1]
    assert not after.posted


def test_an_answer_that_another_worker_went_past_closes_nothing_here(desk: Desk) -> None:
    partition = Partition()
    partition.rows = {open_key(7): item("e-7")}
    desk.items.ready(before := partition.lane())
    desk.items.finish(desk.opened[0], ANSWER, "deep", "posted, and never written")
    desk.items.closed(before)
    partition.rows[open_key(7)].round = 2
    desk.items.ready(after := partition.lane())
    assert len(desk.opened) == 2, "it is asked about anew"
    assert not desk.items.committed(after)
    assert not after.posted


def test_equal_offsets_of_two_partitions_that_moved_are_both_let_go(desk: Desk) -> None:
    first, second, kept = Partition(0), Partition(1), Partition(2)
    first.rows, second.rows = {open_key(1): item("e-1")}, {open_key(1): item("e-2")}
    lanes = [partition.lane(first, second, kept) for partition in (first, second)]
    for lane in lanes:
        desk.items.ready(lane)
    for lane in lanes:
        desk.items.closed(lane)
    desk.items.ready(kept.lane())
    assert sorted(open_.item.request.event_id for open_ in desk.gone) == ["e-1", "e-2"]


def test_what_is_open_in_a_partition_that_went_to_another_worker_is_no_longer_shown() -> None:
    def shown() -> tuple[float | None, float | None]:
        names = ("headrace_open_items", "headrace_oldest_open_seconds")
        open_, oldest = (REGISTRY.get_sample_value(name, {"stage": "classify"}) for name in names)
        return open_, oldest

    settings = load()
    app: Any = SimpleNamespace(ledger=Ledger(settings))
    stage = Classify(settings, app)
    stage.tiers.enqueue = lambda open_: None  # type: ignore[method-assign]  # no model is asked
    partition = Partition()
    partition.rows = {open_key(7): item("e-7")}
    partition.scan_rows = lambda prefix, start: iter(())  # type: ignore[attr-defined]  # nothing expires
    stage.ready(lane := partition.lane())
    stage.tick(lane, 2001)
    assert shown() == (1, 2)
    stage.closed(lane)
    assert shown() == (0, 0)
