"""Intent rules: what they see, when they fire, and what follows (app.logic.intent, agents.verdicts)."""

from typing import Any

import pytest

from agents.windows import WindowChain
from app.delivery.stage import Batch
from app.logic.intent import found_in_order
from app.settings import Settings
from tests.helpers.windows import Given, Rig

CRAWLER = {"name": "crawler", "aggregate": "agg", "when": [{"count": "view", "at_least": 100}], "incident": "crawler"}
CART = {
    "name": "cart", "aggregate": "agg", "sequence": [{"label": "hesitated", "times": 3}, {"label": "abandoned"}],
    "within_s": 60, "category": "abandoned-cart",
}  # fmt: skip
TROUBLE = {
    "name": "trouble", "aggregate": "agg", "sequence": [{"label": "failed", "times": 3}, {"label": "message"}],
    "within_s": 60, "category": "trouble", "incident": "trouble", "severity": "high", "deep_s": 600,
}  # fmt: skip
TASK = {
    "name": "visit", "input": "windows", "min_events": 3,
    "categories": [{"id": "buy", "description": "buys"}, {"id": "look", "description": "looks"}],
}  # fmt: skip


def rig_of(*intents: dict[str, Any], tasks: list[dict[str, Any]] | None = None, **aggregate: Any) -> Rig:
    short = {"name": "agg", "size_s": 60, "hop_s": 30, "grace_s": 10, **aggregate}
    return Rig(
        Settings.model_validate(
            {
                "sources": [{"name": "raw", "topic": "raw"}], "aggregates": [short], "intents": list(intents),
                "tasks": tasks or [],
            }
        )
    )  # fmt: skip


def feed(rig: Rig, *events: Given, start: int = 0) -> None:
    rig.take(enumerate(events, start))
    rig.settle()


def run_of(*kinds: str, entity: str = "a", start_ms: int = 100_000, step_ms: int = 1000) -> list[Given]:
    return [Given(entity, start_ms + number * step_ms, kind) for number, kind in enumerate(kinds)]


END = Given("end", 900_000, "end")


def test_a_hundred_thousand_views_in_a_minute_are_one_incident_a_window_while_it_is_open() -> None:
    rig = rig_of(CRAWLER)
    for first in range(0, 100_000, 10_000):
        feed(rig, *(Given("bot", 120_000 + n * 59 // 100, "view") for n in range(first, first + 10_000)), start=first)
    early = [value for _, value, _ in rig.of("agent-trigger")]
    assert {value["id"] for value in early} == {f"bot@agg@{start}@crawler" for start in (90_000, 120_000)}
    assert len(early) == 2
    assert all(value["open"] and value["counts"]["view"] < 100_000 for value in early)
    assert (early[0]["kind"], early[0]["severity"], early[0]["entity"]) == ("crawler", "medium", "bot")
    feed(rig, END, start=100_000)
    closed = [value for _, value, _ in rig.of("agent-trigger")][2:]
    assert [(value["start_ms"], value["open"]) for value in closed] == [(150_000, False)]
    assert [value["intents"] for _, value, _ in rig.of("agg-events") if value["entity"] == "bot"] == [["crawler"]] * 3


def test_three_hesitations_and_an_abandoned_cart_give_the_result_of_their_window() -> None:
    rig = rig_of(CART)
    feed(rig, *run_of("hesitated", "view", "hesitated", "hesitated", "abandoned"), END)
    results = [(key, value) for key, value, _ in rig.of("ai-results")]
    assert [key.decode() for key, _ in results] == ["a@agg@60000", "a@agg@90000"]
    assert {(v["category"], v["tier"], v["why"], v["task"], v["confidence"]) for _, v in results} == {
        ("abandoned-cart", "rule", "cart", "agg", 1.0)
    }


@pytest.mark.parametrize(
    "kinds",
    [("hesitated", "hesitated", "abandoned"), ("abandoned", "hesitated", "hesitated", "hesitated"), ("view",) * 4],
)
def test_an_incomplete_or_turned_round_sequence_is_none(kinds: tuple[str, ...]) -> None:
    rig = rig_of(CART)
    feed(rig, *run_of(*kinds), END)
    assert rig.of("ai-results") == []


def test_the_order_is_that_of_event_time_also_when_events_come_mixed() -> None:
    rig = rig_of({**CART, "early": False})
    events = run_of("hesitated", "hesitated", "hesitated", "abandoned")
    feed(rig, events[3], events[1], events[0], events[2], END)
    assert len(rig.of("ai-results")) == 2


def test_a_rule_fires_once_a_window_whatever_batches_and_owners_there_are() -> None:
    rig = rig_of(TROUBLE)
    for number, given in enumerate(run_of("failed", "failed", "failed", *["message"] * 20)):
        rig.take([(number, given)])
        rig.begin()
    feed(rig, END, start=50)
    ids = [value["id"] for _, value, _ in rig.of("agent-trigger")]
    assert sorted(ids) == ["a@agg@60000@trouble", "a@agg@90000@trouble"]
    assert rig.counts["intent", "trouble"] == 2


def test_open_windows_are_looked_at_at_most_every_early_s_of_event_time() -> None:
    rig = rig_of(TROUBLE)
    feed(rig, *run_of("message", "failed", "failed", "failed", step_ms=1000))
    assert rig.of("agent-trigger") == [], "all that is needed, in the wrong order"
    feed(rig, *run_of("message", start_ms=104_000), start=4)
    assert rig.of("agent-trigger") == [], "the look at the third failure was less than 5 s ago"
    feed(rig, *run_of("message", start_ms=109_000), start=5)
    assert len(rig.of("agent-trigger")) == 1


def test_a_rule_fires_at_the_very_event_that_completes_it() -> None:
    rig = rig_of(TROUBLE)
    feed(rig, *run_of("failed", "failed", "failed", step_ms=1000))
    assert rig.of("agent-trigger") == []
    feed(rig, *run_of("message", start_ms=103_001), start=3)
    assert len(rig.of("agent-trigger")) == 1, "looks that can't succeed don't count"


def test_a_rule_that_is_not_early_waits_for_the_close() -> None:
    rig = rig_of({**CRAWLER, "early": False})
    feed(rig, *run_of(*["view"] * 200, step_ms=10))
    assert rig.of("agent-trigger") == []
    feed(rig, END, start=200)
    assert {value["open"] for _, value, _ in rig.of("agent-trigger")} == {False}


def test_of_two_rules_with_a_category_the_first_decides_and_both_incidents_come() -> None:
    first = {**CRAWLER, "name": "first", "when": [{"count": "*", "at_least": 2}], "category": "one"}
    second = {**first, "name": "second", "category": "two"}
    rig = rig_of(first, second)
    feed(rig, *run_of("view", "view"), END)
    assert [value["category"] for _, value, _ in rig.of("ai-results")] == ["one", "one"]
    assert [value["rule"] for _, value, _ in rig.of("agent-trigger")] == ["first", "second"] * 2


def test_features_bound_a_rule_and_a_missing_one_meets_no_bound() -> None:
    amount = {"name": "amount", "kind": "sum", "field": "payload.amount"}
    rule = {
        "name": "low", "aggregate": "agg", "when": [{"feature": "amount", "at_least": 1, "at_most": 10}],
        "category": "x", "early": False,
    }  # fmt: skip
    rig = rig_of(rule, features=[amount], hop_s=60)
    events = [Given("in", 1000, amount=5), Given("over", 1000, amount=11), Given("none", 1000), END]
    feed(rig, *events)
    assert [value["entity"] for _, value, _ in rig.of("ai-results")] == ["in"]


def test_the_next_events_of_an_entity_skip_the_light_model_until_the_hint_is_over() -> None:
    rig = rig_of(TROUBLE)
    feed(rig, *run_of("failed", "failed", "failed"), *run_of("message", start_ms=106_000))
    chain: WindowChain = rig.chain

    def said(entity: str, offset: int, at_ms: int) -> str:
        given = Given(entity, at_ms, "message")
        batch = Batch([], 0, rig.view, rig.fresh())
        return chain.deep_rules(batch, [(given.record(offset), given.event(offset))])[0]

    assert said("a", 4, 107_000) == "trouble"
    assert said("a", 4, 706_000) == "trouble"
    assert said("a", 4, 706_001) == ""
    assert said("b", 4, 107_000) == ""
    assert said("a", 3, 106_000) == "", "the event that the rule fired on"
    feed(rig, Given("b", 800_000), start=5)
    rig.work(chain._forget_hints)
    assert [key for key in rig.rows() if key.startswith(b"h")] == []


def test_a_window_that_no_rule_decides_is_asked_about_with_its_sequence_as_text() -> None:
    rig = rig_of(CART, tasks=[TASK], hop_s=60)
    feed(
        rig, *run_of("view", "view", "add"), *run_of("view", entity="b"),
        *run_of("hesitated", "hesitated", "hesitated", "abandoned", entity="c"), END,
    )  # fmt: skip
    ((_, request, _),) = rig.of("model-requests")
    assert (request["event_id"], request["task"], request["entity"]) == ("a@agg@60000", "visit", "a")
    assert request["text"].splitlines() == ["3 events of a in 2 s: view 2, add 1", "+0 s view", "+1 s view", "+2 s add"]
    assert rig.counts["asked", "visit"] == 1


def test_a_text_says_what_was_left_out() -> None:
    rig = rig_of(tasks=[TASK], hop_s=60, sequence=2)
    feed(rig, *run_of("view", "view", "add"), END)
    ((_, request, _),) = rig.of("model-requests")
    assert "(1 earlier events left out)" in request["text"].splitlines()


@pytest.mark.parametrize(
    ("labels", "within", "holds"),
    [("aab", None, True), ("aba", None, False), ("axxaxb", None, True), ("aab", 1, False), ("xaab", 2, True),
     ("axxxxaab", 2, True), ("ab", None, False), ("", None, False)],
)  # fmt: skip
def test_sequences_in_order(labels: str, within: int | None, holds: bool) -> None:
    steps = [frozenset("a"), frozenset("a"), frozenset("b")]
    assert found_in_order(steps, [(at, at, label, "") for at, label in enumerate(labels)], within) is holds


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"aggregate": "other"}, "aggregate"),
        ({"when": [{"feature": "amount", "at_least": 1}]}, "feature"),
        ({"when": []}, "when"),
        ({"incident": ""}, "outcome"),
        ({"category": "x", "task": "nothing"}, "category"),
        ({"when": [{"count": "a"}]}, "at_least"),
        ({"within_s": 5}, "within_s"),
    ],
)
def test_a_rule_that_can_not_be_is_refused_with_its_field(change: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        rig_of({**CRAWLER, **change})


def test_a_sequence_needs_an_aggregate_that_keeps_one() -> None:
    with pytest.raises(ValueError, match="sequence"):
        rig_of(CART, sequence=0)
