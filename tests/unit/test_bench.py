"""The benchmark's own arithmetic: a wrong meter would make every figure of the docs wrong."""

import json
import subprocess
import sys
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bench import __main__ as main
from tests.bench import environments, ingest
from tests.bench.contestants import CONTESTANTS
from tests.bench.data import NOISE, Expected, records
from tests.bench.latency import percentile
from tests.bench.meter import Meter
from tests.bench.outputs import Outcome
from tests.bench.path import NOTHING, READY, Settled
from tests.bench.steady import Unkept, trend
from tests.helpers.processes import wait_until

BURN = "import time\nwhile time.process_time() < 0.4: pass"
PARENT = f"""
import subprocess, sys
sys.stdin.readline()
subprocess.run([sys.executable, "-c", {BURN!r}], check=True)
print("burnt", flush=True)
sys.stdin.readline()
"""


def test_clock_runs_from_first_output_to_last_and_leaves_out_the_first() -> None:
    outcome = Outcome(stamps=Counter({2000: 10, 3000: 20, 4000: 10}))
    assert outcome.interval(400) == (2.0, 4.0, 300.0)


def test_clock_that_starts_later_counts_only_what_comes_after() -> None:
    outcome = Outcome(stamps=Counter({1000: 40, 2000: 10, 3000: 20, 4000: 30}))
    assert outcome.interval(100, not_before=1.5) == (2.0, 4.0, 50.0)


@pytest.mark.parametrize("stamps", [{}, {1000: 5}])
def test_too_few_outputs_measure_nothing(stamps: dict[int, int]) -> None:
    assert Outcome(stamps=Counter(stamps)).interval(10)[2] == 0


def test_meter_counts_a_child_that_has_ended_and_only_in_its_interval() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        meter = Meter(process.pid)
        meter.start()
        begun = time.time()
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"burnt\n"
        ended = time.time()
        wait_until(lambda: meter.times[-1] >= ended, 20, "a sample after the end", every_s=0.01)
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.wait()
        meter.stop()
    assert meter.cpu_between(begun, meter.times[-1]) >= 0.39
    assert meter.cpu_between(meter.times[-1], meter.times[-1] + 10) == 0
    assert meter.largest_rss_mb > 1


def test_expected_of_the_input_equals_a_recount() -> None:
    expected = Expected()
    made = list(records(5000, expected, seed=3))
    clean, noise, broken = set(), set(), Counter[int]()
    for _, value in made:
        try:
            event = json.loads(value)
        except ValueError:
            broken[zlib.crc32(value)] += 1
        else:
            (noise if event["event_type"] in NOISE else clean).add(event["event_id"])
    assert (expected.clean, expected.noise, expected.broken) == (clean, noise, broken)
    assert expected.events == len(made) == 5000
    assert len(clean) + len(noise) + broken.total() < 5000  # some are repeated
    assert broken


def _round(events_per_s: int, *, cpu: float = 10.0, wrong: str = "") -> dict[str, Any]:
    return {
        "events_per_s": events_per_s, "cpu_us_per_event": cpu, "peak_rss_mb": 100.0, "right": not wrong,
        "wrong": [wrong] if wrong else [],
    }  # fmt: skip


def test_summary_takes_medians_and_the_median_of_the_rounds_ratios() -> None:
    found = {
        "ours": [_round(100), _round(50), _round(80)],
        "raw": [_round(200, cpu=5), _round(200, cpu=5), _round(80, cpu=5)],
    }
    ours, raw = ingest.summary(found, 4000)
    assert (ours["events_per_s"], raw["events_per_s"]) == (80, 200)
    assert (raw["ratio"], raw["cpu_ratio"]) == (0.5, 0.5)
    assert ours["right"]
    assert raw["right"]


def test_wrong_round_makes_a_contestant_wrong_and_does_not_enter_its_figures() -> None:
    found = {"ours": [_round(100)] * 3, "faust": [_round(10), _round(1, wrong="stalled"), _round(12)]}
    faust = ingest.summary(found, 4000)[1]
    assert not faust["right"]
    assert faust["events_per_s"] == 11
    assert faust["events"] == 4000 // CONTESTANTS["faust"].share
    assert faust["ratio"] == pytest.approx((100 / 10 + 100 / 12) / 2, abs=0.001)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=200), st.integers(1, 100))
def test_percentile_is_the_smallest_value_that_so_many_do_not_exceed(values: list[int], percent: int) -> None:
    found = percentile(values, percent)
    assert found in values
    assert sum(v <= found for v in values) * 100 >= percent * len(values)
    assert sum(v < found for v in values) * 100 < percent * len(values)


def test_percentile_of_nothing_is_none() -> None:
    assert percentile([], 50) is None


def test_trend_of_a_line_is_its_slope_an_hour_and_of_a_level_is_none() -> None:
    assert trend([(s, 5.0 + s / 10) for s in range(100)])["slope_per_h"] == pytest.approx(360)
    assert trend([(s, 7.0) for s in range(100)]) == {"first": 7, "last": 7, "max": 7, "slope_per_h": 0}
    warming = [(s, min(s, 25.0)) for s in range(100)]
    assert trend(warming)["slope_per_h"] == pytest.approx(0, abs=1)


class Said:
    """A worker as its log tells of it."""

    def __init__(self, *lines: str) -> None:
        self.lines = list(lines)

    def said(self) -> str:
        return "\n".join(self.lines)

    def alive(self) -> bool:
        return True


def test_clock_of_several_workers_waits_until_each_has_partitions() -> None:
    first, second = Said(f"{READY} ingest-raw: 4"), Said("starting")
    settled = Settled(2)
    fleet: Any = [first, second]
    assert settled.look(fleet)
    assert not settled.since
    second.lines += [f"{NOTHING}, it stands by"]
    settled.look(fleet)
    assert not settled.since
    first.lines += [f"{READY} ingest-raw: 2", "more"]
    second.lines += [f"{READY} ingest-raw: 2", "more"]
    settled.look(fleet)
    assert settled.since


def test_environment_that_was_cut_off_is_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "peer-1"
    folder.mkdir()
    (folder / "half").touch()
    with environments._made_once(folder) as make:
        assert make
        assert not folder.exists()
        folder.mkdir()
    with environments._made_once(folder) as make:
        assert not make


def test_environment_that_fails_is_not_taken_for_made(tmp_path: Path) -> None:
    folder = tmp_path / "peer-1"

    def fail() -> None:
        with environments._made_once(folder):
            folder.mkdir()
            raise environments.Unavailable("no packages")

    with pytest.raises(environments.Unavailable, match="no packages"):
        fail()
    with environments._made_once(folder) as make:
        assert make
        folder.mkdir()


def test_without_a_jdk_kafka_streams_is_skipped_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    said: list[str] = []
    assert ingest.available(["kstreams", "raw"], said.append) == ["raw"]
    assert said == ["skipped: kstreams needs a JDK (java, javac) and Maven (mvn)"]


def test_json_holds_exactly_the_figures_of_the_interface(tmp_path: Path) -> None:
    given = main.arguments().parse_args(["ingest", "--contestants", "ours", "--json", str(tmp_path / "f.json")])
    rows = ingest.summary({"ours": [_round(100)]}, 4000)
    main.write(given, rows)
    assert json.loads((tmp_path / "f.json").read_text()) == [
        {
            "name": "ours",
            "events": 4000,
            "events_per_s": 100,
            "cpu_us_per_event": 10.0,
            "peak_rss_mb": 100.0,
            "right": True,
        }
    ]


@pytest.mark.parametrize("names", ["ours,ours", "ours,nobody", ""])
def test_unknown_or_repeated_contestants_are_refused(names: str) -> None:
    with pytest.raises(SystemExit):
        main.arguments().parse_args(["ingest", "--contestants", names])


def test_table_says_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    rows = ingest.summary({"ours": [_round(100)], "raw": [_round(50, wrong="clean-events: 3 lost")]}, 4000)
    main.show(rows)
    assert "raw is wrong: round 1: clean-events: 3 lost" in capsys.readouterr().out


def test_input_of_a_steady_load_is_not_kept() -> None:
    unkept = Unkept()
    assert sum(1 for _ in records(200, unkept)) == unkept.events == 200
    assert not unkept.clean
    assert not unkept.noise
