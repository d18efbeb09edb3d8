"""`headrace tables export | import | reset | repartition` against real workers and their changelogs."""

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import Fleet
from tests.helpers import topics
from tests.helpers.processes import Worker
from tests.integration.test_restore import CONFIG, ROOT, Scene, events

pytestmark = pytest.mark.integration

EVENTS = 400


def begun(worker: Worker, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "app", "tables", *arguments],
        env=worker.env, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip


async def command(worker: Worker, *arguments: str) -> tuple[int, str]:
    process = begun(worker, *arguments)
    said, _ = await asyncio.to_thread(process.communicate, timeout=100)
    return process.returncode, said


async def done(worker: Worker, *arguments: str) -> str:
    status, said = await command(worker, *arguments)
    assert status == 0, said
    return said


@pytest.fixture
async def scene(fleet: Fleet) -> Scene:
    await topics.create(fleet.bootstrap, f"{fleet.prefix}raw")
    made = Scene(fleet)
    await made.produce(0, EVENTS)
    return made


async def test_reset_forgets_ids_and_an_import_brings_them_back(scene: Scene, tmp_path: Path) -> None:
    worker = scene.worker()
    await scene.settled()
    file = tmp_path / "seen.jsonl"
    await done(worker, "export", "ingest-raw", str(file), "--map", "seen")  # while it runs
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert {line["key"] for line in lines} == {f"e{n}" for n in range(EVENTS)}
    status, said = await command(worker, "reset", "ingest-raw", "--yes")
    assert status == 1
    assert "are alive" in said
    worker.stop()
    await done(worker, "reset", "ingest-raw", "--yes")
    assert await scene.state() == set()
    await done(worker, "import", "ingest-raw", str(file))
    assert {key for _, key in await scene.state()} == {f"e{n}" for n in range(EVENTS)}
    scene.again(worker)
    await scene.produce(0, EVENTS + 10)
    await scene.settled()
    assert await scene.clean() == Counter(f"e{n}" for n in range(EVENTS + 10))


async def test_after_a_reset_input_goes_on_where_it_stood_and_old_ids_are_new(scene: Scene) -> None:
    worker = scene.worker()
    await scene.settled()
    worker.stop()
    await done(worker, "reset", "ingest-raw", "--yes")
    scene.again(worker)
    await scene.produce(0, 10)
    await scene.settled()
    out = await scene.clean()
    assert out == Counter({f"e{n}": 2 if n < 10 else 1 for n in range(EVENTS)})


async def test_an_import_of_something_else_changes_nothing(scene: Scene, tmp_path: Path) -> None:
    worker = scene.worker()
    await scene.settled()
    worker.stop()
    before = await scene.state()
    file = tmp_path / "bad.jsonl"
    good = {"map": "seen", "partition": 0, "key": "new", "value": [1, 2, 3, "rule", "x"], "bucket": 5}
    file.write_text(json.dumps(good) + "\n" + json.dumps({**good, "value": "text"}) + "\n")
    status, said = await command(worker, "import", "ingest-raw", str(file))
    assert status == 1
    assert "line 2" in said
    assert await scene.state() == before


class TwoToSix:
    """A source of two partitions that gets six, in the middle of its stream."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.scene = fleet, Scene(fleet)

    async def begin(self) -> Worker:
        await topics.create(self.fleet.bootstrap, f"{self.fleet.prefix}raw", 2)
        await self.scene.produce(0, EVENTS)
        worker = self.fleet.started(CONFIG.format(prefix=self.fleet.prefix), HEADRACE_KAFKA__PARTITIONS="2")
        await self.settled(2)
        return worker

    async def settled(self, count: int) -> None:
        raw = f"{self.fleet.prefix}raw"
        for _ in range(300):
            ends = await topics.end_offsets(self.fleet.bootstrap, raw, count)
            stood = await topics.committed(self.fleet.bootstrap, f"{self.fleet.prefix}headrace", raw, count)
            if all(stood.get(p, 0) == end for p, end in ends.items()):
                return
            await asyncio.sleep(0.1)
        raise AssertionError("input left")

    async def goes_on(self, worker: Worker) -> None:
        """Every event so far again, and new ones, by key in six partitions: each came out once."""
        worker.env["HEADRACE_KAFKA__PARTITIONS"] = "6"
        self.scene.again(worker)
        await topics.produce(self.fleet.bootstrap, f"{self.fleet.prefix}raw", events(0, EVENTS * 2))
        await self.settled(6)
        ends = await topics.end_offsets(self.fleet.bootstrap, f"{self.fleet.prefix}raw", 6)
        assert sum(1 for p in range(2, 6) if ends[p]) >= 2, "no key went to a new partition"
        records = await topics.read(self.fleet.bootstrap, f"{self.fleet.prefix}clean-events", 6)
        assert Counter(json.loads(r.value)["event_id"] for r in records) == Counter(f"e{n}" for n in range(EVENTS * 2))


async def test_repartition_in_the_middle_of_a_stream_finds_all_duplicates(fleet: Fleet) -> None:
    two = TwoToSix(fleet)
    worker = await two.begin()
    status, said = await command(worker, "repartition", "6", "--yes")
    assert status == 1
    assert "are alive" in said
    worker.stop()
    status, said = await command(worker, "repartition", "5", "--yes")
    assert status == 1
    assert "isn't a multiple" in said
    await done(worker, "repartition", "6", "--yes")
    await done(worker, "repartition", "6", "--yes")  # nothing is left to do
    await two.goes_on(worker)


async def test_repartition_refuses_while_input_is_left(fleet: Fleet) -> None:
    two = TwoToSix(fleet)
    worker = await two.begin()
    worker.stop()
    await two.scene.produce(EVENTS, 5)
    status, said = await command(worker, "repartition", "6", "--yes")
    assert status == 1
    assert "hasn't taken" in said
    two.scene.again(worker)  # nothing was changed
    await two.settled(2)


async def test_a_repartition_that_was_killed_keeps_workers_out_and_is_run_again(fleet: Fleet) -> None:
    two = TwoToSix(fleet)
    worker = await two.begin()
    worker.stop()
    changelog = f"{fleet.prefix}headrace-ingest-raw-changelog"
    process = begun(worker, "repartition", "6", "--yes")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        records = await topics.read(fleet.bootstrap, changelog, 2)
        if any(r.key == b"\x00repartition" for r in records):
            process.send_signal(signal.SIGKILL)
            break
    assert process.wait(60) == -signal.SIGKILL, "it ended before it could be killed"
    assert process.stdout is not None
    process.stdout.close()
    await topics.end_offsets(fleet.bootstrap, changelog, 2)
    worker.start()
    assert worker.process is not None
    assert await asyncio.to_thread(worker.process.wait, 60) != 0
    said = worker.log.read_text()
    assert "begun and not finished" in said or "partitions were added" in said
    await done(worker, "repartition", "6", "--yes")
    await two.goes_on(worker)
