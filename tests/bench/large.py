"""Tables of ids that were written to the changelog: restore, memory, disk, and CPU per event, sizes in turn (A B A B)."""

import asyncio
import re
import shutil
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import psutil
from tqdm import tqdm

from app.broker.kafka import EmbeddedKafka
from app.settings import Settings
from app.waiting import poll
from app.web.numbers import Numbers, parse
from tests.bench import ingest, outputs, packed, path, table
from tests.bench.contestants import Job, Launch, ours
from tests.bench.data import BEGUN_MS, EVENTS_PER_S, Expected, placed, preload
from tests.bench.ids import SMALL_SEGMENTS, WARM
from tests.bench.ingest import Say
from tests.bench.launched import Launched, launched
from tests.bench.meter import Meter, at_rest

__all__ = ["MORE", "Setup", "run"]

STATE = "ingest-raw"
KNOWN = 10
"""One event in so many of a probe is in the table."""
RESTORE_S = 3600.0
SETTLE_S = 600.0
"""Restored ids are compacted, and old ones removed, beside the work; a probe begins when that is over."""
COUNTED_S = 10.0
OLD_ASKED = 3
"""Old ids of each partition that must be gone."""
CLEANER_LATER = {"log.cleaner.backoff.ms": "3600000"}
"""All keys are different: the broker would copy the whole changelog to no end."""
RESTORED = re.compile(r"restored (\d+) rows from (\d+) changelog records in ([\d.]+) s")
MORE = ("ids", "partitions", "disk_mb", "restore_s", "entries_per_s", "rss_mb", "restore_peak_mb", "known", "cpu_ratio")
MB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a run is given."""

    probe: int
    rounds: int = 1
    partitions: int = outputs.PARTITIONS
    whole: bool = False
    """All stages with their defaults, windows on; else ingest alone."""
    batch: int = packed.BATCH
    settings: tuple[str, ...] = ()
    """`SECTION__FIELD=value` of the worker."""


def run(sizes: list[int], setup: Setup, say: Say) -> list[dict[str, Any]]:
    """A row for each table size, in rising order."""
    with tempfile.TemporaryDirectory(prefix="bench-") as temporary:
        folder = Path(temporary)
        kafka = EmbeddedKafka(folder / "kafka", properties={**ingest.BROKER, **SMALL_SEGMENTS, **CLEANER_LATER})
        kafka.start()
        try:
            tables = [Filled(folder / f"ids-{size}", kafka.bootstrap, size, setup, say) for size in sorted(sizes)]
            for number in range(setup.rounds):
                for each in tables:
                    each.round(number)
        finally:
            kafka.stop()
    rows = [each.row() for each in tables]
    for row in rows:
        row["cpu_ratio"] = round(row["cpu_us_per_event"] / max(0.01, rows[0]["cpu_us_per_event"]), 3)
    return rows


class Filled:
    """One table, and the worker that serves it."""

    def __init__(self, folder: Path, bootstrap: str, ids: int, setup: Setup, say: Say) -> None:
        folder.mkdir()
        self.folder, self.bootstrap, self.setup, self.say = folder, bootstrap, setup, say
        self.prefix, self.topic = f"{folder.name}-", f"{folder.name}-input"
        self.rounds: list[dict[str, Any]] = []
        self.appended = 0
        self.table = packed.IdTable(
            state=STATE, partitions=setup.partitions, ids=ids, batch=setup.batch, now_ms=int(time.time() * 1000)
        )
        self.launch = self._launch()
        self._begin()
        self._fill()

    @property
    def results(self) -> list[str]:
        return [self.prefix + name for name in (path.ALL_OUTPUTS if self.setup.whole else outputs.OUTPUTS)]

    def _launch(self) -> Launch:
        job = Job(folder=self.folder, bootstrap=self.bootstrap, topic=self.topic, prefix=self.prefix)
        given = dict(each.partition("=")[::2] for each in self.setup.settings)
        more = {f"HEADRACE_{name}": value for name, value in given.items()}
        more["HEADRACE_KAFKA__PARTITIONS"] = str(self.setup.partitions)
        if not self.setup.whole:
            launch = ours(job, self.say)
            return replace(launch, env={**launch.env, **more})
        launch = path.path_job(job, path.Setup(partitions=self.setup.partitions))
        kept = ("HEADRACE_RESULTS__KEEP_S", "HEADRACE_REVIEWS__KEEP_S")
        return replace(launch, env={name: value for name, value in launch.env.items() if name not in kept} | more)

    def _begin(self) -> None:
        """A worker makes the State: one event of each partition."""
        partitions = self.setup.partitions
        asyncio.run(outputs.make(self.bootstrap, [self.topic], stamped=False, partitions=partitions))
        asyncio.run(outputs.make(self.bootstrap, self.results, stamped=True, partitions=partitions))
        users = {place: user for user, (_, place) in enumerate(placed(partitions))}
        events = [(users[place], table.single(f"first-{place}")) for place in range(partitions)]
        asyncio.run(table.append(self.bootstrap, self.topic, events, partitions))
        self.appended = partitions
        self._first_start()
        for each in self.folder.iterdir():
            if each.is_dir():
                shutil.rmtree(each)

    def _first_start(self) -> None:
        """A slow broker may take longer for a hundred new topics than a worker waits; its next start finds them."""
        for left in (1, 0):
            with launched([(self.launch, self.log)]) as (running, _):
                stuck = self._stuck(running)
                if not stuck:
                    return
                if not left:
                    raise RuntimeError(f"{stuck}\n{running[0].complaints()}")

    def _fill(self) -> None:
        settings = Settings.model_validate(
            {"kafka": {"bootstrap_servers": self.bootstrap, "topic_prefix": self.prefix}}
        )
        begun = time.monotonic()
        with tqdm(total=self.table.ids, desc=f"{self.table.ids} ids", unit="id", disable=None, leave=False) as bar:
            asyncio.run(packed.write(self.table, settings, bar.update))
        self.say(f"{self.table.ids} ids written to the changelog in {time.monotonic() - begun:.0f} s")

    @property
    def log(self) -> Path:
        return self.folder / "process.log"

    def _stuck(self, running: list[Launched], note: outputs.Bar = outputs.no_bar) -> str:
        """Waits until all that was appended is worked off; why it isn't."""
        return asyncio.run(
            outputs.await_progress(self.bootstrap, self.launch.group, self.topic, self.appended, running[0].alive, note)
        )

    # -- a round -------------------------------------------------------------------------------------------------------

    def round(self, number: int) -> None:
        """Starts the worker, the first time on an empty folder; gives it a probe when it is ready and has settled."""
        setup = self.setup
        asyncio.run(table.forget(self.bootstrap, self.results, partitions=setup.partitions))
        known = self.table.known(setup.probe // KNOWN, number)
        times = self.log.read_text(encoding="utf-8", errors="replace").count(path.READY)
        with launched([(self.launch, self.log)]) as (running, meter):
            path.wait_ready(running, times + 1, RESTORE_S)
            worker = Worker(running[0], self.launch)
            row: dict[str, Any] = {} if number else {"restore_peak_mb": worker.peak_mb, **worker.restored()}
            worker.settle()
            row |= {"disk_mb": table.disk_mb(self.folder), "rss_mb": worker.rss_mb}
            before = worker.outcomes()
            expected = asyncio.run(
                preload(
                    self.bootstrap, self.topic, setup.probe, seed=self.table.ids + number, partitions=setup.partitions,
                    known=known, begun_ms=BEGUN_MS + number * setup.probe * 1000 // EVENTS_PER_S,
                )
            )  # fmt: skip
            warm_at = self._measure_from(running)
            row["rss_after_mb"] = worker.rss_mb
            wrong = worker.miscounted(expected, before)
            wrong += worker.wrongly_kept(self.table.old(OLD_ASKED))
        self._judge(row, expected, wrong, meter, running, warm_at)

    def _measure_from(self, running: list[Launched]) -> float:
        """Waits until the probe is worked off; gives when its first fourth was."""
        probe, done, warm_at = self.setup.probe, 0, 0.0

        def note(more: int) -> None:
            nonlocal done, warm_at
            done += more
            if done >= self.appended - probe + probe // WARM and not warm_at:
                warm_at = time.time()

        self.appended += probe
        if stuck := self._stuck(running, note):
            raise RuntimeError(f"{stuck}\n{running[0].complaints()}")
        return warm_at

    def _judge(
        self, row: dict[str, Any], expected: Expected, wrong: list[str], meter: Meter, running: list[Launched],
        warm_at: float,
    ) -> None:  # fmt: skip
        outcome = asyncio.run(
            outputs.judge(
                self.bootstrap, self.prefix, expected, results=self.setup.whole, partitions=self.setup.partitions
            )
        )
        outcome.wrong += wrong
        row |= ingest.measured(outcome, self.setup.probe, meter, running, warm_at)
        self.rounds.append(row)
        self.say(f"{self.table.ids} ids, round {len(self.rounds)}: {row}")
        if not row["right"]:
            self.say(running[0].complaints())

    def row(self) -> dict[str, Any]:
        """Medians over the rounds; of the restore, the first."""
        first = self.rounds[0]
        return {
            "name": "ours", "ids": self.table.ids, "partitions": self.setup.partitions, "events": self.setup.probe,
            "known": self.setup.probe // KNOWN,
            **{name: first[name] for name in ("restore_s", "entries_per_s", "restore_peak_mb")},
            **{name: median(r[name] for r in self.rounds) for name in ("events_per_s", "cpu_us_per_event", "rss_mb")},
            **{name: max(r[name] for r in self.rounds) for name in ("peak_rss_mb", "disk_mb", "rss_after_mb")},
            "right": all(r["right"] for r in self.rounds),
            "wrong": [what for r in self.rounds for what in r["wrong"]],
            "rounds": self.rounds,
        }  # fmt: skip


def _unlike(expected: Expected, grown: dict[str, float]) -> list[str]:
    """What the worker counted otherwise than it was given: duplicates of the table's ids among them."""
    copies = expected.events - len(expected.clean) - len(expected.noise) - expected.broken.total()
    found, other = grown.get("duplicate", 0), grown.get("conflict", 0)
    return [] if (found, other) == (copies, 0) else [f"{found:.0f} duplicates and {other:.0f} conflicts of {copies}"]


class Worker:
    """The worker as its web port and the kernel tell of it."""

    def __init__(self, running: Launched, launch: Launch) -> None:
        self.running = running
        self.url = f"http://127.0.0.1:{launch.env['HEADRACE_WEB__PORT']}"
        self._process = psutil.Process(running.process.pid)

    @property
    def rss_mb(self) -> float:
        return round(self._process.memory_info().rss / MB, 1)

    @property
    def peak_mb(self) -> float:
        """Since its start."""
        return next(
            round(int(line.split()[1]) / 1024, 1)
            for line in Path(f"/proc/{self._process.pid}/status").read_text(encoding="ascii").splitlines()
            if line.startswith("VmHWM:")
        )

    def restored(self) -> dict[str, float]:
        """The last restore."""
        rows, _, seconds = RESTORED.findall(self.running.said())[-1]
        return {"restore_s": float(seconds), "entries_per_s": round(int(rows) / float(seconds))}

    def settle(self) -> None:
        """Waits until it uses no CPU any more.

        Raises:
            RuntimeError: it goes on for ten minutes.
        """

        if not poll(lambda: at_rest(self._process), SETTLE_S):
            raise RuntimeError("the worker doesn't come to rest\n" + self.running.complaints())

    def outcomes(self) -> dict[str, float]:
        """How many events had which outcome at ingest."""
        page = httpx.get(f"{self.url}/metrics", timeout=30, trust_env=False).text
        return Numbers(parse(page)).by("headrace_outcomes_total", "outcome", stage=STATE)

    def miscounted(self, expected: Expected, before: dict[str, float]) -> list[str]:
        """What is otherwise than it was given; it counts a moment after the commit that shows."""

        def wrong() -> list[str]:
            now = self.outcomes()
            return _unlike(expected, {name: now[name] - before.get(name, 0) for name in now})

        poll(lambda: not wrong(), COUNTED_S, 0.2)
        return wrong()

    def wrongly_kept(self, old: list[str]) -> list[str]:
        """Ids older than the horizon that are still there."""
        with httpx.Client(base_url=self.url, timeout=30, trust_env=False) as http:
            there = [i for i in old if http.get(f"/tables/{STATE}/seen", params={"key": i}).json()["rows"]]
        return [f"{len(there)} of {len(old)} old ids weren't removed"] if there else []
