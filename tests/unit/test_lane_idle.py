"""When a lane counts as stuck: not when it had nothing to do, and not while Kafka isn't there."""

import time
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.structs import TopicPartition
from pydantic import ValidationError

from app.delivery.lane import MAX_BACKOFF_S, Lane
from app.delivery.supervisor import Supervisor
from app.errors import StateError
from app.kafka import answers
from app.settings import DeliverySettings, KafkaSettings


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


async def test_a_lane_that_stands_still_ends_the_worker_only_while_kafka_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held, there = lane(), False

    async def answer(_: object) -> bool:
        return there

    monkeypatch.setattr("app.delivery.supervisor.answers", answer)
    held.ready = True
    held.post(lambda view, out: None)
    settings = SimpleNamespace(kafka=None, delivery=SimpleNamespace(stall_timeout_s=60))
    delivery: Any = SimpleNamespace(lanes={held.tp: held}, settings=settings)
    supervisor = Supervisor(delivery)
    now = time.monotonic()
    held.moved_at = now - 61
    await supervisor._check_moving(now)
    there = True
    await supervisor._check_moving(now + 59)  # the time begins anew when Kafka comes back
    with pytest.raises(StateError, match="didn't move for 61 s"):
        await supervisor._check_moving(now + 61)


async def test_kafka_answers_when_one_of_its_servers_does(monkeypatch: pytest.MonkeyPatch) -> None:
    async def connect(host: str, port: int, **_: object) -> Any:
        if port != 2:
            raise ConnectionRefusedError
        return SimpleNamespace(close=lambda: None)

    monkeypatch.setattr("app.kafka.create_conn", connect)
    assert await answers(KafkaSettings(bootstrap_servers="a:1,b:2"))
    assert not await answers(KafkaSettings(bootstrap_servers="a:1,b:3"))


def test_a_lane_that_pauses_after_errors_is_never_taken_for_stuck() -> None:
    least = next(each.ge for each in DeliverySettings.model_fields["stall_timeout_s"].metadata if hasattr(each, "ge"))
    assert least >= 2 * MAX_BACKOFF_S


def test_the_first_pause_after_an_error_is_never_longer_than_those_that_follow() -> None:
    assert DeliverySettings(retry_backoff_s=MAX_BACKOFF_S).retry_backoff_s == MAX_BACKOFF_S
    with pytest.raises(ValidationError, match="retry_backoff_s"):
        DeliverySettings(retry_backoff_s=MAX_BACKOFF_S + 0.1)


async def test_looking_for_an_answer_reads_certificates_once_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[KafkaSettings] = []

    async def connect(host: str, port: int, **_: object) -> Any:
        raise ConnectionRefusedError

    monkeypatch.setattr("app.kafka.create_conn", connect)
    monkeypatch.setattr("app.kafka.ssl_context", read.append)
    assert not await answers(KafkaSettings(bootstrap_servers="a:1,b:2,c:3"))
    assert len(read) == 3
