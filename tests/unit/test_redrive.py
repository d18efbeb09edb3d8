"""What a dead letter becomes when it is sent back."""

import asyncio
import hashlib
import signal
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from agents.markers import Markers
from agents.redrive import Redrive, Tally, editable_of, targets_of
from app.commands import redrive as command
from app.errors import BrokerError
from app.logic.dead import dead_headers
from app.logic.redrive import DeadLetter, Selection, examine
from app.settings import load
from app.web.letters import Letters, Wanted
from app.web.scan import Budget
from models.events import Bad, Headers, Received, Record
from tests.helpers.records import record

BAD = Bad(reason="bad-time", field="event_time", message="it lies before 1970")
TARGETS = frozenset({"events"})


def dead(raw: Record, *, partition: int = 1, offset: int = 9, at_ms: int = 5000) -> Received:
    headers = dead_headers(raw, BAD, "ingest-src")
    return Received("dead-letter", partition, offset, at_ms, raw.key, raw.value, headers)


def again(letter: Any) -> Record:
    """The record that was sent back, as the stage reads it."""
    return record(letter.value, key=letter.key, headers=letter.headers)


def test_what_is_sent_back_is_what_was_received_with_attempt_and_origin() -> None:
    original: Headers = [
        ("note", None),
        ("headrace.reason", b"mine"),
        ("__connect.errors.topic", b"mine"),
        ("note", b"x"),
    ]
    letter = examine(dead(record(b"{}", key=b"k", headers=original)), TARGETS)
    assert (letter.key, letter.value, letter.topic, letter.topic_partition) == (b"k", b"{}", "events", 3)
    assert list(letter.headers) == [
        *original, ("headrace.redrive-attempt", b"1"), ("headrace.redrive-origin", b"events/3/17"),
    ]  # fmt: skip
    assert (letter.reason, letter.stage, letter.field, letter.position) == (
        "bad-time",
        "ingest-src",
        "event_time",
        "1/9",
    )


@pytest.mark.parametrize("value", [None, b"", b"null", b"{}"])
def test_no_value_stays_no_value_and_an_empty_one_empty(value: bytes | None) -> None:
    assert examine(dead(record(value)), TARGETS).value == value


def test_each_time_counts_and_the_first_origin_stays() -> None:
    letter = examine(dead(record(b"{}", headers=[("note", b"x")])), TARGETS)
    second = record(letter.value, headers=letter.headers)
    second.offset = 99
    letter = examine(dead(second), TARGETS)
    assert letter.attempt == 1
    assert list(letter.headers) == [
        ("note", b"x"), ("headrace.redrive-attempt", b"2"), ("headrace.redrive-origin", b"events/3/17"),
    ]  # fmt: skip


def test_only_topics_of_the_deployment_are_written() -> None:
    assert examine(dead(record(b"{}")), frozenset({"others"})).topic == ""
    foreign = Received("dead-letter", 0, 0, 0, None, b"x", [("__connect.errors.topic", b"events")])
    assert examine(foreign, TARGETS).topic == ""


def test_an_output_that_was_too_large_goes_to_its_topic_without_a_partition() -> None:
    headers: Headers = [
        ("__connect.errors.topic", b"mine"), ("headrace.reason", b"output-too-large"), ("headrace.field", b"events"),
        ("headrace.stage", b"classify"), ("__connect.errors.exception.message", b"large"),
    ]  # fmt: skip
    letter = examine(Received("dead-letter", 0, 0, 0, b"k", b"x", headers), TARGETS)
    assert (letter.topic, letter.topic_partition) == ("events", None)
    assert next(iter(letter.headers)) == ("__connect.errors.topic", b"mine")


@pytest.mark.parametrize("forged", [b"", b"-1", b"x", b"9" * 50, None])
def test_a_forged_attempt_counts_as_none(forged: bytes | None) -> None:
    letter = examine(dead(record(b"{}", headers=[("headrace.redrive-attempt", forged)])), TARGETS)
    assert letter.attempt == 0
    assert ("headrace.redrive-attempt", b"1") in letter.headers


@pytest.mark.parametrize(
    ("value", "event_id"),
    [(b'{"event_id": "a"}', "a"), (b'{"event_id": 7}', "7"), (b'{"id": "c"}', "c"), (b"[1]", ""), (None, ""),
     (b"\xff", ""), (b"[" * 100_000, ""), (b'{"event_id": {}}', "")],
)  # fmt: skip
def test_the_event_id_is_found_where_there_is_one(value: bytes | None, event_id: str) -> None:
    assert examine(dead(record(value)), TARGETS).event_id == event_id


@pytest.mark.parametrize(
    ("selection", "taken"),
    [
        ({}, True),
        ({"reasons": {"bad-time", "too-deep"}}, True),
        ({"reasons": {"too-deep"}}, False),
        ({"stages": {"ingest-src"}, "reasons": {"bad-time"}}, True),
        ({"stages": {"classify"}}, False),
        ({"topics": {"events"}}, True),
        ({"topics": {"", "others"}}, False),
        ({"ids": {"e1"}}, True),
        ({"ids": {"1/9"}}, True),
        ({"ids": {"1/8"}}, False),
        ({"since_ms": 5000, "until_ms": 5001}, True),
        ({"since_ms": 5001}, False),
        ({"until_ms": 5000}, False),
    ],
)
def test_a_selection_takes_what_meets_all_of_it(selection: dict[str, Any], taken: bool) -> None:
    letter = examine(dead(record(b'{"event_id": "e1"}')), TARGETS)
    assert Selection(**selection).takes(letter) == taken


def test_of_many_ids_an_audit_record_has_their_number_and_hash() -> None:
    ids = {f"0/{n}" for n in range(21)}
    told = Selection(ids=ids, topics={""}, since_ms=0).told
    assert told == {
        "topics": [""], "since_ms": 0,
        "ids": {"count": 21, "sha256": hashlib.sha256("\n".join(sorted(ids)).encode()).hexdigest()},
    }  # fmt: skip
    assert Selection(ids={"1/2", "1/1"}).told == {"ids": ["1/1", "1/2"]}


def test_only_topics_that_stages_read_or_write_results_to_take_dead_letters_back() -> None:
    ours = targets_of(load()) - {"raw-events"}
    assert ours == {
        "rekeyed", "clean-events", "window-events", "sink-noise", "agg-events", "late-events", "agent-trigger",
        "model-requests", "ai-results", "manual-review", "review-decisions", "budget",
    }  # fmt: skip
    assert editable_of(load()) == {"raw-events", "rekeyed", "window-events", "model-requests", "review-decisions"}


def of(topic: str, reason: str = "bad-time", offset: int = 0) -> DeadLetter:
    headers = dead_headers(Received(topic, 0, 1, 1, b"k", b"{}"), Bad(reason=reason, field=topic, message="m"), "stage")
    return examine(Received("dead-letter", 0, offset, 5, b"k", b"{}", headers), targets_of(load()))


def test_a_run_withholds_topics_and_makes_nothing_up() -> None:
    edited = {"0/1": b"mine", "0/2": b"mine", "0/3": b"mine"}
    run = Redrive(load(), Selection(), max_attempts=5, edited=edited, withheld={"review-decisions"})
    run._counts = dict.fromkeys(targets_of(load()), 1)
    letters = [
        of("review-decisions"), of("ai-results", offset=1), of("model-requests", "output-too-large", 2),
        of("raw-events", offset=3), of("ai-results", offset=4),
    ]  # fmt: skip
    assert [run._may_move(each, discard=False) for each in letters] == [False, False, False, True, True]
    assert run.tally.withheld == 3
    assert all(run._may_move(each, discard=True) for each in letters)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"0/1", b"{}"),
        (b"0/1", b"\xff"),
        (b"0/1", b"[" * 100_000),
        (b"0/1", b'{"to":"\xff","letter_ms":5,"at_ms":6,"attempt":1}'),
        (b"0/1", b'{"x":' + b"[" * 100_000),
        (b"x/1", b"{}"),
        (b"\xff", None),
        (None, None),
    ],
)
def test_strange_records_among_the_markers_are_left_out(key: bytes | None, value: bytes | None) -> None:
    strange: Any = SimpleNamespace(topic="redriven", offset=3, key=key, value=value)
    good: Any = SimpleNamespace(
        topic="redriven", offset=4, key=b"0/7", value=b'{"letter_ms":5,"at_ms":6,"to":"t","attempt":1}'
    )
    markers = Markers(load())
    for each in (strange, good):
        markers._take(each)
    assert list(markers._known) == ["0/7"]


async def test_a_scan_that_kafka_refuses_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(*asked: Any) -> dict[str, int]:
        raise BrokerError("not now")

    async def read(markers: Markers) -> None: ...

    monkeypatch.setattr("app.topics.counts", refused)
    monkeypatch.setattr(Markers, "read", read)
    found = await Letters(load()).scan(Wanted(), Budget(), lambda found: None)
    assert (found.partial, found.done, found.groups) == ("kafka", True, [])


@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_ends_the_command_with_what_was_moved_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, presses: int
) -> None:
    """The first is waited out, the second cuts off."""

    class Moving:
        def __init__(self, *_: Any, stop: asyncio.Event, **__: Any) -> None:
            self.tally, self.stop = Tally(), stop

        async def run(self) -> None:
            self.tally.moved["bad-time", "ingest", "events"] = 3
            signal.raise_signal(signal.SIGINT)
            await self.stop.wait()
            if presses == 2:
                signal.raise_signal(signal.SIGINT)
                await asyncio.Event().wait()
            self.tally.stopped = True

    monkeypatch.setattr(command, "Redrive", Moving)
    monkeypatch.setattr(command.logging.config, "dictConfig", lambda _: None)
    ended = CliRunner().invoke(command.redrive, ["--yes"])
    assert ended.exit_code == 130
    assert ended.output.splitlines()[-2:] == [
        "moved 3", "stopped before the end: run it again, and it moves only the rest",
    ]  # fmt: skip
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
