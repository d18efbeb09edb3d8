"""Faults 25 and 26: rights that are taken away, and disks that are full."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.broker.acls import Acl
from app.broker.kafka import EmbeddedKafka
from tests.fault.suite.outcome import say
from tests.fault.suite.rig import Rig
from tests.helpers.disk import NoDisk, fill, mount, unmount
from tests.helpers.processes import wait_until
from tests.helpers.secure import SecureKafka

__all__ = ["broker_disk", "refused", "secure_broker", "small_broker", "state_disk"]

BROKER_MIB = 400
"""Kafka wants 200 free to start; a run writes less than 100."""
STATE_MIB = 700
"""RocksDB sets aside about 20 for each partition of each State."""


@contextmanager
def secure_broker(folder: Path) -> Iterator[EmbeddedKafka]:
    kafka = SecureKafka(folder / "kafka")
    try:
        kafka.start()
        yield kafka
    finally:
        kafka.kill()


@contextmanager
def small_broker(folder: Path) -> Iterator[EmbeddedKafka]:
    """On a disk of its own."""
    disk = folder / "disk"
    mount(disk, BROKER_MIB)
    kafka = EmbeddedKafka(disk / "kafka")
    try:
        kafka.start()
        yield kafka
    finally:
        kafka.kill()
        unmount(disk)


def refused(rig: Rig) -> None:
    """One right after the other is taken from running workers, named by them, and given back; then a password is wrong."""
    kafka, name = rig.kafka, f"{rig.prefix}headrace"
    assert isinstance(kafka, SecureKafka)
    rights = [
        (Acl(resource="topic", name=f"{rig.prefix}clean-events", operations=("Write",)), "topic"),
        (Acl(resource="topic", name=f"{rig.prefix}raw", operations=("Read",)), "topic"),
        (Acl(resource="topic", name=f"{name}-", operations=("Read", "Write"), prefixed=True), "topic"),
        (Acl(resource="transactional-id", name=f"{name}-", operations=("Write",), prefixed=True), "transactional id"),
        (Acl(resource="group", name=name, operations=("Read",), prefixed=True), "consumer group"),
    ]
    for right, kind in rights:
        told = len(rig.logs())
        asyncio.run(kafka.take("worker", right))
        rig.losses += len(rig.workers)
        words = f"Kafka refuses user worker what it needs on {kind} {right.name}"
        wait_until(lambda told=told, words=words: words in rig.logs()[told:], 40, words)  # type: ignore[misc]
        rig.rest(1, 3)
        asyncio.run(kafka.give("worker", right))
        rig.rest(4)
    if rig.outcome.ended_by_themselves:
        rig.wrong("workers ended by themselves", rig.outcome.ended_by_themselves)
    _wrong_password(rig)


def _wrong_password(rig: Rig) -> None:
    rig.stop(0)
    worker, password = rig.workers[0], rig.workers[0].env["HEADRACE_KAFKA__PASSWORD"]
    rig.start(0, HEADRACE_KAFKA__PASSWORD="no-such-password")
    rig.down.add(0)
    process = worker.process
    assert process is not None
    wait_until(lambda: process.poll() is not None, 40, "a worker with a wrong password ends")
    if process.returncode != 1 or "it refuses this user or password" not in worker.log.read_text(errors="replace"):
        rig.wrong("a wrong password isn't said", worker.log)
    rig.start_ready(0, HEADRACE_KAFKA__PASSWORD=password)


def state_disk(rig: Rig) -> None:
    """The disk of one worker's State is full while partitions come to it; then there is room again."""
    disk = rig.workers[0].folder / "worker"
    rig.stop(0)
    if not _mounted(rig, disk):
        rig.start_ready(0)
        return
    rig.start_ready(0)
    told = len(rig.workers[0].log.read_text(errors="replace"))
    filler = fill(disk)
    rig.kill(1)  # all partitions are the first one's now, and it has no room for them
    wait_until(lambda: "is full; make room" in rig.workers[0].log.read_text(errors="replace")[told:], 60, "it is said")
    rig.rest(3, 6)
    filler.unlink()
    rig.start(1)
    rig.note("the worker named the full disk, and went on with room")


def _mounted(rig: Rig, disk: Path) -> bool:
    try:
        mount(disk, STATE_MIB)
    except NoDisk as reason:
        rig.note(f"skipped: {reason}")
        return False
    rig.closing.append(lambda: unmount(disk))
    return True


def broker_disk(rig: Rig) -> None:
    """Kafka's disk is full: it ends itself, workers wait; with room it is started again."""
    filler = fill(rig.kafka.data_dir.parent)
    process = rig.kafka.process
    assert process is not None
    wait_until(lambda: process.poll() is not None, 60, "Kafka ends on a full disk")
    say(f"Kafka ended: {rig.kafka.last_error()}")
    if "the disk is full" not in rig.kafka.last_error():
        rig.wrong("the full disk isn't named", rig.kafka.last_error())
    rig.kill_broker()
    rig.rest(3, 6)
    filler.unlink()
    rig.kafka.start()
