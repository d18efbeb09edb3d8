"""Windows are a function of the records in their order: batches, crashes and bounded closing change nothing."""

import json
import random
from typing import Any
from unittest.mock import patch

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agents.open_windows import open_windows
from app.settings import Settings
from tests.helpers.windows import Given, Rig, comparable, recompute

SIZES = [(60, 30, 10), (60, 60, 0), (10, 2, 5), (30, 10, 0)]
"""Size, hop and grace in s."""
RUN = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))

AHEAD_MS = 1_900_000_600_001
"""One past what the append time of all events allows."""

one_event = st.builds(
    Given,
    entity=st.sampled_from(["a", "b", "a\x00b"]),
    at_ms=st.one_of(st.integers(0, 200_000), st.integers(0, 20).map(lambda n: n * 10_000), st.just(AHEAD_MS)),
    kind=st.sampled_from(["click", "pay", "fail"]),
    amount=st.one_of(st.none(), st.integers(-5, 1000), st.just("x")),
)


def long_stream(seed: int) -> list[Given]:
    """Events that go forward by jumps and come late by up to 100 s: nearly every one has something to it."""
    rnd, at_ms, found = random.Random(seed), 0, []
    for _ in range(rnd.randrange(20, 80)):
        at_ms += rnd.choice((0, 500, 3_000, 20_000))
        when = (
            AHEAD_MS if rnd.random() < 0.02 else max(0, at_ms - rnd.choice((0, 0, 0, 9_000, 25_000, 50_000, 100_000)))
        )
        found.append(Given(rnd.choice(("a", "b", "a\x00b")), when, rnd.choice(("click", "pay")), rnd.randrange(9)))
    return found


events = st.one_of(st.lists(one_event, max_size=30), st.integers(0, 1 << 32).map(long_stream))
cuts = st.lists(st.integers(1, 7), min_size=1, max_size=10)


INTENTS = [
    {"name": "many", "aggregate": "agg", "when": [{"count": "*", "at_least": 4}], "incident": "many"},
    {"name": "pay", "aggregate": "agg", "sequence": [{"label": "click"}, {"label": "pay"}], "category": "pay"},
    {"name": "fail", "aggregate": "agg", "when": [{"count": "fail", "at_least": 2}], "incident": "f", "early": False},
]


def declared(size: int, hop: int, grace: int, keep: int, close: int, **more: Any) -> Settings:
    feature = "payload.amount"
    return Settings.model_validate(
        {
            "sources": [{"name": "raw", "topic": "raw"}],
            "aggregates": [
                {
                    "name": "agg", "size_s": size, "hop_s": hop, "grace_s": grace, "sequence": keep,
                    "features": [
                        {"name": "total", "kind": "sum", "field": feature},
                        {"name": "least", "kind": "min", "field": feature},
                        {"name": "most", "kind": "max", "field": feature},
                        {"name": "first", "kind": "first", "field": feature},
                        {"name": "last", "kind": "last", "field": feature},
                        {"name": "kinds", "kind": "distinct", "field": "event_type"},
                    ],
                }
            ],
            "windows": {"close_windows": close},
            **more,
        }
    )  # fmt: skip


def feed(made: Rig, stream: list[Given], lengths: list[int], crashes: frozenset[int] = frozenset()) -> None:
    """Batches of these lengths over and over; those numbered in `crashes` are computed, lost, and come again."""
    place, number = 0, 0
    while place < len(stream):
        batch = list(enumerate(stream))[place : place + lengths[number % len(lengths)]]
        if number in crashes:
            made.take(batch, crash=True)
        made.take(batch)
        place += len(batch)
        number += 1
    made.settle()


@RUN
@given(stream=events, lengths=cuts, size=st.sampled_from(SIZES), keep=st.sampled_from([0, 3, 100]))
def test_windows_equal_a_recomputation_however_the_input_is_cut(
    stream: list[Given], lengths: list[int], size: tuple[int, int, int], keep: int
) -> None:
    want = recompute(stream, *(s * 1000 for s in size), keep=keep)
    made = Rig(declared(*size, keep, 1000))
    feed(made, stream, lengths)
    assert made.windows() == want.windows
    late = [(headers["headrace.origin"], headers.get("headrace.windows")) for _, _, headers in made.of("late-events")]
    assert sorted(where for where, starts in late if starts is None) == sorted(b"raw/0/%d" % n for n in want.ahead)
    assert [(where, starts) for where, starts in late if starts is not None] == [
        (b"raw/0/%d" % offset, b",".join(b"%d" % start for start in starts)) for offset, starts in want.late
    ]
    assert made.counts["late", "agg"] == len(want.late)
    assert made.counts["cut", "agg"] == sum(window["cut"] for window in want.windows.values())


@RUN
@given(stream=events, one=cuts, other=cuts, close=st.integers(1, 4), crashes=st.frozensets(st.integers(0, 12)))
def test_batches_crashes_and_bounded_closing_leave_the_same_state_and_outputs(
    stream: list[Given], one: list[int], other: list[int], close: int, crashes: frozenset[int]
) -> None:
    plain = Rig(declared(60, 30, 10, 5, 1000, intents=INTENTS))
    hard = Rig(declared(60, 30, 10, 5, close, intents=INTENTS))
    feed(plain, stream, one)
    hard.chain._of(0).desk.limit = 2
    with patch("agents.hopping.HELD_PANES", 2):
        feed(hard, stream, other, crashes)
    assert hard.windows() == plain.windows()
    assert hard.rows() == plain.rows()
    for topic in ("agent-trigger", "ai-results", "late-events"):
        assert sorted(map(repr, hard.of(topic))) == sorted(map(repr, plain.of(topic)))
    assert hard.counts == plain.counts


@RUN
@given(stream=events, lengths=cuts)
def test_panes_of_closed_windows_are_gone_and_counted(stream: list[Given], lengths: list[int]) -> None:
    want = recompute(stream, 60_000, 30_000, 10_000)
    made = Rig(declared(60, 30, 10, 5, 1000))
    feed(made, stream, lengths)
    panes = [key for key in made.rows() if key.startswith(b"p")]
    starts = {(entity, start) for entity, start in want.open}
    assert {(key[17:].decode(), int.from_bytes(key[9:17], "big") - (1 << 62)) for key in panes} <= {
        (entity, start + shift) for entity, start in starts for shift in (0, 30_000)
    }
    assert made.chain._quiet[0].panes.get("agg", 0) == len(panes)


@RUN
@given(stream=events, lengths=cuts)
def test_the_watermark_never_goes_back(stream: list[Given], lengths: list[int]) -> None:
    made = Rig(declared(60, 30, 10, 5, 1000))
    highest = -1
    for place in range(0, len(stream), lengths[0]):
        made.take(list(enumerate(stream))[place : place + lengths[0]])
        raw = made.database.rows.get(b"m")
        high = -1 if raw is None else made.chain._mark(raw).high_ms
        assert high >= highest
        highest = high


@RUN
@given(
    stream=events, lengths=cuts, size=st.sampled_from(SIZES), keep=st.sampled_from([0, 3, 100]), close=st.integers(1, 9)
)
def test_open_windows_of_an_entity_are_those_of_a_recomputation(
    stream: list[Given], lengths: list[int], size: tuple[int, int, int], keep: int, close: int
) -> None:
    made = Rig(declared(*size, keep, close))
    feed(made, stream, lengths)
    made.settle()
    bounds = [1000 * each for each in size]
    whole = recompute(stream, *bounds, keep=keep, ended=True).windows  # type: ignore[misc]  # three of them
    still = recompute(stream, *bounds, keep=keep).open  # type: ignore[misc]  # likewise
    shown = [
        json.loads(msgspec.json.encode(window))
        for entity in {given.entity for given in stream}
        for window in open_windows(made.view, made.chain.aggregates, "raw", entity.encode())
    ]
    assert comparable(shown) == {place: whole[place] for place in still}
