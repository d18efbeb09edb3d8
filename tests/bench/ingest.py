"""Contestants in turn, round by round, each with topics, a group and a process of its own."""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from app.broker.kafka import EmbeddedKafka, die_with_parent
from tests.bench import outputs
from tests.bench.data import NOISE, Expected, preload
from tests.bench.meter import Meter
from tests.helpers.processes import free_port

__all__ = ["CONTESTANTS", "run", "summary"]

CONFIG = """
tasks = []

[[sources]]
name = "raw"
topic = "{topic}"

[[noise]]
name = "noise"
when = [{{ field = "event_type", op = "in", value = [{noise}] }}]
"""
ROOT = Path(__file__).parents[2]
SHARE = {"faust": 20}
"""Contestants that get only this part of the events, since they are slow."""
Spawn = Callable[[Path, str, str, str], tuple[list[str], dict[str, str], str]]
"""Folder, bootstrap, input topic and prefix -> command, environment and consumer group."""


def ours(folder: Path, bootstrap: str, topic: str, prefix: str) -> tuple[list[str], dict[str, str], str]:
    config = folder / "headrace.toml"
    config.write_text(CONFIG.format(topic=topic, noise=", ".join(f'"{kind}"' for kind in NOISE)))
    env = {
        "HEADRACE_KAFKA__BOOTSTRAP_SERVERS": bootstrap, "HEADRACE_KAFKA__TOPIC_PREFIX": prefix,
        "HEADRACE_CONFIG": str(config), "HEADRACE_DATA_DIR": str(folder), "HEADRACE_WEB__PORT": str(free_port()),
    }  # fmt: skip
    return ["app", "worker"], env, f"{prefix}headrace"


def raw(folder: Path, bootstrap: str, topic: str, prefix: str) -> tuple[list[str], dict[str, str], str]:
    return ["tests.bench.raw_loop", bootstrap, topic, prefix, f"{prefix}raw"], {}, f"{prefix}raw"


def faust(folder: Path, bootstrap: str, topic: str, prefix: str) -> tuple[list[str], dict[str, str], str]:
    return ["tests.bench.plain_faust", bootstrap, topic, prefix, f"{prefix}faust", str(folder)], {}, f"{prefix}faust"


CONTESTANTS: dict[str, Spawn] = {"ours": ours, "raw": raw, "faust": faust}


def run(names: list[str], count: int, rounds: int, say: Callable[[str], None]) -> dict[str, list[dict[str, Any]]]:
    """Runs all rounds; returns what each round of each contestant showed."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory(prefix="bench-") as temporary:
        folder = Path(temporary)
        kafka = EmbeddedKafka(folder / "kafka", properties={"log.segment.delete.delay.ms": "1000"})
        kafka.start()
        try:
            inputs: dict[int, tuple[str, Expected]] = {}
            for events in {count // SHARE.get(name, 1) for name in names}:
                topic = f"bench-input-{events}"
                asyncio.run(outputs.make(kafka.bootstrap, [topic], stamped=False))
                inputs[events] = topic, asyncio.run(preload(kafka.bootstrap, topic, events))
                size = inputs[events][1].size_bytes / events
                say(f"{events} events in {topic}, {size:.0f} bytes each")
            for number in range(rounds):
                for name in names:
                    topic, expected = inputs[count // SHARE.get(name, 1)]
                    result = _round(name, folder / f"{name}-{number}", kafka.bootstrap, topic, expected)
                    found[name].append(result)
                    say(f"round {number + 1} {name}: {result}")
                    if not result["right"]:
                        say(_complaints(folder / f"{name}-{number}" / "process.log"))
        finally:
            kafka.stop()
    return found


def _complaints(log: Path) -> str:
    """What a process whose outputs are wrong said about it."""
    lines = log.read_text(errors="replace").splitlines()
    marks = ("WARN", "ERROR", "Error", "Exception", "ebalanc")
    return "\n".join(["its log says:", *[line[:300] for line in lines if any(m in line for m in marks)][:40]])


def _round(name: str, folder: Path, bootstrap: str, topic: str, expected: Expected) -> dict[str, Any]:
    prefix = f"{folder.name}-"
    folder.mkdir()
    asyncio.run(outputs.make(bootstrap, [prefix + t for t in outputs.OUTPUTS], stamped=True))
    module, more, group = CONTESTANTS[name](folder, bootstrap, topic, prefix)
    clean = {k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_") or k == "HEADRACE_CACHE_DIR"}
    log = folder / "process.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", *module],
            stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env={**clean, **more}, cwd=ROOT,
            start_new_session=True, preexec_fn=die_with_parent,
        )  # fmt: skip
    meter = Meter(process.pid)
    meter.start()

    def alive() -> bool:
        return process.poll() is None

    try:
        asyncio.run(outputs.await_progress(bootstrap, group, topic, expected.events, alive))
    except TimeoutError as error:
        raise SystemExit(f"{name}: {error}\n{log.read_text(errors='replace')[-3000:]}") from None
    finally:
        meter.stop()
        load = os.getloadavg()[0]
        process.terminate()
        killed = False
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            killed = True
            process.kill()
            process.wait()
    outcome = asyncio.run(outputs.judge(bootstrap, prefix, expected))
    asyncio.run(outputs.drop(bootstrap, prefix))
    seconds = outcome.end - outcome.begin
    events = expected.events * (1 - outcome.at_begin / max(1, outcome.records))
    if seconds <= 0:
        raise SystemExit(f"{name}: no outputs, or too few events to time; {outcome}")
    return {
        "events_per_s": round(events / seconds), "seconds": round(seconds, 3),
        "cpu_us_per_event": round(meter.cpu_between(outcome.begin, outcome.end) / events * 1e6, 2),
        "peak_rss_mb": round(meter.peak_rss_mb, 1), "right": not outcome.wrong, "wrong": outcome.wrong,
        "load": round(load, 2), "killed": killed,
    }  # fmt: skip


def summary(found: dict[str, list[dict[str, Any]]], count: int) -> list[dict[str, Any]]:
    """Medians over the rounds, and what ours reaches of each other: the median of the rounds' ratios."""
    rows = []
    for name, rounds in found.items():
        row: dict[str, Any] = {"name": name, "events": count // SHARE.get(name, 1)}
        for what in ("events_per_s", "cpu_us_per_event", "peak_rss_mb"):
            row[what] = median(r[what] for r in rounds)
        row["right"] = all(r["right"] for r in rounds)
        if name != "ours" and "ours" in found:
            pairs = zip(found["ours"], rounds, strict=True)
            row["ratio_ours"] = round(median(a["events_per_s"] / b["events_per_s"] for a, b in pairs), 3)
        rows.append({**row, "rounds": rounds})
    return rows
