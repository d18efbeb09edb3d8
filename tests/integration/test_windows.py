"""Windows and intent rules in a real worker on a real broker, against an offline recomputation."""

import asyncio
import json
import re
import time
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiokafka
import pytest

from app.broker.kafka import EmbeddedKafka
from tests.conftest import Fleet
from tests.fault import repartition
from tests.helpers import topics
from tests.helpers.modelserver import ModelServer
from tests.helpers.windows import Given, comparable, recompute

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

SIZE_S, HOP_S, GRACE_S = 20, 10, 5
WINDOWS = f"""
[windows]
idle_s = 2
[[aggregates]]
name = "short"
size_s = {SIZE_S}
hop_s = {HOP_S}
grace_s = {GRACE_S}
"""
ACCESS = """
[[sources]]
name = "log"
topic = "{topic}"
format = "text"
pattern = "combined"
fingerprint = ["line"]
event_type = "=access"
event_time = "time"
"""
AUTH = """
[[sources]]
name = "log"
topic = "{topic}"
format = "text"
pattern = "syslog"
fingerprint = ["line"]
event_type = "program"
event_time = "time"
"""
NO_TASKS = "tasks = []\nnoise = []\n"
LINE = re.compile(r'(\S+) \S+ \S+ \[(.+?)\] "(.*?)" (\d+)')
SYSLOG = re.compile(r"(\w+ +\d+ \d\d:\d\d:\d\d) (\S+) (.*)")
SENT = datetime(2026, 4, 30, tzinfo=UTC)
"""When the log without a year is said to have been sent: its lines are of the weeks before."""


async def send(fleet: Fleet, topic: str, rows: list[tuple[bytes, bytes]], at_ms: int | None = None) -> None:
    """Into a topic that keeps old records."""
    await topics.create(fleet.bootstrap, topic, config={"retention.ms": "-1"})
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=fleet.bootstrap, acks="all", linger_ms=5)
    await producer.start()
    sent = [await producer.send(topic, value, key, timestamp_ms=at_ms) for key, value in rows]
    await asyncio.gather(*sent)
    await producer.stop()


async def by_partition(fleet: Fleet, topic: str) -> dict[int, list[Any]]:
    """Each record that isn't a copy of an earlier one, by partition, in order."""
    found: dict[int, list[Any]] = defaultdict(list)
    seen = set()
    for record in await topics.read(fleet.bootstrap, topic):
        if (record.partition, record.value) not in seen:
            seen.add((record.partition, record.value))
            found[record.partition].append(record)
    return found


async def emitted(fleet: Fleet, count: int, seconds: float) -> list[dict[str, Any]]:
    """Windows, once there are so many; a moment later, so that one too many would show."""
    deadline = time.monotonic() + seconds
    while True:
        rows = [json.loads(r.value) for r in await topics.read(fleet.bootstrap, f"{fleet.prefix}agg-events")]
        if len(rows) >= count:
            return rows
        assert time.monotonic() < deadline, (
            f"{len(rows)} of {count} windows: {fleet.workers[0].log.read_text()[-2000:]}"
        )
        await asyncio.sleep(1)


async def compare(fleet: Fleet, streams: list[list[Given]], seconds: float) -> None:
    want: dict[tuple[str, int], Any] = {}
    late = 0
    for stream in streams:
        offline = recompute(stream, SIZE_S * 1000, HOP_S * 1000, GRACE_S * 1000, 10**15, ended=True)
        want |= offline.windows
        late += len(offline.late)
    for window in want.values():
        window["features"] = {}
    got = comparable(await emitted(fleet, len(want), seconds))
    assert got == want
    assert len(await topics.read(fleet.bootstrap, f"{fleet.prefix}late-events")) == late


async def kill_midway(fleet: Fleet, config: str, **env: str) -> None:
    """A worker with small batches that is killed once it has closed some windows, and started again."""
    worker = fleet.started(config, HEADRACE_DELIVERY__BATCH_RECORDS="200", **env)
    await emitted(fleet, 1, 60)
    worker.kill()
    worker.start()


async def test_an_access_log_gives_the_windows_of_a_recomputation_through_a_kill(fleet: Fleet, shared: Path) -> None:
    lines = (shared / "access-log" / "apache_logs.txt").read_bytes().splitlines()
    topic = f"{fleet.prefix}log"
    await send(fleet, topic, [(line.split(b" ", 1)[0], line) for line in lines])
    await kill_midway(fleet, NO_TASKS + ACCESS.format(topic=topic) + WINDOWS)
    streams = []
    for records in (await by_partition(fleet, topic)).values():
        stream = []
        for record in records:
            client, at, _, _ = LINE.match(record.value.decode()).groups()  # type: ignore[union-attr]
            at_ms = int(datetime.strptime(at, "%d/%b/%Y:%H:%M:%S %z").timestamp() * 1000)
            stream.append(Given(client, at_ms, "access"))
        streams.append(stream)
    assert sum(map(len, streams)) > 9_000
    await compare(fleet, streams, 120)


async def test_an_auth_log_gives_the_windows_of_a_recomputation_through_a_kill(fleet: Fleet, shared: Path) -> None:
    lines = [line for line in (shared / "auth-log" / "auth.log").read_bytes().splitlines() if line.strip()]
    topic = f"{fleet.prefix}log"
    await send(
        fleet, topic, [(line.split(b" ")[4].split(b"[")[0], line) for line in lines], int(SENT.timestamp() * 1000)
    )
    labelled = WINDOWS.replace("[[aggregates]]", '[[aggregates]]\nlabel = "message"')
    await kill_midway(fleet, NO_TASKS + AUTH.format(topic=topic) + labelled)
    streams = []
    for records in (await by_partition(fleet, topic)).values():
        stream = []
        for record in records:
            at, _, rest = SYSLOG.match(record.value.decode()).groups()  # type: ignore[union-attr]
            moment = datetime.strptime(f"{SENT.year} {at}", "%Y %b %d %H:%M:%S").replace(tzinfo=UTC)
            message = rest.split(":", 1)[1].removeprefix(" ")
            stream.append(Given(record.key.decode(), int(moment.timestamp() * 1000), message[:64]))
        streams.append(stream)
    await compare(fleet, streams, 120)


INTENTS = """
[[sources]]
name = "shop"
topic = "{topic}"

[windows]
idle_s = 2

[[aggregates]]
name = "minute"
size_s = 10
hop_s = 10
grace_s = 0

[[intents]]
name = "crawler"
aggregate = "minute"
when = [{{ count = "page.viewed", at_least = 100 }}]
incident = "crawler"
category = "robot"

[[intents]]
name = "cart"
aggregate = "minute"
sequence = [{{ label = "page.hesitated", times = 3 }}, {{ label = "cart.abandoned" }}]
within_s = 60
category = "abandoned-cart"

[[tasks]]
name = "visit"
input = "windows"
min_events = 3
[[tasks.categories]]
id = "logistics"
description = "about delivery"
[[tasks.categories]]
id = "other"
description = "anything else"
"""


async def test_a_crawler_an_abandoned_cart_and_an_undecided_window_each_get_their_end(fleet: Fleet) -> None:
    topic, now = f"{fleet.prefix}shop", int(time.time() * 1000) // 10_000 * 10_000
    visits = {
        "bot": ["page.viewed"] * 100_000,
        "cart": [*["page.hesitated"] * 3, "cart.abandoned"],
        "asks": ["page.viewed", "parcel.tracked", "parcel.tracked"],
        "brief": ["page.viewed"],
    }
    rows = [
        (
            user.encode(),
            json.dumps({"event_id": f"{user}-{n}", "event_type": kind, "event_time": now + n % 9000}).encode(),
        )
        for user, kinds in visits.items()
        for n, kind in enumerate(kinds)
    ]
    await send(fleet, topic, rows)
    async with ModelServer() as server:
        fleet.started(
            INTENTS.format(topic=topic),
            HEADRACE_LLM__BASE_URL=server.base_url, HEADRACE_LLM__MODEL="stub", HEADRACE_LIGHT__ENABLED="false",
        )  # fmt: skip
        windows = await emitted(fleet, len(visits), 100)
        deadline = time.monotonic() + 60
        while len(results := await topics.read(fleet.bootstrap, f"{fleet.prefix}ai-results")) < 3:
            assert time.monotonic() < deadline, fleet.workers[0].log.read_text()[-2000:]
            await asyncio.sleep(1)
    by_id = {json.loads(r.value)["event_id"]: json.loads(r.value) for r in results}
    assert {name: (r["category"], r["tier"], r["why"].split(" ")[0]) for name, r in by_id.items()} == {
        f"bot@minute@{now}": ("robot", "rule", "crawler"),
        f"cart@minute@{now}": ("abandoned-cart", "rule", "cart"),
        f"asks@minute@{now}": ("logistics", "deep", "no"),
    }
    assert len(results) == 3
    ((incident),) = [json.loads(r.value) for r in await topics.read(fleet.bootstrap, f"{fleet.prefix}agent-trigger")]
    assert (incident["id"], incident["open"]) == (f"bot@minute@{now}@crawler", True)
    (bot,) = [window for window in windows if window["entity"] == "bot"]
    assert (bot["events"], bot["cut"], bot["intents"]) == (100_000, 99_900, ["crawler"])
    (text,) = [text for call in server.calls for text in call.items]
    assert text.startswith("3 events of asks in")


def test_partitions_added_with_windows_open_leave_each_window_exact_and_once(
    tmp_path: Path, kafka: EmbeddedKafka, prefix: str
) -> None:
    report = repartition.run(tmp_path, kafka.bootstrap, prefix, count=3000, old=2, new=6, seed=5)
    assert report.windows > 400
    assert report.right, report


async def test_windows_over_a_keyed_and_a_rekeyed_source_are_exact_through_a_kill(fleet: Fleet) -> None:
    rows, events = repartition.stream(8000, 3, int(time.time() * 1000) - 60_000, 40)
    for source in repartition.SOURCES:
        await topics.create(fleet.bootstrap, f"{fleet.prefix}{source}")
    await repartition.send(fleet.bootstrap, fleet.prefix, rows)
    await kill_midway(fleet, repartition.CONFIG.format(prefix=fleet.prefix, window=repartition.WINDOW, idle_s=2))
    want = repartition.expected(events)
    await emitted(fleet, len(want), 100)
    assert await repartition.written(fleet.bootstrap, fleet.prefix, 4) == want
    assert await topics.read(fleet.bootstrap, f"{fleet.prefix}late-events") == []
