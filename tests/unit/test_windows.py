"""Windows: hard inputs, idle partitions, changed definitions; without Kafka (agents.windows)."""

import json
import time
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.structs import TopicPartition

from agents.hopping import CLOSED_AT_ONCE, HELD_PANES
from agents.upstream import apart
from agents.windows import chained
from app.delivery.stage import Batch
from app.errors import SettingsError
from app.logic.aggregates import pack_time
from app.logic.windows import first_open, missed, oldest_open
from app.settings import Settings, load
from tables.panes import read_place, show_place
from tests.helpers.windows import Given, Rig, recompute


def declared(aggregate: dict[str, Any] | None = None, **more: Any) -> Settings:
    short = {"name": "agg", "size_s": 60, "hop_s": 30, "grace_s": 10, **(aggregate or {})}
    return Settings.model_validate({"sources": [{"name": "raw", "topic": "raw"}], "aggregates": [short], **more})


def feed(rig: Rig, *events: Given, start: int = 0) -> None:
    rig.take(enumerate(events, start))
    rig.settle()


def test_a_window_closes_when_the_watermark_reaches_its_end() -> None:
    rig = Rig(declared())
    feed(rig, Given("a", 31_000), Given("b", 69_999))
    assert rig.windows() == {}
    feed(rig, Given("b", 70_000), start=2)
    assert list(rig.windows()) == [("a", 0)]


def test_bounds_are_half_open() -> None:
    rig = Rig(declared({"hop_s": 60, "grace_s": 0}))
    feed(rig, Given("a", 59_999), Given("a", 60_000), Given("a", 120_000))
    assert {place: window["events"] for place, window in rig.windows().items()} == {("a", 0): 1, ("a", 60_000): 1}


def test_windows_begin_before_1970_for_the_first_events_of_time() -> None:
    rig = Rig(declared())
    feed(rig, Given("a", 0), Given("b", 500_000))
    assert set(rig.windows()) == {("a", -30_000), ("a", 0)}


def test_an_event_that_is_late_for_one_window_counts_in_the_other_and_is_told_which() -> None:
    rig = Rig(declared())
    feed(rig, Given("b", 75_000), Given("a", 40_000), Given("b", 500_000))
    assert {place for place in rig.windows() if place[0] == "a"} == {("a", 30_000)}
    ((key, _, headers),) = rig.of("late-events")
    assert (key, headers["headrace.windows"], headers["headrace.aggregate"]) == (b"a", b"0", b"agg")
    assert (headers["headrace.watermark"], headers["headrace.watermark-by"]) == (b"65000", b"0")


def test_a_clock_a_year_ahead_closes_nothing_and_is_counted() -> None:
    rig, now = Rig(declared()), 1_900_000_000_000
    year = 365 * 86_400_000
    feed(rig, Given("a", now), Given("mad", now + year), Given("a", now + 1000), Given("b", now + 600_000))
    assert rig.counts["ahead", ""] == 1
    assert rig.counts["late", "agg"] == 0
    ((key, _, headers),) = rig.of("late-events")
    assert (key, headers["headrace.ahead-ms"]) == (b"mad", b"%d" % year)
    assert {window["events"] for window in rig.windows().values()} == {2}


def test_very_many_events_of_one_entity_stay_bounded_and_the_cut_is_counted() -> None:
    rig = Rig(declared({"sequence": 50, "features": [{"name": "ids", "kind": "distinct", "field": "event_id"}]}))
    count, step = 300_000, 20_000
    for first in range(0, count, step):
        rig.take((n, Given("a", 30_000 + n % 29_000)) for n in range(first, first + step))
    assert max(map(len, rig.rows().values())) < 10_000
    feed(rig, Given("b", 500_000), start=count)
    ((_, window, _), *_) = [row for row in rig.of("agg-events") if row[1]["entity"] == "a"]
    assert (window["events"], len(window["sequence"]), window["cut"]) == (count, 50, count - 50)
    assert window["estimated"] == ["ids"]
    assert 0.8 < window["features"]["ids"] / count < 1.2
    assert rig.counts["cut", "agg"] >= count - 50


def test_keys_of_ten_kilobytes_and_of_any_bytes_are_apart() -> None:
    rig = Rig(declared())
    keys = [b"x" * 10_240, b"\xff\x00", b"\xfe\x00", b"a\x00b", b"\xff"]
    taken = []
    for offset, key in enumerate(keys):
        given = Given("", 1000)
        record = given.record(offset)
        record.key = key
        taken.append((record, given.event(offset)))
    out = rig.fresh()
    rig.chain.take(Batch([], 0, rig.view, out), taken)
    rig.commit(out)
    feed(rig, Given("end", 500_000), start=10)
    written = [(key, value["id"]) for key, value, _ in rig.of("agg-events")]
    assert sorted(key for key, _ in written) == sorted([*keys, *keys])
    assert len({name for _, name in written}) == len(written)


def test_labels_beyond_a_hundred_are_counted_together_and_long_ones_are_cut() -> None:
    rig = Rig(declared({"sequence": 0}))
    feed(rig, *[Given("a", 1000, f"{n}-" + "x" * 1000) for n in range(150)], Given("b", 500_000))
    (window,) = [value for _, value, _ in rig.of("agg-events") if value["start_ms"] == 0]
    assert (len(window["counts"]), window["other"], window["sequence"], window["cut"]) == (100, 50, [], 0)
    assert max(map(len, window["counts"])) == 64


def test_features_take_numbers_in_text_and_leave_the_rest() -> None:
    kinds = ("sum", "min", "max", "first", "last")
    features = [{"name": kind, "kind": kind, "field": "payload.amount"} for kind in kinds]
    rig = Rig(declared({"features": features}))
    amounts = ["2.5", 4, True, "nan", "1e999", None, [1], "", 10**30, -1]
    feed(rig, *[Given("a", 1000 + n, amount=amount) for n, amount in enumerate(amounts)], Given("b", 500_000))
    window = rig.windows()["a", 0]
    assert window["features"] == {"sum": 5.5, "min": -1, "max": 4, "first": 2.5, "last": -1}


def test_sums_beyond_64_bits_go_on_as_floats() -> None:
    rig = Rig(declared({"features": [{"name": "sum", "kind": "sum", "field": "payload.amount"}]}))
    feed(rig, *[Given("a", 1000, amount=2**62) for _ in range(5)], Given("b", 500_000))
    assert rig.windows()["a", 0]["features"]["sum"] == 5.0 * 2**62


def test_an_idle_partition_closes_its_windows_with_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, begun = Rig(declared()), time.monotonic()
    feed(rig, Given("a", 31_000))

    def tick(seconds: float, read: bool = True) -> None:
        monkeypatch.setattr("agents.windows.time.monotonic", lambda: begun + seconds)
        rig.idle = read
        rig.chain.tick(rig.lane)
        rig.settle()

    tick(29)
    assert rig.windows() == {}, "quiet for less than idle_s"
    tick(300, read=False)
    assert rig.windows() == {}, "not all is read"
    tick(38)
    assert rig.windows() == {}, "31 s + 38 s isn't the end and the grace yet"
    tick(40)
    assert list(rig.windows()) == [("a", 0)]
    tick(70)
    assert list(rig.windows()) == [("a", 0), ("a", 30_000)]
    assert [key for key in rig.rows() if key.startswith(b"p")] == []
    feed(rig, Given("a", 32_000), start=1)
    ((_, _, headers),) = rig.of("late-events")
    assert (headers["headrace.windows"], headers["headrace.watermark-by"]) == (b"0,30000", b"-1")


def test_input_between_the_tick_and_its_work_calls_the_clock_off(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, begun = Rig(declared()), time.monotonic()
    feed(rig, Given("a", 31_000))
    rig.idle = True
    monkeypatch.setattr("agents.windows.time.monotonic", lambda: begun + 300)
    rig.chain.tick(rig.lane)
    rig.take([(1, Given("a", 32_000))])
    assert rig.windows() == {}


def test_a_new_owner_goes_on_closing_before_anything_else() -> None:
    rig = Rig(declared(windows={"close_windows": 1}))
    events = [Given(name, 1000) for name in "abcdef"]
    rig.take(enumerate([*events, Given("z", 500_000)]))
    assert len(rig.windows()) == 2, "one with the batch, one as the work that waited"
    assert not rig.chain.room(rig.lane)
    rig.begin()
    rig.settle()
    assert set(rig.windows()) == {(name, start) for name in "abcdef" for start in (-30_000, 0)}
    assert rig.chain.room(rig.lane)


def test_panes_of_a_changed_aggregate_are_removed_and_counted() -> None:
    rig = Rig(declared())
    feed(rig, Given("a", 1000), Given("b", 2000))
    rig.settings = declared({"sequence": 5})
    rig.begin()
    rig.settle()
    assert rig.counts["purged", "agg"] == 2
    feed(rig, Given("a", 3000), Given("b", 500_000), start=2)
    assert rig.windows()["a", 0]["events"] == 1
    assert sum(key.startswith(b"g") for key in rig.rows()) == 1


def test_another_grace_keeps_what_is_open() -> None:
    rig = Rig(declared())
    feed(rig, Given("a", 1000))
    rig.settings = declared({"grace_s": 20})
    rig.begin()
    feed(rig, Given("b", 500_000), start=1)
    assert ("a", 0) in rig.windows()


def test_aggregates_side_by_side_each_have_their_own() -> None:
    tree = declared().model_dump()
    tree["aggregates"].append({"name": "pays", "types": ["pay"], "size_s": 10, "hop_s": 10, "grace_s": 0})
    rig = Rig(Settings.model_validate(tree))
    events = [Given("a", 1000, "pay"), Given("a", 2000), Given("b", 500_000, "pay")]
    feed(rig, *events)
    names = [(v["aggregate"], v["start_ms"], v["events"]) for _, v, _ in rig.of("agg-events") if v["entity"] == "a"]
    assert sorted(names) == [("agg", -30_000, 2), ("agg", 0, 2), ("pays", 0, 1)]
    want = recompute(events, 60_000, 30_000, 10_000)
    assert len(want.windows) == 2


@pytest.mark.parametrize(
    ("aggregate", "word"),
    [
        ({"hop_s": 25}, "hop_s"),
        ({"hop_s": 0.1}, "hop_s"),
        ({"grace_s": 0.0001}, "grace_s"),
        ({"size_s": 0}, "size_s"),
        ({"when": [{"field": "event_type", "op": "matches", "value": "("}]}, "aggregate agg"),
        ({"features": [{"name": "x", "kind": "sum", "field": "a[["}]}, "feature x"),
        ({"sources": ["other"]}, "other"),
    ],
)
def test_an_aggregate_that_can_not_be_is_refused_with_its_field(aggregate: dict[str, Any], word: str) -> None:
    with pytest.raises((ValueError, SettingsError), match=word):
        Rig(declared(aggregate))


def test_an_aggregate_over_a_source_that_hops_or_over_two_runs_in_a_stage_of_its_own() -> None:
    tree = declared().model_dump()
    assert [declared().chained_to(a) for a in declared().aggregates] == ["raw"]
    tree["sources"][0]["rekey"] = True
    made = Settings.model_validate(tree)
    assert (chained(made, "raw"), [a.sources for a in apart(made)]) == ([], [["raw"]])
    tree["sources"] = [{"name": name, "topic": name} for name in ("x", "y")]
    made = Settings.model_validate(tree)
    assert (chained(made, "x"), [a.sources for a in apart(made)]) == ([], [["x", "y"]])


def test_a_hint_from_windows_that_ingest_does_not_make_is_refused() -> None:
    tree = declared().model_dump()
    tree["sources"] = [{"name": name, "topic": name} for name in ("x", "y")]
    tree["intents"] = [{"name": "i", "aggregate": "agg", "when": [{"count": "*", "at_least": 1}], "deep_s": 5}]
    with pytest.raises(ValueError, match="intent i, deep_s"):
        Settings.model_validate(tree)


def test_noise_alone_does_not_keep_windows_open(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, begun = Rig(declared()), time.monotonic()
    feed(rig, Given("a", 31_000))
    rig.idle = True
    for seconds in (20, 40):
        monkeypatch.setattr("agents.windows.time.monotonic", lambda at=seconds: begun + at)
        rig.take([])  # a batch of which nothing counts
        rig.chain.tick(rig.lane)
        rig.settle()
    assert list(rig.windows()) == [("a", 0)]


def test_closing_is_done_in_steps_between_batches_of_input() -> None:
    rig = Rig(declared({"hop_s": 60, "grace_s": 0}))
    users = [Given(f"u{n}", 1000) for n in range(2 * CLOSED_AT_ONCE)]
    rig.take(enumerate(users))
    rig.take([(len(users), Given("z", 60_000))])
    first = len(rig.windows())
    assert CLOSED_AT_ONCE <= first < len(users)
    assert rig.chain.room(rig.lane), "more closes with each batch than it can open"
    rig.take([(len(users) + 1, Given("z", 60_001))])
    assert len(rig.windows()) > first
    rig.settle()
    assert len(rig.windows()) == len(users)


def test_a_batch_that_was_given_up_is_forgotten_in_memory_too() -> None:
    rig = Rig(declared())
    rig.take([(0, Given("a", 1000))])
    lost = rig.fresh()
    rig.chain.take(Batch([], 0, rig.view, lost), [(Given("a", 2000).record(1), Given("a", 2000).event(1))])
    feed(rig, Given("a", 2000), Given("b", 500_000), start=1)
    assert rig.windows()["a", 0]["events"] == 2


def test_the_built_in_aggregates_go_with_the_built_in_source(tmp_path: Any) -> None:
    assert [a.name for a in load().aggregates] == ["minute"]
    path = tmp_path / "headrace.toml"
    path.write_text('[[sources]]\nname = "own"\ntopic = "own"\n')
    own = load(path)
    assert (own.aggregates, own.intents) == ([], [])


def test_window_arithmetic() -> None:
    assert [missed(30_000, 30_000, 2, at) for at in (59_999, 60_000, 90_000, 10**9)] == [0, 1, 2, 2]
    assert [oldest_open(30_000, 30_000, 2, late) for late in (0, 1)] == [0, 30_000]
    assert [first_open(at, 60_000, 30_000) for at in (59_999, 60_000, 89_999)] == [0, 30_000, 30_000]


def test_written_windows_are_json_with_every_field_of_the_handbook() -> None:
    rig = Rig(declared())
    feed(rig, Given("a", 1000), Given("b", 500_000))
    (value,) = [value for _, value, _ in rig.of("agg-events") if value["start_ms"] == 0]
    assert value["id"] == "a@agg@0"
    assert value["source"] == {"topic": "raw", "partition": 0, "offset": 0}
    assert json.dumps(value)


@pytest.mark.parametrize("entity", ["a", "a/b/c", "用户", ""])
def test_the_key_of_a_pane_is_shown_and_read_back(entity: str) -> None:
    key = bytes(range(8)) + pack_time(-30_000) + entity.encode()
    assert show_place(key) == f"0001020304050607/-30000/{entity}"
    assert read_place(show_place(key)) == key
    assert read_place("nonsense") == b"nonsense"


def test_partitions_share_what_may_be_held_and_get_it_back() -> None:
    rig = Rig(declared())
    chain = rig.chain
    one = chain._of(0)
    chain._of(1)
    assert one.desk.limit == HELD_PANES // 2
    other: Any = SimpleNamespace(tp=TopicPartition("raw", 1))
    chain.closed(other)
    assert one.desk.limit == HELD_PANES
