"""The table of docs/reliability.md is that of the outcomes kept beside it, and has every fault."""

import json

import pytest

from tests.fault.suite.__main__ import by_time
from tests.fault.suite.faults import FAULTS
from tests.fault.suite.outcome import Outcome
from tests.fault.suite.report import KEPT, PAGE, rewritten

OUTCOME = {
    "fault": "6", "seed": 3, "right": True, "wrong": {}, "records": 1234, "kills": 0, "progress_s": 1.5,
    "stall_s": 7.25, "notes": [],
}  # fmt: skip


def test_the_page_is_written_from_what_is_kept() -> None:
    text = PAGE.read_text(encoding="utf-8")
    kept = [json.loads(line) for line in KEPT.read_text(encoding="utf-8").splitlines()]
    assert rewritten(text, kept) == text, "run `python -m tests.fault.suite.report`"


@pytest.mark.parametrize("number", FAULTS)
def test_every_fault_has_its_row(number: str) -> None:
    assert f"| {number} | {FAULTS[number].name}" in PAGE.read_text(encoding="utf-8")


def test_runs_of_a_fault_are_added_up_with_the_worst_of_their_times() -> None:
    worse = {**OUTCOME, "seed": 4, "right": False, "progress_s": 3.0, "stall_s": 2.0}
    text = rewritten("a <!-- generated: begin -->old<!-- generated: end --> z", [OUTCOME, worse])
    row = next(line for line in text.splitlines() if line.startswith("| 6 "))
    assert row.endswith("| 2 | 3, 4 | 1 of 2 | 2,468 | 3.0 s | 7.2 s |")
    assert text.startswith("a <!--")
    assert text.endswith("--> z")
    assert "old" not in text


@pytest.mark.parametrize(
    ("wrong", "said", "repeated"),
    [
        ({}, {}, False),
        ({"run": 1}, {"run": ["AssertionError: not within 90 s: results flow"]}, True),
        (
            {"run": 1},
            {"run": ["AssertionError: not within 60 s: I5: progress on every partition after healing"]},
            False,
        ),
        ({"run": 1, "lost": 2}, {"run": ["AssertionError: not within 90 s: results flow"]}, False),
    ],
)
def test_only_what_a_busy_machine_can_make_wrong_is_repeated(
    wrong: dict[str, int], said: dict[str, list[str]], repeated: bool
) -> None:
    assert by_time(Outcome("11", 1, right=not wrong, wrong=wrong, examples=said)) == repeated
