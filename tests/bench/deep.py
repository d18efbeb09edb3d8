"""What batches and tiers save: the same events asked one by one, at a model server whose time grows with its answer.

The server is `tests.helpers.modelserver`: it counts calls and tokens itself, and answers by each event's own text, so that
an answer given to the wrong event shows.
"""

import asyncio
import json
import math
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from tqdm import tqdm

from app.broker.kafka import EmbeddedKafka
from app.llm.local_server import LocalModelServer
from app.sources.demo import demo_stream
from tests.bench import outputs
from tests.bench.contestants import Job, Launch, environment
from tests.bench.ingest import BROKER, Say
from tests.bench.launched import Launched, launched
from tests.bench.meter import Meter
from tests.helpers import topics
from tests.helpers.modelserver import KEYWORDS, category_of
from tests.helpers.processes import StubProcess

__all__ = ["MORE", "Model", "batches", "shop"]

MORE = ("calls", "tokens_per_call", "tokens_per_event", "shares", "ratio", "tokens_ratio")
"""Figures of a row beside those that every contestant has. The ratios are to the first row."""
TEXTS = [
    "where is my parcel", "I was charged twice", "please cancel my order", "什么时候退款", "快递没有收到", "hello there",
    "我要修改订单", "the tracking number is wrong", "what a nice shop", "你好",
]  # fmt: skip
TASK = """
[[sources]]
name = "messages"
topic = "messages"
prefixed = true

[[tasks]]
name = "shop"

[[tasks.rules]]
name = "all-deep"
tier = "deep"
when = [{ field = "event_type", op = "exists" }]
"""
ONE_BY_ONE = {
    "HEADRACE_LLM__BATCH_ITEMS": "1",
    "HEADRACE_LIGHT__ENABLED": "false",
    "HEADRACE_CLASSIFY__CACHE_AGE_S": "0",
}
START_S, QUIET_S = 90.0, 12.0
"""No first result in this time, or no further one: the run is over."""
POLL_S = 0.5
Sent = list[tuple[bytes | None, bytes | None]]


@dataclass(frozen=True, kw_only=True)
class Model:
    """The model server of a run."""

    latency_ms: float = 150.0
    token_ms: float = 8.0
    """More for each token of an answer."""
    concurrency: int = 10
    """Calls at a time."""
    local: bool = False
    """The product's own local model instead: real, and near chance, so its answers aren't judged."""

    @contextmanager
    def serving(self) -> Iterator[tuple[dict[str, str], Callable[[], dict[str, Any]]]]:
        """Runs the server; gives the worker's settings, and what tells the server's own counts, if it has any."""
        env = {"HEADRACE_LLM__CONCURRENCY": str(self.concurrency), "HEADRACE_LLM__TIMEOUT_S": "60"}
        if self.local:
            with LocalModelServer() as server:
                yield {"HEADRACE_LLM__BASE_URL": server.base_url, "HEADRACE_LLM__MODEL": server.name, **env}, dict
            return
        stub = StubProcess(latency_ms=self.latency_ms, token_ms=self.token_ms)
        stub.start()
        try:
            here = {"HEADRACE_LLM__BASE_URL": f"http://127.0.0.1:{stub.port}/v1", "HEADRACE_LLM__MODEL": "stub"}
            yield {**here, **env}, lambda: stub.get("counts")
        finally:
            stub.kill()


def batches(sizes: list[int], events: int, model: Model, say: Say) -> list[dict[str, Any]]:
    """Distinct texts, all for the deep tier, with so many a call at most."""
    sent: Sent = [(b"u%d" % (n % 211), _message(n)) for n in range(events)]
    right = Counter(category_of(TEXTS[n % len(TEXTS)]) for n in range(events))
    task = TASK + "".join(
        f'\n[[tasks.categories]]\nid = "{name}"\ndescription = "about {name}"\n'
        for name in (*dict.fromkeys(name for _, name in KEYWORDS), "other")
    )
    rows = []
    with _kafka() as (kafka, folder):
        for size in sizes:
            more = {**ONE_BY_ONE, "HEADRACE_LLM__BATCH_ITEMS": str(size)}
            row = _measure(
                f"batch {size}",
                kafka,
                folder / f"batch-{size}",
                task,
                "messages",
                sent,
                model,
                more,
                say,
                wanted=events,
            )
            found = row.pop("categories")
            if found != right and not model.local:
                row["wrong"].append(f"categories {dict(found)} instead of {dict(right)}")
            rows.append(_finished(row, rows, say))
    return rows


def shop(seconds: float, rate: float, model: Model, say: Say) -> list[dict[str, Any]]:
    """The demo stream at a steady rate with the built-in rules and light tier; then each event deep, one by one."""
    begun_ms = int(time.time() * 1000)
    sent: Sent = [(r.key, r.value) for r in islice(demo_stream(1, begun_ms, 1000 / rate), int(seconds * rate))]
    rows = []
    with _kafka() as (kafka, folder):
        deep_all = (Path(__file__).parents[2] / "app" / "defaults.toml").read_text(encoding="utf-8")
        head, _, rest = deep_all.partition("[[tasks.rules]]")
        first = (
            '[[tasks.rules]]\nname = "all-deep"\ntier = "deep"\nwhen = [{ field = "event_type", op = "exists" }]\n\n'
        )
        deep_all = (head + first + "[[tasks.rules]]" + rest).partition("[[aggregates]]")[0]
        for name, config, more in (("one by one", deep_all, ONE_BY_ONE), ("tiers", "", {})):
            row = _measure(
                name, kafka, folder / name.replace(" ", "-"), config, "raw-events", sent, model, more, say,
                rate=rate if name == "tiers" else 0.0,
            )  # fmt: skip
            row.pop("categories")
            rows.append(_finished(row, rows, say))
    return rows


def _message(number: int) -> bytes:
    text = f"{TEXTS[number % len(TEXTS)]} ({number})"
    event = {"event_id": f"m{number}", "event_type": "message", "event_time": int(time.time() * 1000)}
    return json.dumps({**event, "payload": {"message": text}}).encode()


@contextmanager
def _kafka() -> Iterator[tuple[EmbeddedKafka, Path]]:
    with tempfile.TemporaryDirectory(prefix="bench-") as temporary:
        folder = Path(temporary)
        kafka = EmbeddedKafka(folder / "kafka", properties=BROKER)
        kafka.start()
        try:
            yield kafka, folder
        finally:
            kafka.stop()


def _measure(
    name: str, kafka: EmbeddedKafka, folder: Path, config: str, topic: str, sent: Sent, model: Model,
    more: dict[str, str], say: Say, *, rate: float = 0.0, wanted: float = math.inf,
) -> dict[str, Any]:  # fmt: skip
    """One worker over all events; they are there before it starts, or come at a rate."""
    folder.mkdir()
    prefix = f"{folder.name}-"
    raw = f"{prefix}{topic}"
    job = Job(folder=folder, bootstrap=kafka.bootstrap, topic=raw, prefix=prefix)
    with model.serving() as (server, counts):
        asyncio.run(outputs.make(kafka.bootstrap, [raw], stamped=False))
        asyncio.run(outputs.make(kafka.bootstrap, [f"{prefix}{outputs.RESULTS}"], stamped=True))
        if not rate:
            asyncio.run(topics.produce(kafka.bootstrap, raw, sent))
        launch = Launch(
            command=[sys.executable, "-m", "app", "worker"], group=f"{prefix}headrace",
            env=environment(job, config, **server, **more),
        )  # fmt: skip
        with launched([(launch, folder / "worker.log")]) as (running, meter):
            results, wrong = asyncio.run(_results(kafka.bootstrap, prefix, raw, sent, rate, running[0], name, wanted))
        if wrong:
            say(running[0].complaints())
        asyncio.run(outputs.drop(kafka.bootstrap, prefix))
        return _row(name, results, wrong, meter, counts())


async def _results(
    bootstrap: str, prefix: str, raw: str, sent: Sent, rate: float, worker: Launched, name: str, wanted: float
) -> tuple[list[tuple[int, dict[str, Any]]], list[str]]:
    """Feeds, waits until all is there or nothing more comes, and reads all results with their append times in ms."""
    feeding = asyncio.ensure_future(_feed(bootstrap, raw, sent, rate)) if rate else None
    topic, last, moved = f"{prefix}{outputs.RESULTS}", 0, time.monotonic()
    with tqdm(total=len(sent), desc=name, unit="result", disable=None, leave=False) as bar:
        while worker.alive() and time.monotonic() - moved < (QUIET_S if last else START_S):
            count = sum((await topics.end_offsets(bootstrap, topic)).values())
            if count != last or (feeding is not None and not feeding.done()):
                moved = time.monotonic()
            bar.update(count - last)
            last = count
            if count >= wanted and len(await topics.read(bootstrap, topic)) >= wanted:  # offsets count markers too
                break
            await asyncio.sleep(POLL_S)
    wrong = [] if worker.alive() else ["the worker ended"]
    records = await topics.read(bootstrap, topic)
    return [(record.timestamp, json.loads(record.value)) for record in records], wrong


async def _feed(bootstrap: str, topic: str, sent: Sent, rate: float) -> None:
    begun = time.monotonic()
    for at in range(0, len(sent), 100):
        await asyncio.sleep(max(0.0, begun + at / rate - time.monotonic()))
        await topics.produce(bootstrap, topic, sent[at : at + 100])


def _row(
    name: str, results: list[tuple[int, dict[str, Any]]], wrong: list[str], meter: Meter, counts: dict[str, Any]
) -> dict[str, Any]:
    stamps = Counter(at for at, _ in results)
    begin, end, counted = outputs.Outcome(stamps=stamps).interval(len(results))
    if len({r["event_id"] for _, r in results}) != len(results):
        wrong.append("an event has more than one result")
    tiers = Counter(r["tier"] for _, r in results)
    paid = sum(r["tokens"]["prompt"] + r["tokens"]["completion"] for _, r in results)
    calls, tokens = counts.get("calls", 0), counts.get("tokens", paid)
    return {
        "name": name, "events": len(results), "events_per_s": round(counted / max(0.001, end - begin), 1),
        "cpu_us_per_event": round(meter.cpu_between(begin, end) / max(1.0, counted) * 1e6, 1),
        "peak_rss_mb": round(meter.largest_rss_mb, 1), "wrong": wrong, "calls": calls,
        "tokens_per_event": round(tokens / max(1, len(results)), 2),
        "tokens_per_call": round(tokens / (calls or max(1, len(results))), 1),
        "shares": {tier: round(n / len(results), 3) for tier, n in sorted(tiers.items())},
        "categories": Counter(r["category"] for _, r in results),
    }  # fmt: skip


def _finished(row: dict[str, Any], before: list[dict[str, Any]], say: Say) -> dict[str, Any]:
    first = before[0] if before else row
    row["ratio"] = round(row["events_per_s"] / max(0.001, first["events_per_s"]), 2)
    # Equal texts under way share a call also where each is asked alone, so a call of the first row is what an event costs.
    row["tokens_ratio"] = round(first["tokens_per_call"] / max(0.001, row["tokens_per_event"]), 2)
    row |= {"right": not row["wrong"], "rounds": [row.copy()]}
    say(f"{row['name']}: {', '.join(f'{what} {row[what]}' for what in ('events', 'events_per_s', *MORE))}")
    return row
