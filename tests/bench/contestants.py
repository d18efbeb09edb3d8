"""Who takes part, and how each is started."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.bench.data import NOISE
from tests.bench.environments import HERE, java_program, python_of
from tests.helpers.processes import free_port

__all__ = ["CONTESTANTS", "Job", "Launch", "environment", "ours"]

ROOT = HERE.parents[1]
INGEST_CONFIG = """
tasks = []

[[sources]]
name = "raw"
topic = "{topic}"

[[noise]]
name = "noise"
when = [{{ field = "event_type", op = "in", value = [{noise}] }}]
"""
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Job:
    """One round's work."""

    folder: Path
    """Of this process alone: its state, settings and log."""
    bootstrap: str
    topic: str
    """Input."""
    prefix: str
    """Of output topics and the group."""
    results: bool = False
    """The whole path: each clean event gets a result by rule as well."""

    @property
    def more(self) -> list[str]:
        """What tells a peer's program so."""
        return ["results"] if self.results else []


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A process to start."""

    command: list[str]
    group: str
    """The consumer group whose committed offsets tell how far it is."""
    env: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """How one takes part."""

    launch: Callable[[Job, Say], Launch]
    what: str
    share: int = 1
    """A slow one gets this part of the events."""


def environment(job: Job, config: str, **more: str) -> dict[str, str]:
    """Settings of a worker of ours, its file written."""
    path = job.folder / "headrace.toml"
    path.write_text(config, encoding="utf-8")
    return {
        "HEADRACE_KAFKA__BOOTSTRAP_SERVERS": job.bootstrap, "HEADRACE_KAFKA__TOPIC_PREFIX": job.prefix,
        "HEADRACE_CONFIG": str(path), "HEADRACE_DATA_DIR": str(job.folder), "HEADRACE_WEB__PORT": str(free_port()),
        "HEADRACE_RESULTS__KEEP_S": "0",  # no other contestant keeps its results, or reviews
        "HEADRACE_REVIEWS__KEEP_S": "0",
        **more,
    }  # fmt: skip


def ours(job: Job, say: Say) -> Launch:
    config = INGEST_CONFIG.format(topic=job.topic, noise=", ".join(f'"{kind}"' for kind in NOISE))
    return Launch(
        command=[sys.executable, "-m", "app", "worker"], group=f"{job.prefix}headrace", env=environment(job, config)
    )


def _module(name: str, *more: str) -> Callable[[Job, Say], Launch]:
    """A program of tests/bench/peers in our own environment."""

    def launch(job: Job, say: Say) -> Launch:
        group = f"{job.prefix}bench"
        places = [str(job.folder) for _ in more]
        return Launch(
            command=[
                sys.executable,
                "-m",
                f"tests.bench.peers.{name}",
                job.bootstrap,
                job.topic,
                job.prefix,
                group,
                *places,
                *job.more,
            ],
            group=group,
            env={},
        )

    return launch


def _peer(name: str, *more: str) -> Callable[[Job, Say], Launch]:
    """A program of tests/bench/peers in an environment of its own."""

    def launch(job: Job, say: Say) -> Launch:
        group = f"{job.prefix}bench"
        program = str(HERE / "peers" / f"{name}_ingest.py")
        places = [str(job.folder) for _ in more]
        return Launch(
            command=[
                str(python_of(name, say)),
                program,
                job.bootstrap,
                job.topic,
                job.prefix,
                group,
                *places,
                *job.more,
            ],
            group=group,
            env={},
        )

    return launch


def _kstreams(commit_ms: int) -> Callable[[Job, Say], Launch]:
    def launch(job: Job, say: Say) -> Launch:
        group = f"{job.prefix}bench"
        places = [job.bootstrap, job.topic, job.prefix, group, str(job.folder)]
        command = [*java_program(say), "bench.Ingest", *places, str(commit_ms), *job.more]
        return Launch(command=command, group=group, env={})

    return launch


CONTESTANTS: dict[str, Contestant] = {
    "ours": Contestant(launch=ours, what="headrace worker: ids durable, exactly once"),
    "raw": Contestant(launch=_module("raw_loop"), what="aiokafka record-batch loop: ids in memory, at-least-once"),
    "faust": Contestant(
        launch=_module("plain_faust", "folder"), what="faust-streaming, RocksDB table: at-least-once", share=20
    ),
    "faststream": Contestant(launch=_peer("faststream"), what="FastStream, batches: ids in memory, at-least-once"),
    "quix": Contestant(launch=_peer("quix", "folder"), what="Quix Streams, RocksDB state: exactly once", share=4),
    "kstreams": Contestant(
        launch=_kstreams(100), what="Kafka Streams, RocksDB store: exactly_once_v2, its commit interval of 100 ms"
    ),
    "kstreams-1s": Contestant(
        launch=_kstreams(1000), what="the same with a commit each second: faster, and readers see nothing for so long"
    ),
}
