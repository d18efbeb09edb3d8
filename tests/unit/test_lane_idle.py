"""A lane that had nothing to do isn't stuck when work comes."""

from types import SimpleNamespace
from typing import Any

from aiokafka.structs import TopicPartition

from app.delivery.lane import Lane


def lane() -> Lane:
    stage: Any = SimpleNamespace(name="s", delivery=None, state=None, transactional_id=lambda partition: "s-0")
    return Lane(stage.delivery, stage, TopicPartition("t", 0))


def test_work_posted_after_a_long_rest_begins_its_time_anew() -> None:
    idle = lane()
    idle.moved_at -= 1000
    rested_since = idle.moved_at
    assert idle.idle_reason == "no input"
    idle.post(lambda view, out: None)
    assert idle.idle_reason == ""
    assert idle.moved_at > rested_since + 900
    first = idle.moved_at = idle.moved_at - 50
    idle.post(lambda view, out: None)  # what waits already goes on waiting
    assert idle.moved_at == first
