"""What a fault run breaks: a model server, workers, a load and a watch around a broker.

A fault is a function of a `Rig`. It breaks something while events flow, and returns when it has put it right again.
`tests.fault.suite.run` runs it.
"""

import asyncio
import os
import random
import signal
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx

from app import rights
from app.broker.kafka import EmbeddedKafka
from app.crash import VARIABLE
from app.settings import Settings, load
from tests.fault.suite.load import CONFIG, PARTITIONS, Load
from tests.fault.suite.outcome import Outcome, last_words, say
from tests.fault.suite.truth import Place
from tests.fault.suite.watch import Level, Watch, level_of
from tests.helpers import topics
from tests.helpers.model_faults import Fault
from tests.helpers.processes import StubProcess, Worker, rest, wait_until
from tests.helpers.proxy import KafkaProxy
from tests.helpers.secure import SecureKafka

__all__ = ["BATCH", "CONCURRENCY", "SESSION_S", "Rig"]

SESSION_S = 6
"""The least that the broker allows."""
STOP_S = 15.0
STEADY_RESULTS = 150
CONCURRENCY, BATCH = 4, 20
CRASH_ONE_IN = 1500
"""Of the passages of any crash point, in a soak: a worker passes some hundred a second."""


class Rig:
    """Everything around one run.

    Args:
        kafka: a running broker; faults may kill, pause and start it.
        folder: of this run alone.
        name: of the fault; makes the topic prefix.
        seed: of the load and the schedule.
        seconds: how long the load lasts at least.
        workers: how many are started.
        rate: events a second.
        command: another program than the product's own, for builds with something wrong.
        env: more settings of the workers.
        stub: options of the model server.
        kills: how many SIGKILLs, for faults that are nothing else.
        brief: shorter pauses and fewer repeats, for a pass over all faults.
        proxied: numbers of the workers that reach the broker through a proxy.
    """

    def __init__(
        self, kafka: EmbeddedKafka, folder: Path, name: str, seed: int, seconds: float, *, workers: int = 2,
        rate: int = 250, command: tuple[str, ...] = (), env: dict[str, str] | None = None,
        stub: dict[str, Any] | None = None, proxied: list[int] | None = None, kills: int = 30, brief: bool = False,
    ) -> None:  # fmt: skip
        self.kafka, self.folder, self.seed, self.seconds = kafka, folder, seed, seconds
        self.prefix, self.rate = f"f{name}-{seed}-", rate
        self.bootstrap = kafka.internal if isinstance(kafka, SecureKafka) else kafka.bootstrap
        """Where the harness's own clients connect, which nobody refuses."""
        self.rnd = random.Random(seed)
        folder.mkdir(parents=True)
        config = folder / "headrace.toml"
        config.write_text(CONFIG.format(prefix=self.prefix), encoding="utf-8")
        self.stub = StubProcess(**({"latency_ms": 40} | (stub or {})))
        self.env = {
            "HEADRACE_KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap, "HEADRACE_KAFKA__TOPIC_PREFIX": self.prefix,
            "HEADRACE_KAFKA__PARTITIONS": str(PARTITIONS),
            "HEADRACE_CONFIG": str(config), "HEADRACE_KAFKA__SESSION_TIMEOUT_S": str(SESSION_S),
            "HEADRACE_DELIVERY__BATCH_RECORDS": "200", "HEADRACE_LIGHT__BATCH": "4",
            "HEADRACE_LLM__BASE_URL": f"http://127.0.0.1:{self.stub.port}/v1", "HEADRACE_LLM__MODEL": "stub",
            "HEADRACE_LLM__TIMEOUT_S": "3", "HEADRACE_LLM__CONCURRENCY": str(CONCURRENCY),
            "HEADRACE_LLM__BATCH_ITEMS": str(BATCH), "HEADRACE_LLM__BATCH_WAIT_MS": "200",
            "HEADRACE_LLM__BREAKER__OPEN_S": "1", "HEADRACE_CLASSIFY__RETRY_S": "1", **(env or {}),
        }  # fmt: skip
        if isinstance(kafka, SecureKafka):
            self.env |= kafka.environment("worker")
            asyncio.run(kafka.give("worker", *rights.acls(self.settings(config), "worker")))
        self.command = command
        self.workers = [Worker(folder / f"w{n}", dict(self.env), command) for n in range(workers)]
        self.proxy = KafkaProxy(kafka.port)
        self._proxied = bool(proxied)
        if proxied:
            self.proxy.__enter__()
        for number in proxied or ():
            self.workers[number].env["HEADRACE_KAFKA__BOOTSTRAP_SERVERS"] = f"127.0.0.1:{self.proxy.port}"
        self.load = Load(self.bootstrap, f"{self.prefix}raw", seed, rate)
        self.watch = Watch(self.bootstrap, self.prefix)
        self.outcome = Outcome(name, seed)
        self.reviews_allowed = False
        self.rounds = 1
        self.compare_levels = True
        self.expects_stop = ""
        """Words with which partitions must stop; the usual check doesn't apply then."""
        self.offsets_touched = False
        """Somebody else commits offsets of the group."""
        self.held: list[Any] = []
        """The input before its start was cut."""
        self.vanished: dict[str, list[Any]] = {}
        """What topics held before they were deleted, by name."""
        self.gone: set[Place] = set()
        """Records that nobody could read."""
        self.crashes = 0
        """Workers that died at a random point of `app.crash`."""
        self.kills = kills
        self.brief = brief
        self.losses = 0
        """How often a worker's partitions were taken from it."""
        self.calls: list[Any] = []
        """What the model server was asked; there after `clean_up`."""
        self.down: set[int] = set()
        """Numbers of the workers that nobody starts again."""
        self.closing: list[Callable[[], object]] = []
        """What else is to be done when all processes have ended."""
        self._said: dict[int, int] = {}
        """How long each worker's log was when it was last started."""
        self._guarding = threading.Event()
        self._guard = threading.Thread(target=self._supervise, name="supervisor", daemon=True)

    def settings(self, config: Path) -> Settings:
        """What the workers read."""
        found = load(config)
        return found.model_copy(update={"kafka": found.kafka.model_copy(update={"topic_prefix": self.prefix})})

    # -- workers ---------------------------------------------------------------------------------------------------

    def _supervise(self) -> None:
        """Starts a worker again that ended without being told to, as a deployment would."""
        while not self._guarding.wait(0.5):
            for number, worker in enumerate(self.workers):
                process = worker.process
                if number in self.down or process is None or process.poll() is None:
                    continue
                if process.returncode == -9 and worker.env.get(VARIABLE, "").startswith("random:"):
                    self.crashes += 1
                    self.start(number, **{VARIABLE: f"random:{self.seed + self.crashes}:{CRASH_ONE_IN}"})
                    continue
                words = last_words(worker)
                self.outcome.ended_by_themselves.append(f"worker {number}, status {process.returncode}: {words}"[:400])
                say(self.outcome.ended_by_themselves[-1])
                self.start(number)

    def _rebalanced(self) -> None:
        """All lanes are given up and taken again, those of workers that stay too."""
        self.losses += len(self.workers) - len(self.down)

    def start(self, number: int, **env: str) -> None:
        """Starts a worker (again), with other settings if any are given."""
        worker = self.workers[number]
        worker.env = {k: v for k, v in worker.env.items() if k != VARIABLE} | env
        self.outcome.restarts += worker.starts > 0
        self._said[number] = len(worker.log.read_text(errors="replace")) if worker.log.exists() else 0
        worker.start()
        self.down.discard(number)
        self._rebalanced()

    def arm(self, number: int) -> None:
        """Starts a worker (again) that dies at a random point of `app.crash`, and then once more."""
        if number not in self.down:
            self.kill(number)
        self.start(number, **{VARIABLE: f"random:{self.rnd.randrange(1 << 20)}:{CRASH_ONE_IN}"})

    def start_ready(self, number: int, **env: str) -> None:
        """The same, and waits until its lanes run."""
        worker, had = self.workers[number], self.workers[number].ready_times()
        self.start(number, **env)
        wait_until(lambda: worker.ready_times() > had, 60, f"worker {number} is ready; see {worker.log}")

    def kill(self, number: int) -> None:
        """SIGKILL; nobody starts it again."""
        self._rebalanced()
        self.down.add(number)
        self.workers[number].kill()

    def stop(self, number: int) -> None:
        """SIGTERM, and its end in good order."""
        self._rebalanced()
        self.down.add(number)
        worker = self.workers[number]
        said = worker.log.read_text(errors="replace")[self._said.get(number, 0) :]
        status = worker.stop(STOP_S)
        if status != 0 and "headrace.delivery: ready;" in said:  # before that Python's own way of ending is as good
            self.wrong("stop", f"worker {number} ended with status {status} on SIGTERM")

    def pick(self) -> int:
        """A worker that runs."""
        return self.rnd.choice([n for n in range(len(self.workers)) if n not in self.down])

    def lost(self, number: int) -> None:
        """A worker will lose its partitions without ending: calls in flight may be asked again."""
        self._rebalanced()

    def pause_broker(self) -> None:
        os.kill(self.kafka.pid, signal.SIGSTOP)
        self.losses += len(self.workers)

    def kill_broker(self) -> None:
        self.kafka.kill()
        self.losses += len(self.workers)

    def resume_broker(self) -> None:
        os.kill(self.kafka.pid, signal.SIGCONT)

    def crash(self, number: int, point: str, count: int, seconds: float = 40) -> None:
        """Has a worker die at a point of `app.crash`, and starts it again."""
        self.stop(number)
        self.start(number, **{VARIABLE: f"{point}:{count}"})
        worker = self.workers[number]
        self.down.add(number)
        process = worker.process
        assert process is not None
        wait_until(lambda: process.poll() is not None, seconds, f"worker {number} dies at {point}; see {worker.log}")
        assert process.returncode == -9, f"worker {number} ended with {process.returncode} instead of dying at {point}"
        say(f"worker {number} died at {point}")
        self.start(number)

    def rest(self, low: float, high: float | None = None) -> None:
        """Lets events flow for a time drawn by the seed: faults have to fall into real work."""
        rest(low if high is None else self.rnd.uniform(low, high))

    # -- model server ----------------------------------------------------------------------------------------------

    def model_faults(self, faults: list[Fault]) -> None:
        """The next calls go wrong so."""
        body = [asdict(fault) for fault in faults]
        httpx.post(f"http://127.0.0.1:{self.stub.port}/faults", json=body, timeout=10).raise_for_status()

    def faults_left(self) -> int:
        answer = httpx.post(f"http://127.0.0.1:{self.stub.port}/faults", json=[], timeout=10)
        return int(answer.json()["left"])

    # -- what is seen ----------------------------------------------------------------------------------------------

    def wrong(self, what: str, example: object, n: int = 1) -> None:
        self.outcome.wrong[what] = self.outcome.wrong.get(what, 0) + n
        self.outcome.examples.setdefault(what, []).append(str(example)[:300])

    def note(self, text: str) -> None:
        self.outcome.notes.append(text)
        say(text)

    def read(self, topic: str) -> list[Any]:
        """All that a topic holds, behind what it held before it was deleted."""
        return [
            *self.vanished.get(topic, ()),
            *asyncio.run(topics.read(self.bootstrap, self.prefix + topic, PARTITIONS)),
        ]

    def results(self) -> int:
        return sum(asyncio.run(topics.end_offsets(self.bootstrap, f"{self.prefix}ai-results")).values())

    def logs(self) -> str:
        return "\n".join(w.log.read_text(errors="replace") for w in self.workers if w.log.exists())

    def levels(self) -> list[Level]:
        return [level_of(w.pid) for n, w in enumerate(self.workers) if n not in self.down]

    # -- begin and end ------------------------------------------------------------------------------------------------

    def begin(self, started: list[int] | None) -> None:
        """Starts all of it, or only some of the workers; returns when results flow."""
        asyncio.run(topics.create(self.bootstrap, f"{self.prefix}raw", PARTITIONS))
        self.stub.start()
        for number, worker in enumerate(self.workers):
            if started is None or number in started:
                worker.start()
            else:
                self.down.add(number)
        for number, worker in enumerate(self.workers):
            if number not in self.down:
                wait_until(worker.ready_times, 60, f"worker ready; see {worker.log}")
        self._guard.start()
        self.load.start()
        self.watch.start()
        wait_until(lambda: self.results() > STEADY_RESULTS, 60, "results flow")
        say("results flow")

    def clean_up(self) -> None:
        """Ends every process and thread, whatever state it is in."""
        self._guarding.set()
        if self._guard.is_alive():
            self._guard.join(10)
        self.calls = self.stub.get("calls") if self.stub._process is not None else []
        for worker in self.workers:
            if worker.process is not None and worker.process.poll() is None:
                try:
                    worker.resume()
                finally:
                    worker.kill()
        self.stub.kill()
        if self._proxied:
            self.proxy.__exit__()
        if self.watch._thread.is_alive():
            self.watch.end()
        if self.load._thread.is_alive():
            self.load.end()
        for close in self.closing:
            close()
