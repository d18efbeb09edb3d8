"""Where a lane goes on reading (app.delivery.positions)."""

from typing import Any

from app.delivery.positions import Log, locate
from app.delivery.state import Applied


def a_log(**changes: Any) -> Log:
    return Log(**{"start": 0, "end": 100, "committed": None, "at_marker": None, "initial": 0, **changes})


def marker(offset: int = 49) -> Applied:
    return Applied(offset, 1000, 7, "life")


def test_a_new_state_begins_where_the_source_says() -> None:
    assert locate(None, a_log(initial=100)).next == 100


def test_a_new_state_never_begins_below_the_log() -> None:
    assert locate(None, a_log(start=10, initial=0)).next == 10


def test_the_marker_decides_and_a_reset_offset_is_only_reported() -> None:
    found = locate(marker(), a_log(committed=3, at_marker=(1000, 7)))
    assert (found.next, found.stop) == (50, "")
    assert "3" in found.notice


def test_a_committed_offset_that_agrees_is_no_notice() -> None:
    assert locate(marker(), a_log(committed=50, at_marker=(1000, 7))).notice == ""


def test_committed_work_without_state_stops_the_partition() -> None:
    assert "lost" in locate(None, a_log(committed=50)).stop


def test_a_log_that_ends_below_the_marker_stops_the_partition() -> None:
    assert "recreated or cut" in locate(marker(), a_log(end=20)).stop


def test_another_record_at_the_marker_stops_the_partition() -> None:
    assert "recreated" in locate(marker(), a_log(at_marker=(1000, 8))).stop


def test_no_record_at_the_marker_stops_the_partition_unless_the_topic_is_compacted() -> None:
    """A transaction's marker may stand there, in a topic that was made anew."""
    assert "recreated" in locate(marker(), a_log()).stop
    assert "recreated" in locate(marker(99), a_log()).stop
    assert locate(marker(), a_log(compacted=True)).next == 50


def test_a_marker_before_the_first_record_has_none_to_compare() -> None:
    """As the State of a partition that was added begins."""
    assert (locate(marker(-1), a_log()).next, locate(marker(-1), a_log()).stop) == (0, "")


def test_records_that_retention_took_are_counted() -> None:
    found = locate(marker(), a_log(start=60))
    assert (found.next, found.lost, found.stop) == (60, 10, "")
