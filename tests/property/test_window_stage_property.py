"""Windows over several sources and a rekey hop equal a recomputation, whatever the turns that lanes take, and crashes."""

import json
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agents.aggregate import STAGE
from app.logic.progress import Said, joined
from app.logic.redrive import examine
from app.settings import Settings
from tests.helpers.pipeline import NOW_MS, Pipeline, clocked
from tests.helpers.windows import Given, comparable, recompute

RUN = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
USERS = ("a", "b", "c", "d")
GRACE_MS = 5000
PARTITIONS = {"x": 2, "y": 2}


def declared(**more: Any) -> Settings:
    return Settings.model_validate(
        {
            "sources": [
                {"name": "x", "topic": "x"},
                {
                    "name": "y", "topic": "y", "format": "json", "event_id": "id", "event_type": "kind",
                    "event_time": "at", "entity": "who", "rekey": True,
                },
            ],
            "aggregates": [{"name": "agg", "size_s": 20, "hop_s": 10, "grace_s": GRACE_MS / 1000}],
            "windows": {"idle_s": 30},
            **more,
        }
    )  # fmt: skip


def fill(pipeline: Pipeline, rnd: random.Random, count: int, source: str | None = None) -> list[Given]:
    """Events in both sources, in each partition late by less than the grace; returns them."""
    begin_ms, found = NOW_MS - 10_000_000, []
    for number in range(count):
        at_ms = begin_ms + number * 400 - rnd.randrange(GRACE_MS - 1) // 401 * 401
        user, kind, where = rnd.choice(USERS), rnd.choice(("view", "pay")), source or rnd.choice("xy")
        found.append(Given(user, at_ms, kind))
        if where == "x":
            value = {"event_id": f"e{number}", "event_type": kind, "event_time": at_ms}
            pipeline.append("x", USERS.index(user) % 2, user.encode(), json.dumps(value).encode())
        else:
            value = {"id": f"e{number}", "kind": kind, "at": at_ms, "who": user}
            key = rnd.choice((None, b"cluster-7"))
            pipeline.append("y", rnd.randrange(2), key, json.dumps(value).encode())
    return found


def end(pipeline: Pipeline, clock: Any) -> None:
    pipeline.settle()
    for _ in range(80):
        pipeline.tick(1.0, clock)


@RUN
@given(seed=st.integers(0, 1 << 32), crashes=st.floats(0, 0.4))
def test_windows_equal_a_recomputation_whatever_turns_lanes_take(seed: int, crashes: float) -> None:
    rnd = random.Random(seed)
    with clocked() as clock:
        pipeline = Pipeline(declared(), PARTITIONS)
        events = fill(pipeline, rnd, rnd.randrange(1, 150))
        for _ in range(rnd.randrange(300)):
            clock.at += rnd.choice((0, 0.3, 1.1))
            lane = rnd.choice(pipeline.lanes)
            lane.step(rnd.randrange(1, 20), crash=rnd.random() < crashes)
            if rnd.random() < 0.2:
                lane.logic.tick(lane, pipeline.now_ms)
        end(pipeline, clock)
    want = recompute(sorted(events, key=lambda g: g.at_ms), 20_000, 10_000, GRACE_MS, ended=True).windows
    got = comparable(pipeline.windows_written())
    for window in want.values():
        window["features"] = {}
    assert {place: shown(window) for place, window in got.items()} == {p: shown(w) for p, w in want.items()}
    assert pipeline.of("late-events") == []


def shown(window: dict[str, Any]) -> dict[str, Any]:
    """Events of one time come in any order."""
    return {**window, "sequence": sorted(window["sequence"])}


def test_a_slow_source_holds_windows_open_until_it_is_read() -> None:
    with clocked() as clock:
        pipeline = Pipeline(declared(), PARTITIONS)
        fill(pipeline, random.Random(1), 200)
        quick = [lane for lane in pipeline.lanes if lane.stage != "ingest-y"]
        for _ in range(100):
            clock.at += 1
            for lane in quick:
                lane.logic.tick(lane, pipeline.now_ms)
                lane.step(50)
        assert pipeline.windows_written() == [], "y has said nothing: its events may come into any window"
        end(pipeline, clock)
        assert pipeline.of("late-events") == []
        assert len(pipeline.windows_written()) > 10


def test_an_idle_source_holds_up_nothing_and_its_windows_close_too() -> None:
    with clocked() as clock:
        pipeline = Pipeline(declared(), PARTITIONS)
        fill(pipeline, random.Random(1), 20, source="x")
        pipeline.settle()
        pipeline.tick(29, clock)
        assert pipeline.windows_written() == [], "nothing has been quiet for idle_s"
        end(pipeline, clock)
        assert sum(w["events"] for w in pipeline.windows_written()) == 40
        assert [row for row in pipeline.lanes[-1].database.rows if row.startswith(b"p")] == []


def test_windows_wait_for_an_idle_partition_whose_worker_is_gone() -> None:
    with clocked() as clock:
        pipeline = Pipeline(declared(), PARTITIONS)
        fill(pipeline, random.Random(1), 20, source="x")
        pipeline.settle()
        for _ in range(32):
            pipeline.tick(1.0, clock)
        before = pipeline.windows.slots[0].high_ms
        pipeline.lanes = [lane for lane in pipeline.lanes if lane.stage != "ingest-y"]
        now = pipeline.now_ms + 100_000
        for partition in (0, 1):
            value = {"event_id": f"late-{partition}", "event_type": "view", "event_time": now}
            pipeline.append("x", partition, b"ab"[partition : partition + 1], json.dumps(value).encode())
        pipeline.now_ms = now
        pipeline.settle()
        pipeline.tick(2.0, clock)
        assert before <= pipeline.windows.slots[0].high_ms < now - 90_000


def test_records_without_an_entity_are_counted_and_in_no_window() -> None:
    with clocked() as clock:
        pipeline = Pipeline(declared(), PARTITIONS)
        pipeline.append("x", 0, None, b'{"event_id": "1", "event_type": "view", "event_time": 1899999999000}')
        pipeline.append("y", 0, None, b'{"id": "2", "kind": "view", "at": 1899999999000}')
        pipeline.append("y", 0, None, b'{"id": "3", "kind": "view", "at": 1899999999000, "who": "a"}')
        end(pipeline, clock)
        assert pipeline.counts["unkeyed", "x"] == 1
        assert pipeline.counts["unkeyed", "y"] == 1
        assert {w["entity"] for w in pipeline.windows_written()} == {"a"}
        assert len(pipeline.of("clean-events")) == 3


def test_an_event_ahead_of_its_append_time_moves_nothing() -> None:
    with clocked() as clock:
        pipeline = Pipeline(declared(), PARTITIONS)
        fill(pipeline, random.Random(1), 20, source="x")
        far = {"event_id": "far", "event_type": "view", "event_time": NOW_MS + 86_400_000}
        pipeline.append("x", 0, b"a", json.dumps(far).encode())
        pipeline.settle()
        pipeline.tick(1.0, clock)
        assert pipeline.windows.slots[0].high_ms < NOW_MS
        assert pipeline.counts["ahead", ""] == 1
        (record,) = pipeline.of("late-events")
        headers = dict(record.headers)
        assert headers["headrace.ahead-ms"] == b"86400000"
        assert headers["headrace.origin"].startswith(b"x/0/")
        assert record.value == json.dumps(far).encode()


def test_event_time_of_several_partitions() -> None:
    said = {"a": Said(100), "b": Said(70), "c": Said(500, 90), "d": Said(40, 60)}
    assert joined("ab", said) == Said(70)
    assert joined("ae", said) == Said(), "one has said nothing yet"
    assert joined("ac", said) == Said(90), "not past the moment when c last said that it is idle"
    assert joined("bc", said) == Said(70)
    assert joined("cd", said) == Said(500, 60), "all idle: the foremost clock counts"
    assert joined("", said) == Said()


@pytest.mark.parametrize("origins", ["ab", "abcd"])
def test_event_time_of_several_never_passes_the_slowest_that_is_awake(origins: str) -> None:
    said = {"a": Said(100), "b": Said(70), "c": Said(500, 900), "d": Said(40, 600)}
    assert joined(origins, said).high_ms == 70


def test_what_the_stage_cannot_read_goes_back_to_the_stage_and_not_before_the_duplicate_check() -> None:
    with clocked():
        pipeline = Pipeline(declared(), PARTITIONS)
        pipeline.append("window-events", 0, b"u1", b"{}", [("headrace.source", b"nobody")])
        pipeline.settle()
        (dead,) = pipeline.of("dead-letter")
    letter = examine(dead, {"window-events", "x"})
    assert (letter.stage, letter.topic, letter.topic_partition) == (STAGE, "window-events", 0)
    assert (letter.key, letter.value) == (b"u1", b"{}")
