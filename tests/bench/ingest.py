"""Contestants in turn, round by round, each with topics, a group and a process of its own."""

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from tqdm import tqdm

from app.broker.kafka import EmbeddedKafka
from tests.bench import outputs
from tests.bench.contestants import CONTESTANTS, Job
from tests.bench.data import PARTITIONS, Expected, preload
from tests.bench.environments import Unavailable
from tests.bench.launched import Launched, launched
from tests.bench.meter import Meter

__all__ = ["BROKER", "FIGURES", "Input", "available", "in_turn", "inputs", "measured", "one_round", "run", "summary"]

BROKER = {"log.segment.delete.delay.ms": "1000"}
"""Topics of rounds that are over leave the disk at once."""
FIGURES = ("events_per_s", "cpu_us_per_event", "peak_rss_mb")
Say = Callable[[str], None]
Rounds = dict[str, list[dict[str, Any]]]
Input = tuple[str, Expected]
"""A topic, and what must come of it."""
OneRound = Callable[[str, int, Input], tuple[dict[str, Any], str]]
"""Contestant, number of the round and input -> figures and complaints."""


def available(names: list[str], say: Say) -> list[str]:
    """Those that can run here; makes their environments, and says why another can't."""
    found = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for name in names:
            try:
                CONTESTANTS[name].launch(Job(folder=Path(folder), bootstrap="", topic="", prefix=""), say)
            except Unavailable as error:
                say(f"skipped: {error}")
            else:
                found.append(name)
    return found


def run(names: list[str], count: int, rounds: int, say: Say, same: bool = False) -> Rounds:
    """Runs all rounds; returns what each round of each contestant showed.

    Args:
        names: contestants, in the order they run in each round.
        count: events; a slow contestant gets its share of them.
        rounds: how often each runs.
        say: told of each result.
        same: give all the same number.
    """
    with tempfile.TemporaryDirectory(prefix="bench-") as temporary:
        folder = Path(temporary)
        kafka = EmbeddedKafka(folder / "kafka", properties=BROKER)
        kafka.start()
        try:
            return in_turn(
                names, inputs(kafka.bootstrap, names, count, same, say), rounds, say, run_one(kafka, folder, say)
            )
        finally:
            kafka.stop()


def run_one(kafka: EmbeddedKafka, folder: Path, say: Say) -> OneRound:
    """What runs a contestant once."""
    return lambda name, number, given: one_round(name, folder / f"{name}-{number}", kafka.bootstrap, given, say)


def in_turn(names: list[str], given: dict[str, Input], rounds: int, say: Say, one: OneRound) -> Rounds:
    """A B A B; says what each showed, and what the log of one says that isn't right."""
    found: Rounds = {name: [] for name in names}
    for number in range(rounds):
        for name in names:
            result, log = one(name, number, given[name])
            found[name].append(result)
            say(f"round {number + 1} of {rounds}, {name}: {result}")
            if not result["right"]:
                say(log)
    return found


def inputs(
    bootstrap: str, names: list[str], count: int, same: bool, say: Say, partitions: int = PARTITIONS
) -> dict[str, Input]:
    """A topic for each number of events, by contestant."""
    shares = {name: count if same else count // CONTESTANTS[name].share for name in names}
    made = {events: _input(bootstrap, events, say, partitions) for events in sorted(set(shares.values()))}
    return {name: made[events] for name, events in shares.items()}


def _input(bootstrap: str, events: int, say: Say, partitions: int) -> Input:
    topic = f"bench-input-{events}"
    asyncio.run(outputs.make(bootstrap, [topic], stamped=False, partitions=partitions))
    with tqdm(total=events, desc="input", unit="event", disable=None, leave=False) as bar:
        expected = asyncio.run(preload(bootstrap, topic, events, partitions=partitions, bar=bar.update))
    say(f"{events} events in {topic}, {expected.size_bytes / events:.0f} bytes each")
    return topic, expected


def one_round(
    name: str, folder: Path, bootstrap: str, given: Input, say: Say, results: bool = False
) -> tuple[dict[str, Any], str]:
    """One contestant once; returns its figures and what its log complains of. With `results`, on the whole path."""
    topic, expected = given
    prefix = f"{folder.name}-"
    folder.mkdir()
    names = (*outputs.OUTPUTS, outputs.RESULTS) if results else outputs.OUTPUTS
    asyncio.run(outputs.make(bootstrap, [prefix + t for t in names], stamped=True))
    job = Job(folder=folder, bootstrap=bootstrap, topic=topic, prefix=prefix, results=results)
    launch = CONTESTANTS[name].launch(job, say)
    with (
        launched([(launch, folder / "process.log")]) as (running, meter),
        tqdm(total=expected.events, desc=name, unit="event", disable=None, leave=False) as bar,
    ):
        alive = running[0].alive
        stuck = asyncio.run(outputs.await_progress(bootstrap, launch.group, topic, expected.events, alive, bar.update))
    outcome = asyncio.run(outputs.judge(bootstrap, prefix, expected, results=results))
    asyncio.run(outputs.drop(bootstrap, prefix))
    if stuck:
        outcome.wrong.insert(0, stuck)
    return measured(outcome, expected.events, meter, running), running[0].complaints()


def measured(
    outcome: outputs.Outcome, events: int, meter: Meter, running: list[Launched], not_before: float = 0.0
) -> dict[str, Any]:
    """The figures of a round; 0 where there is nothing to measure, and then it isn't right either."""
    begin, end, counted = outcome.interval(events, not_before)
    wrong = list(outcome.wrong)
    if not counted:
        wrong.append("too few outputs to measure")
    seconds = end - begin
    return {
        "events_per_s": round(counted / seconds) if counted else 0,
        "seconds": round(seconds, 3),
        "cpu_us_per_event": round(meter.cpu_between(begin, end) / counted * 1e6, 2) if counted else 0.0,
        "peak_rss_mb": round(meter.largest_rss_mb, 1),
        "right": not wrong,
        "wrong": wrong,
        "load": round(max(each.load for each in running), 2),
        "killed": any(each.killed for each in running),
    }


def summary(found: Rounds, count: int, same: bool = False) -> list[dict[str, Any]]:
    """Medians over the rounds that are right (over all when none is), and what ours reaches of each other.

    The ratio is the median of the rounds' ratios, so that what slows a whole round down doesn't enter.
    """
    rows = []
    for name, rounds in found.items():
        good = [r for r in rounds if r["right"]] or rounds
        row: dict[str, Any] = {"name": name, "events": count if same else count // CONTESTANTS[name].share}
        row |= {what: median(r[what] for r in good) for what in FIGURES}
        row["right"] = all(r["right"] for r in rounds)
        if name != "ours" and "ours" in found:
            pairs = [(a, b) for a, b in zip(found["ours"], rounds, strict=True) if a["right"] and b["right"]]
            if pairs:
                row["ratio"] = round(median(a["events_per_s"] / b["events_per_s"] for a, b in pairs), 3)
                row["cpu_ratio"] = round(median(b["cpu_us_per_event"] / a["cpu_us_per_event"] for a, b in pairs), 3)
        rows.append({**row, "rounds": rounds})
    return rows
