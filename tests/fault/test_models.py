"""Bounded passes of the model fault runs; `python -m tests.fault.models` runs them at full size."""

from pathlib import Path

import pytest

from app.broker.kafka import EmbeddedKafka
from tests.fault import models

pytestmark = [pytest.mark.fault, pytest.mark.slow, pytest.mark.timeout(400)]


def test_each_event_gets_its_one_right_answer_from_a_server_that_has_a_bad_day(
    tmp_path: Path, kafka: EmbeddedKafka, prefix: str
) -> None:
    report = models.faults(tmp_path, kafka.bootstrap, prefix, events=2000, kills=0)
    assert (report.lost, report.wrong, report.copies, report.reviews) == (0, 0, 0, 0), report
    assert report.early == 0, report
    assert report.stub_calls == report.metric_calls, report
    assert report.most_asked <= 3 * 3, report  # bad luck stays far below what two rounds allow
    assert report.answered_again == 0, report


def test_kills_and_stops_on_top_lose_nothing_and_repeat_only_calls_in_flight(
    tmp_path: Path, kafka: EmbeddedKafka, prefix: str
) -> None:
    report = models.faults(tmp_path, kafka.bootstrap, prefix, events=4000, kills=3)
    assert (report.lost, report.wrong, report.copies, report.reviews) == (0, 0, 0, 0), report
    # Calls in flight, and answers on their way to a transaction: at most as many again.
    assert report.answered_again <= report.kills * models.CONCURRENCY * models.BATCH, report


def test_an_outage_is_left_alone_and_caught_up(tmp_path: Path, kafka: EmbeddedKafka, prefix: str) -> None:
    report = models.outage(tmp_path, kafka.bootstrap, prefix, seconds=20)
    assert (report.lost, report.copies, report.reviews) == (0, 0, 0), report
    assert report.calls_until_open <= 6 + 2, report  # the window's least, and what was in flight
    assert report.calls_while_open <= report.intervals + 1, report
    assert report.rule_results_meanwhile > 0, report
    assert report.backlog > 50, report
