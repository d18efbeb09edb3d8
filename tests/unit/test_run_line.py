"""What `headrace run` says: every few seconds, and of the console."""

from typing import Any

import pytest

from app.commands import run
from app.commands.run import Machine

PAGE = """
headrace_records_in_total{stage="ingest-shop"} 40
headrace_records_in_total{stage="ingest-rekeyed"} 5
headrace_records_in_total{stage="classify"} 20
headrace_records_in_total{stage="results"} 35
headrace_records_in_total{stage="review"} 2
headrace_outcomes_total{stage="ingest-shop",outcome="rule",detail="a"} 10
headrace_outcomes_total{stage="ingest-shop",outcome="rule",detail="b"} 5
headrace_outcomes_total{stage="ingest-shop",outcome="duplicate",detail="shop"} 3
headrace_outcomes_total{stage="ingest-shop",outcome="dead",detail="bad-json"} 1
headrace_outcomes_total{stage="classify",outcome="light",detail="t"} 15
headrace_open_items{stage="classify"} 4
headrace_open_items{stage="review"} 2
headrace_lag_records{stage="ingest-shop",partition="0"} 6
headrace_lag_records{stage="classify",partition="1"} 1
"""


def test_events_are_those_of_sources_and_what_waits_is_what_models_are_asked_about() -> None:
    machine = Machine(8.0, demo=True)
    line = machine._line(PAGE)
    assert "0 events/s, 40 in; results 30 (rule 50%, light 50%); open 4, lag 7; 3 duplicate, 0 noise, 1 dead" in line
    assert machine.before is not None
    assert machine.before[1] == 40


def test_a_worker_that_has_nothing_to_say_yet_is_a_line_of_zeros() -> None:
    assert "0 in; results 0 (none); open 0, lag 0; 0 duplicate" in Machine(8.0, demo=True)._line("")


@pytest.mark.parametrize(
    ("host", "issuer", "users", "linked"),
    [
        ("127.0.0.1", "", False, True),
        ("127.0.0.1", "", True, False),
        ("127.0.0.1", "https://login.example.org", False, False),
        ("0.0.0.0", "", False, False),
    ],
)
def test_the_console_s_address_has_a_token_only_where_it_lets_somebody_in(
    host: str, issuer: str, users: bool, linked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    console = run.settings.console
    oidc = console.oidc.model_copy(update={"issuer": issuer})
    changes: dict[str, Any] = {
        "gateway": run.settings.gateway.model_copy(update={"host": host}),
        "console": console.model_copy(update={"oidc": oidc}),
    }
    monkeypatch.setattr(run, "settings", run.settings.model_copy(update=changes))
    machine = Machine(8.0, demo=True)
    monkeypatch.setattr(machine, "_spawn", lambda *_, **given: None)
    monkeypatch.setattr(machine, "_await", lambda *_: None)
    monkeypatch.setattr(machine, "_has_users", lambda: users)
    assert machine._start_web().endswith(f"?token={machine.token}") == linked
