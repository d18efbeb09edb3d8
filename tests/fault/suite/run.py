"""One fault run: begin, break and heal, wait for the end, and check all topics."""

import asyncio
import json
import math
import time
from collections.abc import Callable

import httpx
import psutil
from aiokafka.errors import KafkaError

from app.errors import HeadraceError
from app.waiting import poll
from tests.fault.suite.checker import Findings, Snapshot, check
from tests.fault.suite.load import PARTITIONS
from tests.fault.suite.outcome import Outcome, say
from tests.fault.suite.rig import BATCH, CONCURRENCY, Rig
from tests.fault.suite.watch import Level, longest_stall_s
from tests.helpers import topics
from tests.helpers.processes import wait_until

__all__ = ["HEAL_S", "run"]

HEAL_S = 60.0
"""I5: progress on every partition within this after healing."""
DRAIN_S = 120.0
TOPICS = (
    "raw", "rekeyed", "clean-events", "sink-noise", "dead-letter", "agg-events", "late-events", "agent-trigger",
    "model-requests", "ai-results", "manual-review", "headrace-ingest-raw-changelog",
    "headrace-ingest-rekeyed-changelog", "headrace-classify-changelog",
)  # fmt: skip
LEVEL_THREADS, LEVEL_HANDLES, LEVEL_MB = 4, 40, 150
"""What a worker may hold more at the end than before the fault: libraries start threads and open files lazily."""


def run(rig: Rig, fault: Callable[[Rig], None], started: list[int] | None = None) -> Outcome:
    """Starts everything, breaks and heals, waits for the end, and checks."""
    begun = time.monotonic()
    children = len(psutil.Process().children(recursive=True))
    try:
        rig.begin(started)
        before = rig.levels()
        flowing = time.monotonic()
        fault(rig)
        _recover(rig)
        if not rig.expects_stop:
            rig.rest(max(2.0, rig.seconds - (time.monotonic() - flowing)))
            _end(rig, before)
    except (AssertionError, HeadraceError, KafkaError, OSError, httpx.HTTPError) as error:
        rig.wrong("run", f"{type(error).__name__}: {error}")
    finally:
        try:
            rig.clean_up()
        except AssertionError as error:
            rig.wrong("clean-up", error)
    if (
        not {"run", "clean-up"} & rig.outcome.wrong.keys() and not rig.expects_stop
    ):  # what didn't end lacks things for certain
        _check(rig)
    left = len(psutil.Process().children(recursive=True)) - children
    if left > 0:
        rig.wrong("processes left", left)
    rig.outcome.seconds = round(time.monotonic() - begun, 1)
    rig.outcome.right = not rig.outcome.wrong
    return rig.outcome


def _recover(rig: Rig) -> None:
    """I5: every partition moves within 60 s."""
    if rig.expects_stop:
        return
    healed = time.monotonic()
    places = [("raw", partition) for partition in range(PARTITIONS)]
    wait_until(lambda: rig.watch.last.at > healed, 30, "the broker answers")
    first = rig.watch.last

    def moved() -> bool:
        now, then = rig.watch.last, first.committed
        stands = {p: now.committed.get(p, -1) for p in places}
        return all(stands[p] > then.get(p, 0) or stands[p] >= now.ends.get(p, 0) for p in places)

    wait_until(moved, HEAL_S, "I5: progress on every partition after healing")
    rig.outcome.progress_s = round(time.monotonic() - healed, 1)
    say(f"healed; every partition moved after {rig.outcome.progress_s} s")


def _end(rig: Rig, before: list[Level]) -> None:
    rig.load.end()
    asyncio.run(rig.load.flush())
    _await_drained(rig)
    _await_results(rig)
    if rig.compare_levels:
        _compare(rig, before)
    for number in range(len(rig.workers)):
        if number not in rig.down:
            rig.stop(number)


def _await_drained(rig: Rig) -> None:
    """All input is taken; a long run may have left much, so what counts is that it goes on."""

    def taken() -> int:
        return sum(rig.watch.last.committed.get(("raw", p), 0) for p in range(PARTITIONS))

    def drained() -> bool:
        last = rig.watch.last
        return bool(last.ends) and all(
            last.committed.get(("raw", p), 0) >= last.ends.get(("raw", p), 1) for p in range(PARTITIONS)
        )

    while not drained():
        before = taken()
        wait_until(lambda before=before: drained() or taken() > before, DRAIN_S, "input is taken on")


def _await_results(rig: Rig) -> None:
    """All that was asked of models is answered, all windows are out; or nothing came for a long time."""
    finished, stands, moved_at = False, (-1, -1), time.monotonic()

    def settled() -> bool:
        nonlocal finished, stands, moved_at
        finished, answers = _answered(rig)
        now = answers, len(rig.read("agg-events"))
        still, stands = now == stands, now
        if not still:
            moved_at = time.monotonic()
        return still and (finished or time.monotonic() - moved_at > DRAIN_S)

    poll(settled, math.inf, every_s=1.0)  # topics are read whole, so not often
    if not finished:
        rig.wrong("not finished", f"nothing came for {DRAIN_S:.0f} s")


def _answered(rig: Rig) -> tuple[bool, int]:
    """Whether all that was asked, or sent to another partition, has come out; and how many answers there are."""
    asked = {json.loads(r.value)["event_id"] for r in rig.read("model-requests")}
    ended = {json.loads(r.value)["event_id"] for t in ("ai-results", "manual-review") for r in rig.read(t)}
    rekeyed = {json.loads(r.value)["event_id"] for r in rig.read("rekeyed")}
    clean = {dict(r.headers)["headrace.event-id"].decode() for r in rig.read("clean-events")}
    clean |= {dict(r.headers)["headrace.event-id"].decode() for r in rig.read("sink-noise")}
    return asked <= ended and rekeyed <= clean, len(asked & ended)


def _compare(rig: Rig, before: list[Level]) -> None:
    """Threads, handles and memory of each worker, against the most that one held before the fault."""
    for level in rig.levels():
        for what, now, was, more in (
            ("threads", level.threads, max(b.threads for b in before), LEVEL_THREADS),
            ("handles", level.handles, max(b.handles for b in before), LEVEL_HANDLES),
            ("memory_mb", level.memory_mb, max(b.memory_mb for b in before), LEVEL_MB),
        ):
            if now > was + more:
                rig.wrong(f"{what} didn't come back", f"{was} before, {now} after")
    rig.outcome.counts["memory_mb"] = max(level.memory_mb for level in rig.levels())


def _snapshot(rig: Rig) -> Snapshot:
    group = f"{rig.prefix}headrace"
    found = {topic: rig.read(topic) for topic in TOPICS}
    if rig.held:
        first = {r.partition: r.offset for r in reversed(found["raw"])}
        old = [r for r in rig.held if r.offset < first.get(r.partition, 1 << 62)]
        merged = sorted([*old, *found["raw"]], key=lambda r: (r.partition, r.offset))
        found["raw"] = [r for r in merged if (r.partition, r.offset) not in rig.gone]
    return Snapshot(
        rig.prefix,
        found,
        rig.calls,
        {"raw": asyncio.run(topics.committed(rig.bootstrap, group, f"{rig.prefix}raw", PARTITIONS))},
        [] if rig.offsets_touched else rig.watch.samples,
        losses=rig.losses,
        reviews_allowed=rig.reviews_allowed,
        rounds=rig.rounds,
        in_flight=CONCURRENCY * BATCH * 2,  # answers on their way to a transaction are as many again
    )


def _check(rig: Rig) -> None:
    found: Findings = check(_snapshot(rig))
    for what, n in found.wrong.items():
        rig.outcome.wrong[what] = rig.outcome.wrong.get(what, 0) + n
    rig.outcome.examples |= found.examples
    rig.outcome.counts |= found.counts
    rig.outcome.stall_s = round(longest_stall_s(rig.watch.samples), 1)
