"""How fast a worker is back: with its state on disk, with none, and as a standby that takes over."""

import asyncio
import itertools
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from tqdm import tqdm

from app.broker.kafka import EmbeddedKafka
from app.waiting import poll
from tests.bench import ingest, latency, outputs, path, table
from tests.bench.contestants import Job, Launch
from tests.bench.ingest import Say
from tests.bench.launched import Launched, launched
from tests.bench.meter import at_rest

__all__ = ["MORE", "run"]

TOPIC, PREFIX = "restore-input", "restore-"
MORE = ("ids", "warm_result_s", "warm_ready_s", "cold_ready_s", "cold_result_s", "entries_per_s", "takeover_s")
SESSION_S = 6.0
"""Of the takeover run; the shortest that a broker allows by default."""
RATE = 200
BEFORE_S, AFTER_S = 8.0, 30.0
RESULT_S = 120.0


def run(ids: int, say: Say) -> list[dict[str, Any]]:
    """One row."""
    with tempfile.TemporaryDirectory(prefix="bench-") as temporary:
        folder = Path(temporary)
        kafka = EmbeddedKafka(folder / "kafka", properties=ingest.BROKER)
        kafka.start()
        try:
            asyncio.run(outputs.make(kafka.bootstrap, [TOPIC, *_names()], stamped=True))
            row, appended = _restarts(folder, kafka.bootstrap, ids, say)
            row |= _takeover(folder, kafka.bootstrap, appended, say)
        finally:
            kafka.stop()
    row["right"] = not row["wrong"]
    return [{"name": "ours", "ids": ids, "events": ids, **row, "rounds": [row]}]


def _names() -> list[str]:
    return [PREFIX + name for name in path.ALL_OUTPUTS]


def _launch(place: Path, bootstrap: str, **more: str) -> Launch:
    place.mkdir(exist_ok=True)
    job = Job(folder=place, bootstrap=bootstrap, topic=TOPIC, prefix=PREFIX)
    return path.path_job(job, path.Setup(), **more)


def _restarts(folder: Path, bootstrap: str, ids: int, say: Say) -> tuple[dict[str, Any], int]:
    place = folder / "w0"
    launch = _launch(place, bootstrap)
    log = place / "process.log"
    with (
        launched([(launch, log)]) as (running, _),
        tqdm(total=ids, desc="ids", unit="id", disable=None, leave=False) as bar,
    ):
        stuck = asyncio.run(table.fill(bootstrap, PREFIX, TOPIC, ids, 0, running, 1, bar.update))
    if stuck:
        raise RuntimeError(f"filling the table: {stuck}\n{running[0].complaints()}")
    say(f"{ids} ids fed; state on disk {table.disk_mb(place)} MB")
    row: dict[str, Any] = {"wrong": [], "disk_mb": table.disk_mb(place)}
    for number, kind in enumerate(("warm", "cold")):
        if kind == "cold":
            for path_ in place.iterdir():
                if path_.is_dir():
                    shutil.rmtree(path_)
        asyncio.run(table.append(bootstrap, TOPIC, [(number, table.single(f"one-{number}"))]))
        ready, result, peak, cpu = _start(launch, log, bootstrap, folder / f"seen-{kind}.txt", number)
        row |= {f"{kind}_ready_s": round(ready, 2), f"{kind}_result_s": round(result, 2)}
        row["peak_rss_mb"] = round(max(peak, row.get("peak_rss_mb", 0.0)), 1)
        if kind == "cold":
            row["cpu_us_per_event"] = round(cpu / ids * 1e6, 2)
        say(f"{kind}: ready after {ready:.2f} s, first result visible after {result:.2f} s")
    seconds = max(0.01, row["cold_ready_s"] - row["warm_ready_s"])
    row["entries_per_s"] = row["events_per_s"] = round(ids / seconds)
    say(f"restored {row['entries_per_s']} entries/s ({ids} in {seconds:.2f} s more than with state on disk)")
    return row, ids + 2


def _start(
    launch: Launch, log: Path, bootstrap: str, seen: Path, results_before: int
) -> tuple[float, float, float, float]:
    """Seconds from a worker's start until it is ready, and until one more result is visible; peak memory, CPU."""
    said = log.read_text(encoding="utf-8", errors="replace").count(path.READY)
    with latency.Results(bootstrap, PREFIX + outputs.RESULTS, outputs.PARTITIONS, seen) as results:
        begun = time.time()
        with launched([(launch, log)]) as (running, meter):
            ready = path.wait_ready(running, said + 1)

            def more() -> bool:
                return sum(last - first + 1 for _, first, last, _ in results.lines()) > results_before

            poll(lambda: more() or not running[0].alive(), RESULT_S, 0.02)
            if not more():
                raise RuntimeError(f"no result after the restart\n{running[0].complaints()}")
            visible = max(at for *_, at in results.lines())
    return ready - begun, visible - begun, meter.largest_rss_mb, meter.cpu_between(begun, ready)


def _takeover(folder: Path, bootstrap: str, appended: int, say: Say) -> dict[str, Any]:
    """Two workers with a standby copy each; one is killed under a light load."""
    more = {"HEADRACE_KAFKA__STANDBY_REPLICAS": "1", "HEADRACE_KAFKA__SESSION_TIMEOUT_S": str(SESSION_S)}
    places = [folder / "w0", folder / "w1"]
    launches = [(_launch(place, bootstrap, **more), place / "process.log") for place in places]
    asyncio.run(table.forget(bootstrap, [PREFIX + outputs.RESULTS]))
    seen = folder / "seen-takeover.txt"
    with (
        launched(launches) as (running, _),
        latency.Results(bootstrap, PREFIX + outputs.RESULTS, outputs.PARTITIONS, seen) as results,
    ):
        _wait_caught_up(running)
        killed_at, fed = asyncio.run(_kill_under_load(bootstrap, running[0]))
        stuck = asyncio.run(
            outputs.await_progress(bootstrap, f"{PREFIX}headrace", TOPIC, appended + fed, running[1].alive)
        )
        results.wait_quiet()
        complaints = running[1].complaints()
    if stuck:
        return {"takeover_s": None, "wrong": [f"takeover: {stuck}; {complaints}"]}
    silences = asyncio.run(_silences(bootstrap, results, killed_at))
    takeover = round(max(silences.values()) - SESSION_S, 2)
    say(f"killed a worker with a standby: every partition gives results again {takeover} s after the session timeout")
    return {"takeover_s": takeover, "silences_s": {str(p): round(s, 2) for p, s in silences.items()}}


def _wait_caught_up(running: list[Launched]) -> None:
    """Both are ready, own partitions and don't use the CPU any more."""
    path.wait_ready(running)
    watched = [psutil.Process(each.process.pid) for each in running]
    if not poll(lambda: at_rest(*watched), RESULT_S):
        raise RuntimeError("the standby doesn't catch up")


async def _kill_under_load(bootstrap: str, victim: Launched) -> tuple[float, int]:
    """Feeds a light load throughout; gives the moment of the kill and how many events were fed."""

    async def kill() -> float:
        await asyncio.sleep(BEFORE_S)
        victim.kill()
        return time.time()

    feeding = latency.feed(bootstrap, TOPIC, RATE, BEFORE_S + SESSION_S + AFTER_S, outputs.PARTITIONS, seed=11)
    killed_at, expected = await asyncio.gather(kill(), feeding)
    return killed_at, expected.events


async def _silences(bootstrap: str, results: latency.Results, killed_at: float) -> dict[int, float]:
    """By input partition: from the kill to the end of the longest pause in visible results after it."""
    seen = results.seen()
    times: dict[int, list[float]] = {}
    for place, partition in await latency.sources(bootstrap, PREFIX + outputs.RESULTS, outputs.PARTITIONS):
        if place in seen:
            times.setdefault(partition, []).append(seen[place])
    found = {}
    for partition, at in times.items():
        after = sorted(t for t in at if t > killed_at)
        pauses = [(b - a, b) for a, b in itertools.pairwise([killed_at, *after])]
        found[partition] = max(pauses)[1] - killed_at
    return found
