"""State that was lost, damaged, foreign or not written: what a real worker makes of it."""

import asyncio
import json
import re
import shutil
from collections import Counter
from pathlib import Path

import aiokafka
import httpx
import msgspec
import pytest
from aiokafka.admin import AIOKafkaAdminClient

from tests.conftest import Fleet
from tests.helpers import topics
from tests.helpers.processes import Worker, wait_until

pytestmark = pytest.mark.integration

CONFIG = """
tasks = []

[[sources]]
name = "raw"
topic = "{prefix}raw"
"""
EVENTS = 400
ROOT = Path(__file__).parents[2]


def events(first: int, count: int) -> list[tuple[bytes | None, bytes | None]]:
    return [
        (
            b"u%d" % (n % 13),
            json.dumps({"event_id": f"e{n}", "event_type": "order", "event_time": 1_790_000_000_000}).encode(),
        )
        for n in range(first, first + count)
    ]


class Scene:
    """One source, its changelog, and workers that can be started again on the same folder."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.prefix, self.bootstrap = fleet, fleet.prefix, fleet.bootstrap

    @property
    def changelog(self) -> str:
        return f"{self.prefix}headrace-ingest-raw-changelog"

    def worker(self, **env: str) -> Worker:
        return self.fleet.started(CONFIG.format(prefix=self.prefix), **env)

    def again(self, worker: Worker) -> None:
        worker.start()
        worker.wait_ready()

    async def produce(self, first: int, count: int) -> None:
        await topics.produce(self.bootstrap, f"{self.prefix}raw", events(first, count))

    async def settled(self) -> None:
        for _ in range(300):
            ends = await topics.end_offsets(self.bootstrap, f"{self.prefix}raw")
            stood = await topics.committed(self.bootstrap, f"{self.prefix}headrace", f"{self.prefix}raw")
            if all(stood.get(p, 0) == end for p, end in ends.items()):
                return
            await asyncio.sleep(0.1)
        raise AssertionError("input left")

    async def clean(self) -> Counter[str]:
        """How often each event came out."""
        records = await topics.read(self.bootstrap, f"{self.prefix}clean-events")
        return Counter(json.loads(r.value)["event_id"] for r in records)

    async def state(self) -> set[tuple[int, str]]:
        """Partition and id of everything that the changelog holds."""
        latest = {(r.partition, r.key): r.value for r in await topics.read(self.bootstrap, self.changelog)}
        return {
            (partition, bytes(row).decode())
            for (partition, key), value in latest.items()
            if key[:1] == b"S" and value is not None
            for row, _ in msgspec.msgpack.decode(value)
        }

    async def remake_changelog(self) -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        await admin.start()
        try:
            await admin.delete_topics([self.changelog])
            for _ in range(50):
                if self.changelog not in await admin.list_topics():
                    break
                await asyncio.sleep(0.1)
        finally:
            await admin.close()
        await topics.create(self.bootstrap, self.changelog, config={"cleanup.policy": "compact"})

    def folders(self, worker: Worker) -> dict[int, Path]:
        found = (worker.folder / "worker").glob("**/ingest-raw-*.db")
        return {int(re.findall(r"-(\d+)\.db", path.name)[0]): path for path in found}


@pytest.fixture
async def scene(fleet: Fleet) -> Scene:
    await topics.create(fleet.bootstrap, f"{fleet.prefix}raw")
    made = Scene(fleet)
    await made.produce(0, EVENTS)
    return made


async def once_each(scene: Scene, upto: int) -> None:
    """Every event came out once, though all of them were sent again."""
    await scene.produce(0, upto)
    await scene.settled()
    assert await scene.clean() == Counter(f"e{n}" for n in range(upto))


def restored(worker: Worker) -> list[tuple[int, int]]:
    """Rows and changelog records of each restore that had something to read."""
    found = re.findall(r"restored (\d+) rows from (\d+) changelog records", worker.log.read_text())
    return [(int(rows), int(records)) for rows, records in found]


async def test_a_lost_folder_is_rebuilt_and_a_warm_restart_reads_only_what_is_missing(scene: Scene) -> None:
    worker = scene.worker()
    for number in range(1, 5):
        await scene.settled()
        await scene.produce(EVENTS * number, EVENTS)
    await scene.settled()
    worker.stop()
    before = len(restored(worker))
    shutil.rmtree(worker.folder / "worker")
    scene.again(worker)
    assert restored(worker)[before:][0][0] >= EVENTS * 5
    worker.stop()
    had = len(restored(worker))
    scene.again(worker)
    (warm,) = restored(worker)[had:] or [(0, 0)]
    ends = await topics.end_offsets(scene.bootstrap, scene.changelog)
    assert warm[0] < 10, "rows that were in the folder were written again"  # partitions without input have no marker
    assert warm[1] < sum(ends.values()) / 2
    await once_each(scene, EVENTS * 5)


async def test_a_worker_says_when_it_is_ready(scene: Scene) -> None:
    worker = scene.worker()
    ready = wait_until(
        lambda: (r := httpx.get(f"{worker.url}/readyz", trust_env=False)).status_code == 200 and r.json(), 90, "ready"
    )
    assert ready == {"ready": True, "restoring": None, "starting": 0}
    assert "headrace_restored_rows_total" in httpx.get(f"{worker.url}/metrics", trust_env=False).text


@pytest.mark.parametrize("harm", ["manifest", "swapped", "bits"])
async def test_a_damaged_or_foreign_folder_is_set_aside_and_rebuilt(scene: Scene, harm: str) -> None:
    worker = scene.worker()
    await scene.settled()
    worker.stop()
    folders = scene.folders(worker)
    if harm == "manifest":
        next(folders[1].glob("MANIFEST*")).write_bytes(b"nothing of worth")
    elif harm == "bits":
        from app.delivery.database import Database

        database = Database(folders[1])
        database.flush()
        database.close()
        for file in folders[1].glob("*.sst"):
            content = bytearray(file.read_bytes())
            for place in range(len(content) // 2):
                content[place] ^= 0xFF
            file.write_bytes(content)
    else:
        spare = folders[1].with_name("spare")
        folders[0].rename(spare)
        folders[1].rename(folders[0])
        spare.rename(folders[1])
    scene.again(worker)
    await once_each(scene, EVENTS)
    assert "it is set aside as" in worker.log.read_text()
    assert list((worker.folder / "worker").glob("**/ingest-raw-1.db.aside-*"))


async def test_a_lost_changelog_is_written_anew_from_a_copy_that_matches(scene: Scene) -> None:
    worker = scene.worker()
    await scene.settled()
    worker.stop()
    before = await scene.state()
    await scene.remake_changelog()
    scene.again(worker)
    assert "written anew" in worker.log.read_text()
    assert await scene.state() == before
    await once_each(scene, EVENTS)
    worker.stop()
    shutil.rmtree(worker.folder / "worker")  # what was written is enough to rebuild from
    scene.again(worker)
    await scene.produce(EVENTS, 10)
    await once_each(scene, EVENTS + 10)


async def test_both_lost_stops_the_partition_and_says_so(scene: Scene) -> None:
    worker = scene.worker()
    await scene.settled()
    worker.stop()
    await scene.remake_changelog()
    shutil.rmtree(worker.folder / "worker")
    scene.again(worker)
    await scene.produce(0, 50)
    wait_until(lambda: worker.log.read_text().count("State holds nothing: its changelog was lost") >= 4, 90, "stopped")
    assert await scene.clean() == Counter(f"e{n}" for n in range(EVENTS))


async def test_a_copy_of_another_prefix_is_not_taken_for_a_lost_changelog(scene: Scene) -> None:
    worker = scene.worker()
    await scene.settled()
    worker.stop()
    other = f"{scene.prefix}other-"
    worker.env["HEADRACE_KAFKA__TOPIC_PREFIX"] = other
    scene.again(worker)
    worker.stop()
    # The folder is named by the group, so a copy comes here only when somebody moves it.
    worker.env["HEADRACE_KAFKA__TOPIC_PREFIX"] = scene.prefix
    assert "written anew" not in worker.log.read_text()


async def test_rows_of_another_layout_are_refused_with_what_to_do(scene: Scene) -> None:
    worker = scene.worker()
    await scene.settled()
    worker.stop()
    kinds = msgspec.msgpack.encode({"seen": [b"s", ["array", None, [["offset", 1, ["str"]]]]]})
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=scene.bootstrap)
    await producer.start()
    await producer.send_and_wait(scene.changelog, kinds, b"\x00kinds", partition=0)
    await producer.stop()
    worker.start()
    wait_until(lambda: worker.process is not None and worker.process.poll() is not None, 60, "the worker ends")
    said = worker.log.read_text()
    assert "State ingest-raw can't be read: map seen" in said
    assert "headrace tables reset ingest-raw" in said


async def test_a_standby_takes_over_with_exact_state_and_reads_only_the_tail(scene: Scene) -> None:
    env = {"HEADRACE_KAFKA__STANDBY_REPLICAS": "1", "HEADRACE_KAFKA__SESSION_TIMEOUT_S": "6"}
    one, two = scene.worker(**env), scene.worker(**env)
    await scene.settled()
    for number in range(1, 5):  # standbys follow while the owners write
        await scene.produce(EVENTS * number, EVENTS)
        await scene.settled()
    total = EVENTS * 5
    for worker in (one, two):
        wait_until(lambda w=worker: "standing by for" in w.log.read_text(), 60, "standbys")

    def behind() -> float:
        text = httpx.get(f"{two.url}/metrics", trust_env=False).text
        return float(re.findall(r"^headrace_standby_lag_records (\S+)", text, re.MULTILINE)[0])

    wait_until(lambda: behind() == 0, 90, "the standby has all")
    rows = len(restored(two))
    one.kill()
    await scene.produce(total, 40)
    await once_each(scene, total + 40)
    taken = restored(two)[rows:]
    assert sum(r for r, _ in taken) < EVENTS, taken
    # What the standby holds is what the changelog says, with nothing missing in the middle.
    expected = await scene.state()
    two.stop()
    from app.delivery.database import Database

    held: set[tuple[int, str]] = set()
    for partition, folder in scene.folders(two).items():
        database = Database(folder)
        held |= {(partition, key[1:].decode()) for key, _ in database.scan(b"s")}
        database.close()
    assert held == expected


async def test_a_worker_killed_and_started_again_does_not_wait_for_its_session(scene: Scene) -> None:
    worker = scene.worker(HEADRACE_KAFKA__SESSION_TIMEOUT_S="39")
    await scene.settled()
    worker.kill()
    await scene.produce(EVENTS, 20)
    scene.again(worker)
    assert "is out of the group" in worker.log.read_text()
    await once_each(scene, EVENTS + 20)
