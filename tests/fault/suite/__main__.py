"""Runs faults against real processes and checks every topic afterwards.

python -m tests.fault.suite                        all of them, once
python -m tests.fault.suite --fault 6 --seed 3 --minutes 2
python -m tests.fault.suite --seeds 1 2 3 --json build/chaos.json
"""

import argparse
import json
import logging
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from app.broker.kafka import EmbeddedKafka
from tests.fault.suite.faults import FAULTS, SOAK
from tests.fault.suite.outcome import Outcome, say
from tests.fault.suite.rig import Rig
from tests.fault.suite.run import run
from tests.helpers.disk import NoDisk

__all__ = ["by_time", "main", "one"]

BY_TIME = {"run", "clean-up", "stop", "not finished", "threads didn't come back", "handles didn't come back",
           "memory_mb didn't come back"}  # fmt: skip
"""What a machine that is busy with other work can make wrong as well. A brief pass repeats such a run once; whatever was lost,
invented or out of order is never repeated away, nor a partition that stood still for a minute after healing (I5)."""


@contextmanager
def broker(folder: Path) -> Iterator[EmbeddedKafka]:
    kafka = EmbeddedKafka(folder / "kafka")
    kafka.start()
    try:
        yield kafka
    finally:
        kafka.kill()


def one(kafka: EmbeddedKafka, folder: Path, number: str, seed: int, seconds: float, **more: Any) -> Outcome:
    """One run of one fault."""
    row = FAULTS[number]
    say(f"fault {number}, {row.name}; seed {seed}")
    its = folder / f"{number}-{seed}-{time.time_ns()}"
    try:
        with nullcontext(kafka) if row.broker is None else row.broker(its / "own") as used:
            rig = Rig(used, its / "run", number, seed, seconds, **row.rig, **more)
            outcome = run(rig, row.act, row.started)
    except NoDisk as reason:
        return _skipped(number, seed, str(reason))
    if row.stall_s is not None and outcome.stall_s > row.stall_s and not rig.brief:  # which runs on a busy machine
        outcome.wrong["a partition stood still"] = 1
        outcome.examples["a partition stood still"] = [f"{outcome.stall_s} s, {row.stall_s} s are allowed"]
        outcome.right = False
    verdict = "RIGHT" if outcome.right else f"WRONG {outcome.wrong}"
    print(
        f"fault {number:>3} seed {seed}: {verdict}; {outcome.seconds:.0f} s, {outcome.counts.get('records', 0)} records, "
        f"progress after {outcome.progress_s} s, longest stall {outcome.stall_s} s", flush=True,
    )  # fmt: skip
    for what, examples in outcome.examples.items():
        print(f"      {what}: {examples}", flush=True)
    return outcome


def by_time(outcome: Outcome) -> bool:
    """Whether a run was wrong, and nothing but time can be why."""
    stood = any("I5" in each for each in outcome.examples.get("run", []))
    return not outcome.right and outcome.wrong.keys() <= BY_TIME and not stood


def _skipped(number: str, seed: int, reason: str) -> Outcome:
    print(f"fault {number:>3} seed {seed}: SKIPPED, {reason}", flush=True)
    return Outcome(number, seed, right=True, notes=[f"skipped: {reason}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fault", nargs="*", default=None, help=f"numbers: {', '.join(FAULTS)}")
    parser.add_argument("--seed", "--seeds", dest="seeds", type=int, nargs="*", default=None)
    parser.add_argument("--minutes", type=float, default=0.4, help="of load, at least")
    parser.add_argument(
        "--brief", action="store_true", help="fewer repeats and shorter pauses: all faults in 20 minutes"
    )
    parser.add_argument("--limit", type=float, default=None, help="minutes, after which no further fault is begun")
    parser.add_argument("--kills", type=int, default=30, help="of fault 7 and of the soak")
    parser.add_argument("--json", type=Path, default=None, help="outcomes are appended to this file, one a line")
    parser.add_argument("--keep", type=Path, default=None, help="folder for logs and data; unset: a temporary one")
    given = parser.parse_args()
    seeds = given.seeds or [random.randrange(1000)]
    numbers = given.fault or [n for n in FAULTS if n != SOAK]
    if unknown := [n for n in numbers if n not in FAULTS]:
        parser.error(f"there is no fault {', '.join(unknown)}; there are {', '.join(FAULTS)}")
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # the harness's own clients meet every fault too
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # cleans up, and begins no other fault
    sys.exit(not everything(given, numbers, seeds))


def everything(given: argparse.Namespace, numbers: list[str], seeds: list[int]) -> bool:
    """All the runs that were asked for, on one broker; returns whether all were right."""
    wrong, skipped, begun = [], [], time.monotonic()
    wanted = [(seed, number) for seed in seeds for number in numbers]
    if given.limit is not None:
        random.Random(seeds[0]).shuffle(wanted)  # so that no fault is always the one that there is no time for
    with tempfile.TemporaryDirectory() as name:
        folder = given.keep or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        with broker(folder / f"broker-{time.time_ns()}") as kafka:
            for seed, number in wanted:
                if given.limit is not None and time.monotonic() - begun > given.limit * 60:
                    skipped.append(number)
                    continue
                if kafka.process is None or kafka.process.poll() is not None:
                    sys.exit(f"the suite's Kafka has ended, so no further fault is begun: {kafka.last_error()}")
                seconds = given.minutes * 60
                outcome = one(kafka, folder, number, seed, seconds, brief=given.brief, kills=given.kills)
                if given.brief and by_time(outcome):
                    print(f"fault {number:>3} seed {seed}: nothing but time was wrong: once more", flush=True)
                    outcome = one(kafka, folder, number, seed, seconds, brief=True, kills=given.kills)
                if given.json is not None:
                    _append(given.json, outcome)
                if not outcome.right:
                    wrong.append(f"{number} (seed {seed})")
    print(
        f"{len(wanted) - len(wrong) - len(skipped)} right; wrong: {', '.join(wrong) or 'none'}; "
        f"no time for: {', '.join(skipped) or 'none'}", flush=True,
    )  # fmt: skip
    return not wrong


def _append(path: Path, outcome: Outcome) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as out:
        out.write(json.dumps(asdict(outcome), ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
