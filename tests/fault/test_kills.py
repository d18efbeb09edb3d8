"""A bounded pass of the kills; `make chaos-checks` runs them at full size, and zombies, as `.ci/run` does."""

from pathlib import Path

import pytest

from app.broker.kafka import EmbeddedKafka
from tests.fault import chaos

pytestmark = [pytest.mark.fault, pytest.mark.slow, pytest.mark.timeout(400)]


def test_kills_lose_nothing_invent_nothing_and_leave_state_exact(
    tmp_path: Path, kafka: EmbeddedKafka, prefix: str
) -> None:
    report = chaos.kills(tmp_path, kafka.bootstrap, prefix, count=30_000, faults=4, seed=11)
    assert report.events == 30_000
    assert report.right, report
