"""Faults 20 to 22: local State, changelogs, the input topic and the group's offsets, taken away or changed by hand."""

import asyncio
import re
import shutil
from pathlib import Path

import aiokafka
import httpx
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.records_to_delete import RecordsToDelete
from aiokafka.errors import CommitFailedError
from aiokafka.protocol.admin import DeleteGroupsRequest
from aiokafka.structs import OffsetAndMetadata, TopicPartition

from tests.fault.suite.load import PARTITIONS
from tests.fault.suite.outcome import say
from tests.fault.suite.rig import SESSION_S, Rig
from tests.helpers import topics
from tests.helpers.processes import wait_until

__all__ = ["CHANGELOG", "both", "changelog", "cut", "delete_topic", "folders", "offsets", "recreated"]

CHANGELOG = "headrace-ingest-raw-changelog"
NON_EMPTY_GROUP = 68
"""Of Kafka's error codes."""


def _tables(rig: Rig, number: int) -> list[Path]:
    """Databases of a worker, by name."""
    return sorted(p for p in rig.workers[number].folder.rglob("*.db") if p.is_dir())


def _stop_all(rig: Rig) -> None:
    for number in range(len(rig.workers)):
        rig.stop(number)


def _start_all(rig: Rig) -> None:
    for number in range(len(rig.workers)):
        rig.start_ready(number)
    rig.rest(2)


def folders(rig: Rig) -> None:
    """Lost; then those of another worker and of another partition; then with files overwritten."""
    rig.stop(0)
    shutil.rmtree(rig.workers[0].folder / "worker")
    rig.start_ready(0)
    rig.rest(2)
    _stop_all(rig)
    mine, its = (rig.workers[n].folder / "worker" for n in (0, 1))
    swap = mine.with_name("swap")
    mine.rename(swap)
    its.rename(mine)
    swap.rename(its)
    first, second, *_ = _tables(rig, 0)
    aside = first.with_name("swap")
    first.rename(aside)
    second.rename(first)
    aside.rename(second)
    _start_all(rig)
    _stop_all(rig)
    damaged = 0
    for table in _tables(rig, 1):
        for file in [*table.glob("*.sst"), *table.glob("MANIFEST-*"), *table.glob("*.log")]:
            size = file.stat().st_size
            if size > 64:
                with file.open("r+b") as out:
                    out.seek(size // 2)
                    out.write(rig.rnd.randbytes(min(32, size - size // 2)))
                damaged += 1
    say(f"{damaged} files damaged")
    assert damaged
    _start_all(rig)


def changelog(rig: Rig) -> None:
    """The topic is deleted while the worker is down; what it has locally is all there is."""
    rig.stop(0)
    asyncio.run(delete_topic(rig, CHANGELOG))
    rig.start_ready(0)


def both(rig: Rig) -> None:
    """Nothing is left of State: every partition must stop and say so, and nothing more may come out."""
    rig.load.end()
    rig.rest(4)  # what took the hop by its id comes out as well
    rig.stop(0)
    shutil.rmtree(rig.workers[0].folder / "worker")
    asyncio.run(delete_topic(rig, CHANGELOG))
    _must_stop(rig, "its changelog was lost")


def recreated(rig: Rig) -> None:
    """The input is deleted and made again, with other events: they must not be taken for the old ones."""
    rig.load.end()
    rig.rest(4)  # what took the hop by its id comes out as well
    rig.stop(0)
    asyncio.run(delete_topic(rig, "raw"))
    asyncio.run(topics.create(rig.bootstrap, f"{rig.prefix}raw", PARTITIONS))
    pairs = rig.load.stream.take(500)
    asyncio.run(topics.produce(rig.bootstrap, f"{rig.prefix}raw", pairs))
    _must_stop(rig, "recreated")


def _must_stop(rig: Rig, words: str) -> None:
    rig.expects_stop = words
    outputs = ("clean-events", "dead-letter", "sink-noise", "agg-events")
    before = {name: len(rig.read(name)) for name in outputs}
    told = len(rig.logs())
    rig.start(0)

    def stopped() -> set[str]:
        said = rig.logs()[told:]
        return set(re.findall(rf"partition (\d) of {rig.prefix}raw is STOPPED[^\n]*{words}", said))

    wait_until(lambda: len(stopped()) == PARTITIONS, 60, f"all partitions stop and say: {words}")
    rig.rest(3)
    health = httpx.get(f"{rig.workers[0].url}/healthz", timeout=10)
    if health.status_code != 503 or words not in health.text:
        rig.wrong("health says nothing of stopped partitions", health.text)
    after = {name: len(rig.read(name)) for name in outputs}
    if after != before:
        rig.wrong("outputs after the stop", (before, after))
    rig.stop(0)
    rig.note(f"every partition stopped, /healthz says so, nothing more came out: {words}")


def cut(rig: Rig) -> None:
    """Retention takes records that nobody has read: the loss is counted and told, and work goes on behind it."""
    rig.rest(3)
    rig.stop(0)
    rig.rest(3)  # records that are never read
    held = rig.read("raw")
    group = f"{rig.prefix}headrace"
    stood = asyncio.run(topics.committed(rig.bootstrap, group, f"{rig.prefix}raw", PARTITIONS))
    ends = {p: stood[p] + 100 for p in range(PARTITIONS)}
    asyncio.run(_delete_records(rig, ends))
    rig.held = held
    rig.gone = {(p, offset) for p in range(PARTITIONS) for offset in range(stood[p], ends[p])}
    rig.start_ready(0)

    def counted() -> float:
        page = httpx.get(f"{rig.workers[0].url}/metrics", timeout=10).text
        found = re.findall(r"^headrace_records_lost_total{.*ingest-raw.*} (\S+)$", page, re.MULTILINE)
        return sum(float(each) for each in found)

    wait_until(lambda: counted() == len(rig.gone), 30, "the loss is counted")
    rig.note(f"{len(rig.gone)} records were removed before they were read: counted as lost, the rest exact")


def offsets(rig: Rig) -> None:
    """Somebody sets the group's offsets back and ahead, and deletes the group: State's marker decides."""
    rig.offsets_touched = True
    _stop_all(rig)
    asyncio.run(_commit(rig, dict.fromkeys(range(PARTITIONS), 0)))
    _start_all(rig)
    _stop_all(rig)
    asyncio.run(_commit(rig, asyncio.run(topics.end_offsets(rig.bootstrap, f"{rig.prefix}raw", PARTITIONS))))
    _start_all(rig)
    _stop_all(rig)
    asyncio.run(_delete_group(rig))
    _start_all(rig)


async def delete_topic(rig: Rig, name: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=rig.bootstrap)
    await admin.start()
    try:
        await admin.delete_topics([rig.prefix + name])
        async with asyncio.timeout(20):
            while rig.prefix + name in await admin.list_topics():
                await asyncio.sleep(0.05)
    finally:
        await admin.close()


async def _delete_records(rig: Rig, before: dict[int, int]) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=rig.bootstrap)
    await admin.start()
    try:
        wanted = {
            TopicPartition(f"{rig.prefix}raw", p): RecordsToDelete(before_offset=end) for p, end in before.items()
        }
        await admin.delete_records(wanted)
    finally:
        await admin.close()


async def _delete_group(rig: Rig) -> None:
    group = f"{rig.prefix}headrace"
    admin = AIOKafkaAdminClient(bootstrap_servers=rig.bootstrap)
    await admin.start()
    try:
        node = await admin.find_coordinator(group)
        async with asyncio.timeout(3 * SESSION_S):  # a worker that ended before it was ready is a member until then
            while True:
                answer = await admin._send_request_to_node(node, DeleteGroupsRequest([group]))
                codes = [code for _, code in answer.results]
                if codes == [0]:
                    return
                assert codes == [NON_EMPTY_GROUP], answer
                await asyncio.sleep(0.5)
    finally:
        await admin.close()


async def _commit(rig: Rig, offsets: dict[int, int]) -> None:
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=rig.bootstrap, group_id=f"{rig.prefix}headrace", enable_auto_commit=False
    )
    await consumer.start()
    try:
        tps = {TopicPartition(f"{rig.prefix}raw", p): OffsetAndMetadata(offset, "") for p, offset in offsets.items()}
        consumer.assign(list(tps))
        async with asyncio.timeout(3 * SESSION_S):
            while True:
                try:
                    await consumer.commit(tps)
                except CommitFailedError:  # the group has members: those that ended before they were ready, for a while
                    await asyncio.sleep(0.5)
                else:
                    return
    finally:
        await consumer.stop()
