"""The checker is itself tested: a build with one thing wrong is caught under the fault that shows it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.broker.kafka import EmbeddedKafka
from tests.fault.suite.faults import FAULTS
from tests.fault.suite.rig import Rig
from tests.fault.suite.run import run

pytestmark = [pytest.mark.fault, pytest.mark.slow, pytest.mark.timeout(300)]

CAUGHT = {
    "local-first": ("3", {"I1 lost"}),
    "offsets-outside": ("3", {"I4 committed past open work"}),
    "no-fence": ("6", {"I1 copies"}),
    "no-trim": ("22", {"dead letters copies"}),
    "read-uncommitted": ("3", {"I1 copies", "I1 lost"}),
    "by-place": ("18", {"wrong result"}),
}
"""Build -> the fault, and what of the checker's words must be among those that it says."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """One of our own: faults may kill it."""
    kafka = EmbeddedKafka(tmp_path_factory.mktemp("kafka"))
    kafka.start()
    yield kafka
    kafka.kill()


@pytest.mark.parametrize("build", CAUGHT)
def test_a_build_with_one_thing_wrong_is_caught(broker: EmbeddedKafka, tmp_path: Path, build: str) -> None:
    number, words = CAUGHT[build]
    row = FAULTS[number]
    rig = Rig(broker, tmp_path / build, f"{build}-", 7, 10, command=("tests.fault.suite.broken", build), **row.rig)
    outcome = run(rig, row.act, row.started)
    assert words & outcome.wrong.keys(), outcome
