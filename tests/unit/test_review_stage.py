"""The review stage: what waits, what a decision becomes, and what is refused."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import REGISTRY

from agents.review import Reviews, waiting
from app.delivery.outbox import Outbox
from app.delivery.stage import Batch
from app.settings import load
from models.events import Received
from models.results import Review, Source
from models.reviews import Opened
from tables.reviews import DECIDED, REVIEWS, WAITING, at_of
from tests.helpers.held import Held

NOW_MS = 1_796_000_000_000
TOML = """
[[tasks]]
name = "mood"
categories = [{ id = "happy", description = "Content." }, { id = "unhappy", description = "Complains." }]

[[tasks]]
name = "order"
categories = [{ id = "yes", description = "An order." }, { id = "no", description = "None." }]
[tasks.extract.properties.parcels]
type = "integer"
"""


class Stage:
    """The logic, over State held in a dictionary."""

    def __init__(self, tree: Any) -> None:
        self.logic, self.state, self.offset = Reviews(tree), Held(), 0
        self.now_ms = NOW_MS

    def take(self, *values: Any) -> Outbox:
        """A batch of these values."""
        records = []
        for value in values:
            raw = value if isinstance(value, bytes) else msgspec.json.encode(value)
            records.append(Received("review-decisions", 0, self.offset, self.now_ms, b"k", raw))
            self.offset += 1
        out = Outbox(self.now_ms)
        self.logic.decide(Batch(records, 0, self.state, out))  # type: ignore[arg-type]  # all that is read of a View
        self.state.apply(out)
        return out

    def expire(self) -> Outbox:
        out = Outbox(self.now_ms)
        self.logic._expire(self.state, out)  # type: ignore[arg-type]  # likewise
        self.state.apply(out)
        return out

    @property
    def waits(self) -> list[str]:
        return [at_of(key)[1].decode() for key in self.state.keys_of(WAITING)]

    @property
    def decided(self) -> list[str]:
        return [at_of(key)[1].decode() for key in self.state.keys_of(DECIDED)]


@pytest.fixture
def stage(tmp_path: Any) -> Stage:
    path = tmp_path / "headrace.toml"
    path.write_text(TOML)
    return Stage(load(path))


def review(event_id: str = "e1", created_ms: int = NOW_MS - 5000, task: str = "mood") -> Review:
    return Review(
        event_id=event_id, event_type="note", event_time_ms=1, entity="u", task=task, text="<b>hm</b>",
        categories=["happy", "unhappy", "gone"], cause="no-answer", attempts=3, created_ms=created_ms,
        received_ms=created_ms - 1000, source=Source("raw-events", 2, 7), trace_id="t1",
    )  # fmt: skip


def decision(event_id: str = "e1", category: str = "happy", **more: Any) -> dict[str, Any]:
    return {"event_id": event_id, "category": category, "reviewer": "anna", "decided_ms": NOW_MS, **more}


def results(out: Outbox) -> list[dict[str, Any]]:
    return [msgspec.json.decode(value or b"") for _, value, _ in out.sends.get(("ai-results", None), [])]


def dead(out: Outbox) -> list[tuple[str, str]]:
    found = []
    for _, _, headers in out.sends.get(("dead-letter", None), []):
        last = dict(headers)
        found.append(((last["headrace.reason"] or b"").decode(), (last["headrace.field"] or b"").decode()))
    return found


def test_a_decision_becomes_a_result_with_reviewer_and_origin(stage: Stage) -> None:
    stage.take(Opened(review=review()))
    assert (stage.waits, waiting(stage.state)) == (["e1"], 1)  # type: ignore[arg-type]  # Held is read as a View
    out = stage.take(decision(note="sarcasm"))
    (result,) = results(out)
    assert out.sends["ai-results", None][0][0] == b"e1"
    assert result["source"] == {"topic": "raw-events", "partition": 2, "offset": 7}
    assert (result["category"], result["tier"], result["confidence"]) == ("happy", "review", 1.0)
    assert (result["reviewer"], result["note"], result["trace_id"]) == ("anna", "sarcasm", "t1")
    assert result["latency_ms"] == 6000
    assert (stage.waits, stage.decided, waiting(stage.state)) == ([], ["e1"], 0)  # type: ignore[arg-type]  # likewise
    assert out.counts == {("reviewed", "mood"): 1}


def test_a_later_decision_is_one_more_result_of_the_event(stage: Stage) -> None:
    stage.take(Opened(review=review()))
    out = stage.take(decision(), decision(category="unhappy", reviewer="bo"))
    assert [(r["category"], r["reviewer"]) for r in results(out)] == [("happy", "anna"), ("unhappy", "bo")]
    assert stage.state.get(REVIEWS, b"e1").decision.category == "unhappy"
    assert stage.decided == ["e1"]


def test_an_older_decision_that_comes_later_changes_nothing(stage: Stage) -> None:
    stage.take(Opened(review=review()), decision(category="unhappy", decided_ms=NOW_MS - 10))
    out = stage.take(decision(decided_ms=NOW_MS - 20))  # a dead letter that was sent back
    assert (results(out), out.counts) == ([], {("review-overtaken", "mood"): 1})
    stage.take(decision(category="", undo=True, decided_ms=NOW_MS - 5))
    assert results(stage.take(decision(decided_ms=NOW_MS - 6))) == []
    assert len(results(stage.take(decision(decided_ms=NOW_MS + 10**12)))) == 1
    assert len(results(stage.take(decision(decided_ms=NOW_MS)))) == 1, "a clock that ran ahead shuts nobody out"


def test_an_old_review_that_was_put_back_isnt_too_old_at_once(stage: Stage) -> None:
    keep_ms = int(load().reviews.keep_s * 1000)
    stage.take(Opened(review=review(created_ms=NOW_MS - keep_ms + 100)), decision(decided_ms=NOW_MS - 50))
    stage.take(decision(category="", undo=True, decided_ms=NOW_MS))
    stage.now_ms += 1000
    stage.expire()
    assert stage.waits == ["e1"]
    stage.now_ms += keep_ms
    stage.expire()
    assert stage.waits == []


def test_undo_puts_it_back_where_it_stood_and_writes_nothing(stage: Stage) -> None:
    stage.take(*[Opened(review=review(f"e{n}", NOW_MS - 1000 + n)) for n in range(3)])
    stage.take(decision("e0"), decision("e1"))
    assert stage.waits == ["e2"]
    out = stage.take(decision("e0", "", undo=True))
    assert (stage.waits, stage.decided) == (["e0", "e2"], ["e1"])
    assert (results(out), dead(out)) == ([], [])
    assert stage.state.get(REVIEWS, b"e0").decision is None


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"{", ("bad-decision", "")),
        (b"", ("bad-decision", "")),
        (b"[" * 2000, ("bad-decision", "")),
        (b'{"event_id":"e1","category":"happy","decided_ms":1}', ("bad-decision", "")),
        (decision(reviewer=""), ("bad-decision", "")),
        (decision(category="gone"), ("bad-decision", "category")),
        (decision(category=""), ("bad-decision", "category")),
        (decision(note="x" * 2001), ("bad-decision", "")),
        (decision(fields={"parcels": 1}), ("bad-decision", "fields")),
        (decision("e9"), ("unknown-review", "event_id")),
        (decision("e9", undo=True), ("unknown-review", "event_id")),
        ({"review": {"event_id": "e2"}}, ("bad-decision", "")),
    ],
)
def test_a_wrong_decision_is_a_dead_letter_and_changes_nothing(stage: Stage, value: Any, why: tuple[str, str]) -> None:
    stage.take(Opened(review=review()))
    before = dict(stage.state.rows)
    out = stage.take(value)
    assert (dead(out), results(out), stage.state.rows) == ([why], [], before)


def test_fields_must_fit_the_schema_of_the_task(stage: Stage) -> None:
    stage.take(Opened(review=review(task="order")))
    assert dead(stage.take(decision(category="yes", fields={"parcels": "7"}))) == [("bad-decision", "fields")]
    assert results(stage.take(decision(category="yes", fields={"parcels": 7})))[0]["fields"] == {"parcels": 7}


def test_a_task_that_is_gone_leaves_the_categories_of_the_review(stage: Stage) -> None:
    stage.take(Opened(review=review(task="removed")))
    assert results(stage.take(decision(category="gone")))[0]["category"] == "gone"


def test_a_review_that_comes_twice_is_one_and_another_of_the_same_event_begins_anew(stage: Stage) -> None:
    stage.take(Opened(review=review()), decision(), Opened(review=review()))
    assert (stage.waits, stage.decided) == ([], ["e1"])
    stage.take(Opened(review=review(created_ms=NOW_MS)))
    assert (stage.waits, stage.decided) == (["e1"], [])


def test_what_is_older_than_it_is_kept_goes_and_is_counted(stage: Stage) -> None:
    stage.take(Opened(review=review("old", NOW_MS)), Opened(review=review("done", NOW_MS)), decision("done"))
    stage.now_ms = NOW_MS + 30 * 86_400_000
    assert not stage.expire()
    stage.take(Opened(review=review("new", stage.now_ms)))
    stage.now_ms += 1
    out = stage.expire()
    assert out.counts == {("review-expired", "mood"): 1}
    assert (stage.waits, stage.decided, waiting(stage.state)) == (["new"], [], 1)  # type: ignore[arg-type]  # see above
    assert stage.state.keys_of(REVIEWS) == [b"new"]


@given(
    st.lists(st.tuples(st.sampled_from(["open", "decide", "undo", "wrong"]), st.integers(0, 3)), max_size=30),
    st.integers(1, 5),
)
@settings(max_examples=60, deadline=None)
def test_any_split_into_batches_gives_the_same_state(steps: list[tuple[str, int]], size: int) -> None:
    values: list[Any] = []
    for kind, n in steps:
        event_id = f"e{n}"
        values.append(
            {
                "open": Opened(review=review(event_id)), "decide": decision(event_id, "gone"),
                "undo": decision(event_id, undo=True), "wrong": decision(event_id, "nothing"),
            }[kind]
        )  # fmt: skip
    whole, split = Stage(load()), Stage(load())  # the built-in settings have no task `mood`
    whole.take(*values)
    for at in range(0, len(values), size):
        split.take(*values[at : at + size])
    assert whole.state.rows == split.state.rows
    for each in (whole, split):
        assert waiting(each.state) == len(each.waits)  # type: ignore[arg-type]  # see above
        assert sorted(each.waits + each.decided) == sorted(key.decode() for key in each.state.keys_of(REVIEWS))


class LaneOf:
    """What the stage asks of a lane."""

    def __init__(self, view: Held) -> None:
        self.view = view


def test_what_waits_in_a_partition_that_went_to_another_worker_is_no_longer_shown(stage: Stage) -> None:
    def shown() -> tuple[float | None, float | None]:
        names = ("headrace_open_items", "headrace_oldest_open_seconds")
        open_, oldest = (REGISTRY.get_sample_value(name, {"stage": "review"}) for name in names)
        return open_, oldest

    stage.take(Opened(review=review()))
    lane: Any = LaneOf(stage.state)
    stage.logic.tick(lane, NOW_MS)
    assert shown() == (1, 5)
    stage.logic.closed(lane)
    assert shown() == (0, 0)
