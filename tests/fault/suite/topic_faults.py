"""Fault 27: topics that are deleted while workers run, and made again."""

import asyncio
import json
import re

import httpx

from tests.fault.suite.load import PARTITIONS
from tests.fault.suite.rig import Rig
from tests.fault.suite.state_faults import CHANGELOG, delete_topic
from tests.helpers import topics
from tests.helpers.processes import wait_until

__all__ = ["inputs_vanish", "outputs_vanish"]

SAID_S = 40.0
"""Until a lane says that a topic is missing: it has to have something for it, and looks after some seconds."""


def outputs_vanish(rig: Rig) -> None:
    """Outputs, a changelog, and the topic that workers announce themselves in.

    What a deleted output held is gone, which is no fault of anybody here: it is read before, and counted with the rest.
    """
    rig.offsets_touched = True  # their offsets begin anew, so samples of log ends can't be compared
    for name in ["dead-letter", rig.rnd.choice(["clean-events", "sink-noise"])]:
        _quiet(rig)
        rig.vanished[name] = rig.read(name)
        rig.losses += len(rig.workers)
        told = _lengths(rig)
        _delete(rig, name)
        rig.load.rate = rig.rate
        wait_until(lambda told=told, name=name: _said(rig, told, name), SAID_S, f"{name} is said to be missing")  # type: ignore[misc]
        rig.rest(1, 5)
        _create(rig, name, PARTITIONS)
        _moves(rig)
    _changelog_vanishes(rig)
    _delete(rig, "workers")
    rig.rest(1, 3)
    _create(rig, "workers", 1, compacted=True)
    if rig.outcome.ended_by_themselves:
        rig.wrong("workers ended by themselves", rig.outcome.ended_by_themselves)
    rig.note("lanes named the topic, committed nothing, and went on when it was there; the changelog was written anew")


def _changelog_vanishes(rig: Rig) -> None:
    """Deleted and made again at once, under load: every lane has to notice before it commits anything to the new one."""
    told = _lengths(rig)
    rig.losses += len(rig.workers)
    _delete(rig, CHANGELOG)
    _create(rig, CHANGELOG, PARTITIONS, compacted=True)

    def whole() -> bool:
        said = re.findall(rf"{rig.prefix}{CHANGELOG}, partition (\d) is whole again", _since(rig, told))
        return len(set(said)) == PARTITIONS

    wait_until(whole, SAID_S, "the changelog of each partition is written anew")


def inputs_vanish(rig: Rig) -> None:
    """The topic of the rekey hop, all of which was read: its stage stops and says so, the stage before it waits and goes on."""
    rig.expects_stop = words = "recreated"  # found by its end, or by another record at the place
    wait_until(
        lambda: len({r.partition for r in rig.read("rekeyed")}) == PARTITIONS, 60, "each partition has been used"
    )
    _quiet(rig)
    told = _lengths(rig)
    _delete(rig, "rekeyed")
    missing = f"ingest-rekeyed: its input {rig.prefix}rekeyed isn't there"
    wait_until(lambda: missing in _since(rig, told), SAID_S, missing)
    rig.load.rate = rig.rate
    wait_until(lambda: _said(rig, told, "rekeyed"), SAID_S, "the stage before it says so as well")
    _create(rig, "rekeyed", PARTITIONS)

    def stopped() -> set[str]:
        return set(re.findall(rf"partition (\d) of {rig.prefix}rekeyed is STOPPED[^\n]*{words}", _since(rig, told)))

    wait_until(lambda: len(stopped()) == PARTITIONS, 60, f"all its partitions stop and say: {words}")
    _moves(rig)
    health = [httpx.get(f"{worker.url}/healthz", timeout=10) for worker in rig.workers]
    if not any(each.status_code == 503 and words in each.text for each in health):
        rig.wrong("health says nothing of stopped partitions", [each.text for each in health])
    rig.load.end()
    if rig.outcome.ended_by_themselves:
        rig.wrong("workers ended by themselves", rig.outcome.ended_by_themselves)
    rig.note("its stage stopped and said why, the input of the others was read on")


def _quiet(rig: Rig) -> None:
    """No more events until the rate is set again; all that were sent have left ingest."""
    rig.load.rate = 0
    rig.rest(1)  # what was being sent

    def left() -> bool:
        last = rig.watch.last
        return any(last.committed.get(("raw", p), 0) < last.ends.get(("raw", p), 1) for p in range(PARTITIONS))

    wait_until(lambda: not left(), 60, "all input is taken")

    def hopped() -> bool:
        sent = {json.loads(r.value)["event_id"] for r in rig.read("rekeyed")}
        out = {
            dict(r.headers)["headrace.event-id"].decode() for t in ("clean-events", "sink-noise") for r in rig.read(t)
        }
        return sent <= out

    wait_until(hopped, 60, "what took the hop is out", every_s=0.5)


def _lengths(rig: Rig) -> list[int]:
    """How long each worker's log is."""
    return [len(worker.log.read_text(errors="replace")) for worker in rig.workers]


def _since(rig: Rig, told: list[int]) -> str:
    """What workers have said since their logs were so long."""
    logs = zip(rig.workers, told, strict=True)
    return "\n".join(worker.log.read_text(errors="replace")[length:] for worker, length in logs)


def _said(rig: Rig, told: list[int], name: str) -> bool:
    return f"topic {rig.prefix}{name} isn't there" in _since(rig, told)


def _moves(rig: Rig) -> None:
    """Each partition of the input goes on."""
    before = dict(rig.watch.last.committed)

    def moved() -> bool:
        now = rig.watch.last.committed
        return all(now.get(("raw", p), 0) > before.get(("raw", p), 0) for p in range(PARTITIONS))

    wait_until(moved, 60, "each partition goes on")


def _delete(rig: Rig, name: str) -> None:
    asyncio.run(delete_topic(rig, name))


def _create(rig: Rig, name: str, partitions: int, *, compacted: bool = False) -> None:
    config = {"cleanup.policy": "compact"} if compacted else None
    asyncio.run(topics.create(rig.bootstrap, rig.prefix + name, partitions, config))
