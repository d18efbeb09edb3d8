"""A steady load, and how long each event took until its result could be read."""

import asyncio
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiokafka
import msgspec
from aiokafka.structs import TopicPartition

from app.broker.kafka import die_with_parent
from app.waiting import poll
from tests.bench.contestants import ROOT
from tests.bench.data import Expected, appender, placed, records
from tests.bench.reader import READY

__all__ = ["Results", "feed", "measure", "percentile", "sources"]

TICK_S = 0.02
"""Events of 20 ms are one record batch a partition, as a producer with a small linger makes them."""
WARM_S = 5.0
"""Events of the first seconds don't count: connections are made, code is read."""
QUIET_S = 1.0
START_S = 30.0
Place = tuple[int, int]
"""Partition and offset."""


class Origin(msgspec.Struct, gc=False):
    partition: int
    offset: int


class FromResult(msgspec.Struct, gc=False):
    source: Origin


class Results:
    """The reader process of a topic of results."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, path: Path) -> None:
        self.command = [sys.executable, "-m", "tests.bench.reader", bootstrap, topic, str(partitions), str(path)]
        self.path = path
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            self.command, stdin=subprocess.DEVNULL, cwd=ROOT, start_new_session=True, preexec_fn=die_with_parent
        )
        process = self.process
        poll(lambda: self._text().startswith(READY) or process.poll() is not None, START_S, 0.05)
        if not self._text().startswith(READY):
            self.__exit__(None, None, None)
            raise RuntimeError("the reader of results doesn't start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self.process is not None
        self.process.terminate()
        self.process.wait(10)

    def _size(self) -> int:
        return self.path.stat().st_size

    def _text(self) -> str:
        return self.path.read_text(encoding="ascii") if self.path.exists() else ""

    def wait_quiet(self) -> None:
        """Waits until nothing new came for a second."""
        size = -1
        while self._size() != size:
            size = self._size()
            poll(lambda before=size: self._size() != before, QUIET_S)

    def lines(self) -> list[tuple[int, int, int, float]]:
        """Partition, first and last offset, and time of every fetch."""
        rows = [line.split() for line in self._text().splitlines()[1:]]
        return [(int(p), int(first), int(last), float(at)) for p, first, last, at in rows]

    def seen(self) -> dict[Place, float]:
        """When each record was first visible."""
        return {(p, offset): at for p, first, last, at in self.lines() for offset in range(first, last + 1)}


async def feed(bootstrap: str, topic: str, rate: int, seconds: float, partitions: int, seed: int = 7) -> Expected:
    """Appends `rate` events/s, evenly; late ticks are made up for."""
    expected = Expected()
    users = placed(partitions)
    made = list(records(int(rate * seconds), expected, seed, rate))  # before the clock starts: making them costs CPU
    loop = asyncio.get_running_loop()
    async with appender(bootstrap) as producer:
        begun, done = loop.time(), 0
        acks: set[asyncio.Future[Any]] = set()
        while done < len(made):
            until = min(len(made), int((loop.time() - begun) * rate) + 1)
            builders: dict[int, Any] = {}
            for user, value in made[done:until]:
                key, place = users[user]
                builder = builders.get(place)
                if builder is None:
                    builder = builders[place] = producer.create_batch()
                if builder.append(key=key, value=value, timestamp=None) is None:
                    raise RuntimeError("a tick's events don't fit a record batch: the rate is too high")
            done = until
            for place, builder in builders.items():
                builder.close()
                ack = await producer.send_batch(builder, topic, partition=place)
                acks.add(ack)
                ack.add_done_callback(acks.discard)
            await asyncio.sleep(TICK_S)
        if acks:
            await asyncio.gather(*acks)
    return expected


async def measure(
    bootstrap: str, raw: str, results: str, partitions: int, seen: dict[Place, float], warm_s: float = WARM_S
) -> dict[str, float | None]:
    """From the broker's append of the raw event to that of its result, and to when the reader saw it; ms."""
    appended = {place: stamp for place, stamp, _ in await _read(bootstrap, raw, partitions)}
    first = min(appended.values()) + warm_s * 1000
    decode = msgspec.json.Decoder(FromResult).decode
    to_append, to_reader, unseen = [], [], 0
    for place, stamp, value in await _read(bootstrap, results, partitions):
        source = decode(value).source
        begun = appended[source.partition, source.offset]
        if begun < first:
            continue
        to_append.append(stamp - begun)
        if place in seen:
            to_reader.append(seen[place] * 1000 - begun)
        else:
            unseen += 1
    return {
        "append_p50_ms": percentile(to_append, 50), "append_p99_ms": percentile(to_append, 99),
        "p50_ms": percentile(to_reader, 50), "p99_ms": percentile(to_reader, 99),
        "max_ms": percentile(to_reader, 100), "measured": len(to_reader), "unseen": unseen,
    }  # fmt: skip


async def sources(bootstrap: str, results: str, partitions: int) -> list[tuple[Place, int]]:
    """The place of every result, and the input partition of its event."""
    decode = msgspec.json.Decoder(FromResult).decode
    return [(place, decode(value).source.partition) for place, _, value in await _read(bootstrap, results, partitions)]


def percentile(values: list[float] | list[int], percent: int) -> float | None:
    """The smallest value that so many percent don't exceed; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return round(float(ordered[max(0, -(-len(ordered) * percent // 100) - 1)]), 1)


async def _read(bootstrap: str, topic: str, partitions: int) -> list[tuple[Place, int, bytes]]:
    """Place, append time in ms and value of every record."""
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=bootstrap, isolation_level="read_committed", enable_auto_commit=False,
        max_partition_fetch_bytes=8 << 20, check_crcs=False,
    )  # fmt: skip
    await consumer.start()
    found: list[tuple[Place, int, bytes]] = []
    try:
        tps = [TopicPartition(topic, p) for p in range(partitions)]
        consumer.assign(tps)
        await consumer.seek_to_beginning(*tps)
        ends = await consumer.end_offsets(tps)
        while any([await consumer.position(tp) < ends[tp] for tp in tps]):
            for records_ in (await consumer.getmany(timeout_ms=300)).values():
                found += [((r.partition, r.offset), r.timestamp, r.value) for r in records_]
    finally:
        await consumer.stop()
    return found
