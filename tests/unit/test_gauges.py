"""Gauges of a worker are of what it has: sums over workers count each partition and each account once."""

import time
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from aiokafka.structs import TopicPartition
from prometheus_client import REGISTRY

from agents.budget import Budget
from app.delivery.inbox import Inbox
from app.delivery.outbox import Outbox
from app.delivery.stage import Batch
from app.llm.budget import Request
from app.settings import Settings, load
from app.web.worker import Pages
from models.events import Received
from tests.helpers.held import Held

DAY_S = 86_400
NOW_MS = 1_796_000_000_000


def lag(partition: int) -> float | None:
    labels = {"stage": "gauge-test", "partition": str(partition)}
    return REGISTRY.get_sample_value("headrace_lag_records", labels)


def test_the_lag_of_a_partition_that_went_to_another_worker_is_no_longer_shown() -> None:
    def lane(partition: int) -> Any:
        tp = TopicPartition("t", partition)
        inbox = Inbox()
        inbox.begin(5)
        return SimpleNamespace(stage=SimpleNamespace(name="gauge-test"), tp=tp, ready=True, inbox=inbox)

    ends: dict[int, int | None] = {0: 15, 1: 25}
    delivery = SimpleNamespace(stages={}, lanes={n: lane(n) for n in (0, 1)}, log_end=lambda tp: ends[tp.partition])
    pages = Pages(SimpleNamespace(delivery=delivery))  # type: ignore[arg-type]  # what is measured of an app
    pages._measure()
    assert (lag(0), lag(1)) == (10, 20)
    del delivery.lanes[1]
    pages._measure()
    assert (lag(0), lag(1)) == (10, None)
    delivery.lanes[1] = lane(1)
    ends[0] = None
    pages._measure()
    assert (lag(0), lag(1)) == (None, 20)
    delivery.lanes[1].ready = False
    pages._measure()
    assert lag(1) is None


def usd(kind: str) -> float | None:
    return REGISTRY.get_sample_value("headrace_budget_usd", {"task": "gauge-task", "kind": kind})


class LaneOf:
    """What the stage asks of a lane."""

    ready = True

    def __init__(self, partition: int) -> None:
        self.tp, self.view = TopicPartition("budget", partition), Held()


class Stage:
    """The budget stage with a task of 2 dollars a day, at partition 3."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        tree = load()
        provider = tree.llm.chain()[0].model_copy(update={"name": "gauge-model", "requests_per_minute": 10})
        monkeypatch.setattr(Settings, "day_usd", lambda *_: 2.0)
        task = tree.tasks[0].model_copy(update={"name": "gauge-task"})
        llm = tree.llm.model_copy(update={"providers": [provider]})
        self.logic = Budget(tree.model_copy(update={"tasks": [task], "llm": llm}))
        self.lane: Any = LaneOf(3)

    def take(self, account: str, now_ms: int, day: str = "", amount: float = 1.0) -> None:
        request = Request(worker="w", lease=f"{day}{amount}", account=account, day=day, kind="lease", amount=amount)
        record = Received("budget", 3, 0, now_ms, b"k", msgspec.json.encode(request))
        out = Outbox(now_ms)
        self.logic.decide(Batch([record], 3, self.lane.view, out))
        self.lane.view.apply(out)


def day(now_ms: int) -> str:
    return time.strftime("%Y-%m-%dT00:00:00", time.gmtime(now_ms / 1000))


def test_an_account_that_went_to_another_worker_is_no_longer_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch)
    stage.take("gauge-task", NOW_MS, day(NOW_MS), 0.5)
    stage.take("@gauge-model/requests", NOW_MS, amount=5)
    share = {"provider": "gauge-model", "kind": "requests"}
    assert (usd("limit"), usd("leased")) == (2.0, 0.5)
    assert REGISTRY.get_sample_value("headrace_minute_share", share) == 0.5
    stage.logic.closed(LaneOf(2))  # type: ignore[arg-type]  # its place
    assert usd("limit") == 2.0
    stage.logic.closed(stage.lane)
    assert [usd(kind) for kind in ("limit", "settled", "leased")] == [None, None, None]
    assert REGISTRY.get_sample_value("headrace_minute_share", share) is None


def test_a_day_that_is_over_is_no_longer_shown_and_never_again(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch)
    today, tomorrow_ms = day(NOW_MS), NOW_MS + DAY_S * 1000
    stage.take("gauge-task", NOW_MS, today, 0.5)
    stage.logic.tick(stage.lane, NOW_MS)
    assert usd("leased") == 0.5
    stage.logic.tick(stage.lane, tomorrow_ms)
    assert usd("leased") is None
    stage.take("gauge-task", tomorrow_ms, today, 0.25)  # late
    assert usd("leased") is None
    stage.take("gauge-task", tomorrow_ms, day(tomorrow_ms), 0.75)
    assert usd("leased") == 0.75
    stage.logic.closed(stage.lane)
