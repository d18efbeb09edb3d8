"""Bad event times and keys on their way through ingest into windows, inside it and in the stage of their own."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from app.settings import Settings
from tests.helpers.pipeline import NOW_MS, Pipeline, clocked

HOUR_MS, YEAR_MS = 3_600_000, 365 * 86_400_000
GRACE_MS = 10_000


def declared(apart: bool) -> Settings:
    """One source, whose windows run inside its ingest; with `apart` a second one makes a stage of them."""
    sources = [{"name": name, "topic": name} for name in (("x", "y") if apart else ("x",))]
    window = {"name": "agg", "size_s": 60, "hop_s": 30, "grace_s": GRACE_MS / 1000}
    return Settings.model_validate({"sources": sources, "aggregates": [window], "windows": {"idle_s": 5}})


@pytest.fixture
def clock() -> Iterator[Any]:
    with clocked() as clock:
        yield clock


def made(apart: bool) -> Pipeline:
    return Pipeline(declared(apart), {"x": 1, "y": 1})


def send(pipeline: Pipeline, clock: Any, *events: dict[str, Any], key: bytes = b"a") -> None:
    for number, event in enumerate(events):
        value = {"event_id": f"{len(pipeline.logs)}-{number}-{pipeline.now_ms}", "event_type": "view", **event}
        pipeline.append("x", 0, key, json.dumps(value).encode())
    pipeline.settle()
    pipeline.tick(1.0, clock)


def ended(pipeline: Pipeline, clock: Any) -> list[dict[str, Any]]:
    for _ in range(90):
        pipeline.tick(1.0, clock)
    return pipeline.windows_written()


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(
    ("event", "reason"),
    [
        ({}, "missing-field"),
        ({"event_time": None}, "missing-field"),
        ({"event_time": ""}, "bad-time"),
        ({"event_time": -1}, "bad-time"),
        ({"event_time": "soon"}, "bad-time"),
        ({"event_time": True}, "bad-field"),
        ({"event_time": 10**30}, "bad-time"),
        ({"event_time": NOW_MS + 2 * YEAR_MS}, "bad-time"),
    ],
)
def test_an_event_without_a_time_that_can_be_is_a_dead_letter_and_moves_nothing(
    clock: Any, apart: bool, event: dict[str, Any], reason: str
) -> None:
    pipeline = made(apart)
    send(pipeline, clock, {"event_time": NOW_MS}, event, {"event_time": NOW_MS - 1000})
    (dead,) = pipeline.of("dead-letter")
    assert dict(dead.headers)["headrace.reason"] == reason.encode()
    assert {window["events"] for window in ended(pipeline, clock)} == {2}
    assert pipeline.of("late-events") == []


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("at_ms", [0, 1, NOW_MS - 30 * YEAR_MS, NOW_MS - 5 * HOUR_MS])
def test_an_event_of_long_ago_is_late_and_told_which_windows_it_missed(clock: Any, apart: bool, at_ms: int) -> None:
    pipeline = made(apart)
    send(pipeline, clock, {"event_time": NOW_MS})
    for _ in range(8):
        pipeline.tick(1.0, clock)  # behind another partition: it has said that it is idle
    send(pipeline, clock, {"event_time": at_ms})
    (late,) = pipeline.of("late-events")
    headers = dict(late.headers)
    first = (at_ms // 30_000 - 1) * 30_000
    assert headers["headrace.windows"] == b"%d,%d" % (first, first + 30_000)
    assert headers["headrace.origin"] == b"x/0/1"
    assert int(headers["headrace.watermark-by"]) >= 0
    assert pipeline.counts["late", "agg"] == 1
    assert {window["events"] for window in ended(pipeline, clock)} == {1}


@pytest.mark.parametrize("apart", [False, True])
def test_a_first_event_of_1970_has_its_windows(clock: Any, apart: bool) -> None:
    pipeline = made(apart)
    send(pipeline, clock, {"event_time": 0})
    assert {window["start_ms"] for window in ended(pipeline, clock)} == {-30_000, 0}


@pytest.mark.parametrize("apart", [False, True])
def test_a_clock_far_ahead_is_told_and_closes_nothing(clock: Any, apart: bool) -> None:
    pipeline = made(apart)
    send(pipeline, clock, {"event_time": NOW_MS}, {"event_time": NOW_MS + 30 * 86_400_000}, {"event_time": NOW_MS + 1})
    (ahead,) = pipeline.of("late-events")
    assert dict(ahead.headers)["headrace.ahead-ms"] == b"%d" % (30 * 86_400_000)
    assert pipeline.counts["ahead", ""] == 1
    assert {window["events"] for window in ended(pipeline, clock)} == {2}


@pytest.mark.parametrize("apart", [False, True])
def test_hours_of_disorder_within_one_partition_lose_nothing_unseen(clock: Any, apart: bool) -> None:
    pipeline, begin_ms = made(apart), NOW_MS - 10 * HOUR_MS
    times = [begin_ms + (number * 7919 % 1000) * 30_000 for number in range(300)]
    for place in range(0, len(times), 50):
        send(pipeline, clock, *[{"event_time": at_ms} for at_ms in times[place : place + 50]])
    counted = sum(window["events"] for window in ended(pipeline, clock))
    missed = [dict(record.headers)["headrace.windows"].count(b",") + 1 for record in pipeline.of("late-events")]
    assert counted + sum(missed) == 2 * len(times), "each event is in two windows, or told to have missed them"
    assert missed


@pytest.mark.parametrize("apart", [False, True])
def test_keys_of_ten_kilobytes_and_of_any_bytes_stay_apart_and_as_they_are(clock: Any, apart: bool) -> None:
    pipeline = made(apart)
    keys = [b"x" * 10_240, b"\xff\x00", b"\xfe\x00", b"a\x00b", b"\xff", "用户".encode()]
    for key in keys:
        send(pipeline, clock, {"event_time": NOW_MS}, key=key)
    windows = ended(pipeline, clock)
    assert sorted(record.key for record in pipeline.of("agg-events")) == sorted([*keys, *keys])
    assert len({window["id"] for window in windows}) == len(windows)
