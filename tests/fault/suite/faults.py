"""The fault table of the design, one function a row: each breaks something while events flow, and heals it."""

import asyncio
import json
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.broker.kafka import EmbeddedKafka
from tests.fault.suite import place_faults, state_faults, topic_faults
from tests.fault.suite.load import Pair
from tests.fault.suite.outcome import say
from tests.fault.suite.rig import SESSION_S, Rig
from tests.fault.suite.truth import HOSTILE
from tests.helpers import topics
from tests.helpers.model_faults import Fault, answer, drip, hang, raw, reset, status
from tests.helpers.processes import wait_until
from tests.helpers.proxy import ADD_OFFSETS, END_TXN, INIT_PRODUCER, PRODUCE, TXN_OFFSET_COMMIT

__all__ = ["FAULTS", "SOAK", "FaultRow"]

JSON_SUITE = Path(__file__).parents[4] / "shared" / "data" / "json-test-suite"
STALL_S = 15.0
"""No partition stands still for longer when workers come and go in good order; after a kill this beyond the session."""


@dataclass(frozen=True, kw_only=True)
class FaultRow:
    """A row of the table.

    Args:
        name: as in the design.
        act: what breaks and heals.
        rig: more for `Rig`.
        started: numbers of the workers that run from the start; None: all.
        stall_s: a partition with input that stands still for longer is wrong; None: the fault itself stops it.
    """

    name: str
    act: Callable[[Rig], None]
    rig: dict[str, Any] = field(default_factory=dict)
    started: list[int] | None = None
    stall_s: float | None = None
    broker: Callable[[Path], AbstractContextManager[EmbeddedKafka]] | None = None
    """One of its own, in a folder; unset: the one that all runs share."""


def backlog(rig: Rig, count: int = 3000) -> None:
    """So that whatever comes falls into batches."""
    rig.load.burst(rig.load.stream.take(count))


def sigkill_mid_batch(rig: Rig) -> None:
    for _ in range(3):
        backlog(rig)
        rig.rest(0.5, 3.0)
        victim = rig.pick()
        rig.kill(victim)
        rig.start(victim)


def at_point(point: str) -> Callable[[Rig], None]:
    """Dies there twice, at passages drawn by the seed, with a worker that takes over meanwhile."""

    def act(rig: Rig) -> None:
        for _ in range(1 if rig.brief else 2):
            backlog(rig, 1000)
            rig.crash(rig.pick(), point, rig.rnd.randrange(2, 40))

    return act


def sigterm_with_calls(rig: Rig) -> None:
    """Calls hang for longer than the stop may take, so some are in flight for certain."""
    for _ in range(2):
        victim = rig.pick()
        rig.model_faults([hang(8)] * 8)
        wait_until(lambda: rig.stub.get("counts")["in_flight"] > 0, 20, "calls in flight")
        rig.stop(victim)
        rig.start(victim)
        rig.rest(3)


def zombie(rig: Rig) -> None:
    """Stopped for three session timeouts, so that the other one takes over; then it goes on where it was."""
    victim = rig.pick()
    backlog(rig, 8000)
    rig.rest(0.3, 1.5)
    rig.workers[victim].pause()
    rig.lost(victim)
    rig.rest(3 * SESSION_S)
    backlog(rig, 2000)
    rig.workers[victim].resume()
    rig.rest(5)


def many_kills(rig: Rig) -> None:
    backlog(rig)
    for _ in range(10 if rig.brief else rig.kills):
        rig.rest(0.3, 1.8)
        victim = rig.rnd.randrange(len(rig.workers))
        rig.kill(victim)
        rig.start(victim)


BURST = 4
"""SIGKILLs of the soak that follow each other closely."""


def soak(rig: Rig) -> None:
    """Kills from outside at any moment, and from inside at random points of transactions and calls.

    They come in bursts, within a rebalance too, with time between them in which events flow.
    """
    rig.compare_levels = False
    done, said = 0, 0
    for number in range(len(rig.workers)):
        rig.arm(number)
    while done + rig.crashes < rig.kills:
        rig.rest(*((8.0, 16.0) if done % BURST == 0 else (0.5, 4.0)))
        victim = rig.rnd.randrange(len(rig.workers))
        rig.kill(victim)
        rig.arm(victim)
        done += 1
        if done + rig.crashes >= said + 20:
            said = done + rig.crashes
            say(f"{said} kills, {rig.crashes} of them at points inside")
    for number in range(len(rig.workers)):
        rig.kill(number)
        rig.start(number)
    rig.outcome.counts["kills"] = done + rig.crashes + len(rig.workers)


def scale(rig: Rig) -> None:
    """One worker, three, and one: the one that is left came last."""
    rig.start(1)
    rig.start(2)
    rig.rest(10)
    rig.stop(0)
    rig.rest(3)
    rig.stop(1)
    rig.compare_levels = False  # one holds now what three held


def rolling_restart(rig: Rig) -> None:
    """Other batches, calls and compression; results don't depend on them. Standbys hold more than was held before."""
    rig.compare_levels = False
    for number in range(len(rig.workers)):
        rig.stop(number)
        rig.start_ready(
            number, HEADRACE_DELIVERY__BATCH_RECORDS="500", HEADRACE_KAFKA__COMPRESSION="lz4",
            HEADRACE_LLM__BATCH_ITEMS="5", HEADRACE_KAFKA__STANDBY_REPLICAS="1",
        )  # fmt: skip
        rig.rest(2)


def broker_killed(rig: Rig) -> None:
    backlog(rig)
    rig.rest(0.5, 2.0)
    rig.kill_broker()
    rig.rest(2, 6)
    rig.kafka.start()


def broker_paused(rig: Rig) -> None:
    rig.pause_broker()
    rig.rest(10 if rig.brief else 30)
    rig.resume_broker()


def broker_absent(rig: Rig) -> None:
    """Workers start while there is no broker. They may wait or end with a reason, as long as they come up after it."""
    for number in range(len(rig.workers)):
        rig.stop(number)
    rig.kill_broker()
    for number in range(len(rig.workers)):
        rig.start(number)
    rig.rest(10)
    rig.kafka.start()


def cut_off(rig: Rig) -> None:
    """One of two, without a word and then with: connections refused, and then connections on which nothing comes."""
    rig.proxy.cut()
    rig.lost(0)
    rig.rest(2 * SESSION_S)
    rig.proxy.heal()
    rig.rest(5)
    backlog(rig)
    rig.proxy.hold()
    rig.rest(2 * SESSION_S)
    rig.proxy.heal()


def lost_answers(rig: Rig) -> None:
    """What was asked is done, and the worker never hears of it."""
    for request in (PRODUCE, END_TXN, TXN_OFFSET_COMMIT, ADD_OFFSETS, INIT_PRODUCER):
        if request == INIT_PRODUCER:
            rig.stop(1)
        rig.proxy.lose(request, 2)
        if request == INIT_PRODUCER:
            rig.start(1)  # lanes begin with it
        _until_lost(rig, f"answers to request {request}")
    rig.proxy.halve(3)
    _until_lost(rig, "halves of requests")
    rig.proxy.delay_s = 0.3
    rig.rest(3)
    rig.proxy.heal()


def _until_lost(rig: Rig, what: str) -> None:
    backlog(rig, 300)
    wait_until(lambda: rig.proxy.left == 0, 40, f"{what} get lost")
    say(f"{what} got lost")
    rig.rest(1)


def all_again(rig: Rig) -> None:
    """Everything that was sent so far, once more and in another order."""
    rig.rest(4)
    pairs = [(record.key, record.value) for record in rig.read("raw")]
    rig.rnd.shuffle(pairs)
    rig.load.burst(pairs)
    say(f"{len(pairs)} records again")


def too_many(rig: Rig) -> None:
    kinds = [
        status(429, retry_after="1"),
        status(429, retry_after="2"),
        status(500),
        status(503, retry_after="1"),
        status(502),
    ]
    _bad_day(rig, [rig.rnd.choice(kinds) for _ in range(40)])


def hangs(rig: Rig) -> None:
    _bad_day(rig, [rig.rnd.choice([hang(), drip(), reset(), hang(2)]) for _ in range(30)])


def bad_answers(rig: Rig) -> None:
    """Missing, extra, doubled and unknown labels, cut and broken JSON. A text that two rounds spoil goes to review."""
    rig.reviews_allowed = True
    kinds = [
        answer(missing=[1, 2, 3]), answer(extra={99: "payment", 0: "order"}), answer(twice={1: "order", 2: "nothing"}),
        answer(wrong={1: "paymnt"}), answer(cut_at=1), raw("{"), raw('{"error": {"code": 500, "message": "x"}}'),
        answer(prefix="```json\n", suffix="\n```"), answer(missing=[1], prefix="<think>1: order</think>"),
    ]  # fmt: skip
    faults = []
    for _ in range(60):
        fault = Fault(**vars(rig.rnd.choice(kinds)))
        fault.kind = "bad-item" if fault.kind == "answer" else fault.kind
        faults += [fault] if rig.rnd.random() < 0.6 else [Fault()]
    _bad_day(rig, faults)


def _bad_day(rig: Rig, faults: list[Fault]) -> None:
    rig.rounds = 20
    rig.model_faults(faults)
    wait_until(lambda: rig.faults_left() == 0, 90, "the model server's faults are used up")


def clocks(rig: Rig) -> None:
    """Producers jump ahead by a minute, then far ahead, then back; and a worker's own clock is an hour ahead."""
    rig.kill(1)
    rig.workers[1].module = ("tests.fault.suite.odd", "clock:3600")
    rig.start(1)
    for ahead_ms in (60_000, 0, 700_000, 0, -30_000, 0):
        rig.load.stream.ahead_ms = ahead_ms
        rig.rest(2)
    rig.kill(1)
    rig.workers[1].module = ("app",)
    rig.start(1)
    rig.load.stream.ahead_ms = 60_000  # what is sent at the end must be ahead of all


def hostile(rig: Rig) -> None:
    """Headers and keys that look like ours, huge headers, deep and broken values: believed nowhere, and nothing stops."""
    ours: list[tuple[str, bytes]] = [
        ("headrace.origin", b"raw/0/0"), ("headrace.event-id", b"e1"), ("headrace.reason", b"null-value"),
        ("headrace.rule", b"beats"), ("__connect.errors.partition", b"0"), ("__connect.errors.offset", b"0"),
        ("headrace.source", b"raw"), ("\u0000", b"\xff\xfe"),
    ]  # fmt: skip
    for headers in (ours, [("large", b"x" * 900_000)], [("same", b"1")] * 3000):
        some = rig.load.stream.take(200 if headers is ours else 5)
        asyncio.run(topics.produce(rig.bootstrap, f"{rig.prefix}raw", some, headers))
    keys = [b"\x00applied", b"S\x00\x00", b"o\x00\x00\x00\x00\x00\x00\x00\x01", b"\x00kinds", b""]
    now_ms = int(time.time() * 1000)
    pairs: list[Pair] = [
        (key, json.dumps({"event_id": f"{key.hex()}-{n}", "event_type": "view", "event_time": now_ms}).encode())
        for key in keys
        for n in range(10)
    ]
    depths = [b"[" * n + b"]" * n for n in (101, 1000, 100_000)]
    broken = [
        *depths,
        b'{"event_id":' * 500,
        b"\xff\xfe{}",
        b"\xef\xbb\xbf{}",
        b"NaN",
        b'{"a":1e999}',
        b"\x00",
        b"9" * 100_000,
    ]
    files = sorted(JSON_SUITE.rglob("*.json")) if JSON_SUITE.is_dir() else []
    rig.note(f"{len(files)} files of json-test-suite" if files else "json-test-suite isn't beside this checkout")
    if not files and os.environ.get("CI"):
        rig.wrong("json-test-suite must be there in CI", JSON_SUITE)
    broken += [file.read_bytes() for file in files]
    pairs += [(HOSTILE, value) for value in broken]
    rig.load.burst(pairs)
    rig.rest(3)


def storm(rig: Rig) -> None:
    """A worker joins and leaves every 5 s."""
    for _ in range(2 if rig.brief else max(3, int(rig.seconds / 5))):
        rig.start(2)
        rig.rest(4, 5)
        rig.stop(2)
    rig.start(2)


KILL_STALL_S = STALL_S + SESSION_S
SMALL = {"HEADRACE_DELIVERY__BATCH_RECORDS": "50", "HEADRACE_DELIVERY__COMMIT_INTERVAL_MS": "300"}
"""Many small transactions: a process that is stopped holds some that it could still write."""
ROUNDS = {"HEADRACE_CLASSIFY__MAX_ROUNDS": "20"}

FAULTS: dict[str, FaultRow] = {
    "1": FaultRow(name="SIGKILL mid-batch", act=sigkill_mid_batch, stall_s=KILL_STALL_S),
    "2": FaultRow(name="killed after a model's answer, before its transaction", act=at_point("answered")),
    "3": FaultRow(name="killed inside a transaction, before its commit", act=at_point("uncommitted")),
    "4": FaultRow(name="killed after the commit, before the local write", act=at_point("committed")),
    "5": FaultRow(name="SIGTERM with calls in flight", act=sigterm_with_calls, stall_s=STALL_S),
    "6": FaultRow(name="SIGSTOP for three session timeouts, then SIGCONT", act=zombie, rig={"env": SMALL}),
    "7": FaultRow(name="thirty SIGKILLs at random", act=many_kills, rig={"workers": 3}),
    "8": FaultRow(name="scale 1-3-1", act=scale, rig={"workers": 3}, started=[0], stall_s=STALL_S),
    "9": FaultRow(name="rolling restart with other settings", act=rolling_restart, stall_s=STALL_S),
    "10": FaultRow(name="broker SIGKILL and restart", act=broker_killed),
    "11": FaultRow(name="broker paused 30 s", act=broker_paused),
    "12": FaultRow(name="broker absent at start", act=broker_absent),
    "13": FaultRow(name="one worker cut off by a TCP proxy", act=cut_off, rig={"proxied": [0]}),
    "14": FaultRow(name="answers of produce, offset and commit lost", act=lost_answers, rig={"proxied": [0, 1]}),
    "15": FaultRow(name="the whole input again, shuffled", act=all_again),
    "16": FaultRow(name="a burst of 429 and 5xx with Retry-After", act=too_many, rig={"env": ROUNDS}),
    "17": FaultRow(name="model server hangs, drips, resets", act=hangs, rig={"env": ROUNDS}),
    "18": FaultRow(name="bad answers of a model", act=bad_answers, rig={"env": ROUNDS}),
    "19": FaultRow(name="late events, clock jumps", act=clocks),
    "20a": FaultRow(name="local State lost, of another partition, damaged", act=state_faults.folders),
    "20b": FaultRow(name="changelog lost, local State there", act=state_faults.changelog, rig={"workers": 1}),
    "20c": FaultRow(name="changelog and local State lost", act=state_faults.both, rig={"workers": 1}),
    "21a": FaultRow(name="input topic recreated", act=state_faults.recreated, rig={"workers": 1}),
    "21b": FaultRow(name="input cut at its start by retention", act=state_faults.cut, rig={"workers": 1}),
    "22": FaultRow(name="the group's offsets reset, then deleted", act=state_faults.offsets),
    "23": FaultRow(name="rebalance storm", act=storm, rig={"workers": 3}, started=[0, 1]),
    "24": FaultRow(name="hostile records", act=hostile),
    "25": FaultRow(
        name="rights taken from running workers; a wrong password",
        act=place_faults.refused,
        broker=place_faults.secure_broker,
    ),
    "26a": FaultRow(name="the disk of a worker's State is full", act=place_faults.state_disk),
    "26b": FaultRow(name="the broker's disk is full", act=place_faults.broker_disk, broker=place_faults.small_broker),
    "27a": FaultRow(name="outputs and a changelog deleted, and made again", act=topic_faults.outputs_vanish),
    "27b": FaultRow(name="the topic between two stages deleted, and made again", act=topic_faults.inputs_vanish),
    "soak": FaultRow(name="random kills, also inside transactions and calls", act=soak, rig={"workers": 3}),
}
"""Numbers as in the design; from 23 on they are beyond it."""
SOAK = "soak"
"""Only run when it is asked for."""
