"""A bounded pass of the windows' fault run."""

from pathlib import Path

import pytest

from app.broker.kafka import EmbeddedKafka
from tests.fault import windows

pytestmark = [pytest.mark.fault, pytest.mark.slow, pytest.mark.timeout(400)]


def test_kills_with_windows_open_leave_each_window_final_exact_and_once(
    tmp_path: Path, kafka: EmbeddedKafka, prefix: str
) -> None:
    report = windows.run(tmp_path, kafka.bootstrap, prefix, count=40_000, faults=4, seed=7)
    assert report.windows > 4_000
    assert report.late > 100
    assert report.right, report
