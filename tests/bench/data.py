"""The input of a benchmark: made once, appended as big record batches, and what must come out of it."""

import contextlib
import json
import random
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiokafka
from aiokafka.partitioner import murmur2

__all__ = ["NOISE", "PARTITIONS", "USERS", "Expected", "appender", "placed", "preload", "records"]

PARTITIONS = 4
NOISE = ("heartbeat", "debug")
TYPES = ("order", "payment", "logistics", "login", *NOISE, "review", "refund", "search", "cart")
"""Two of ten are noise."""
TEXT = "用户反馈 支付 失败 the payment could not be completed, please check the gateway response code and retry later"
REPEATED, BROKEN = 0.1, 0.02
REACH = 1000
"""How many records back a repeated one may lie."""
USERS = 20_000
BEGUN_MS = 1_764_000_000_000
EVENTS_PER_S = 10_000
"""In event time: each user has an event every two seconds, 30 in a window of a minute."""
BATCH_BYTES = 1_000_000
SHOW_EVERY = 10_000
CUT = 10
"""Bytes that a broken record lacks at its end."""


@dataclass
class Expected:
    """What a right job makes of the input."""

    events: int = 0
    size_bytes: int = 0
    clean: set[str] = field(default_factory=set)
    noise: set[str] = field(default_factory=set)
    broken: Counter[int] = field(default_factory=Counter)
    """CRC-32 of each broken record."""


def records(
    count: int, expected: Expected, seed: int = 1, per_s: int = EVENTS_PER_S, begun_ms: int = BEGUN_MS
) -> Iterator[tuple[int, bytes]]:
    """User number and value of each event; notes in `expected` what must become of it.

    Event times begin at `begun_ms` and go on by a second every `per_s` events.
    """
    rnd = random.Random(seed)
    text = json.dumps(TEXT, ensure_ascii=False)
    recent: list[tuple[int, bytes]] = []
    for number in range(count):
        if recent and rnd.random() < REPEATED:
            user, value = recent[rnd.randrange(len(recent))]
            if not value.endswith(b"}}"):
                expected.broken[zlib.crc32(value)] += 1
        else:
            user, value = _event(rnd, begun_ms + number * 1000 // per_s, text, expected)
            if len(recent) < REACH:
                recent.append((user, value))
            else:
                recent[number % REACH] = (user, value)
        expected.events += 1
        expected.size_bytes += len(value)
        yield user, value


def placed(partitions: int) -> list[tuple[bytes, int]]:
    """Key and partition of each user."""
    keys = [f"u{n}".encode() for n in range(USERS)]
    return [(key, (murmur2(key) & 0x7FFFFFFF) % partitions) for key in keys]


async def preload(
    bootstrap: str,
    topic: str,
    count: int,
    seed: int = 1,
    partitions: int = PARTITIONS,
    bar: Callable[[int], object] = int,
    known: Sequence[tuple[int, bytes]] = (),
    begun_ms: int = BEGUN_MS,
) -> Expected:
    """Appends `count` records to a topic that exists; evenly among them what is `known` already, by partition."""
    expected = Expected()
    made = records(count - len(known), expected, seed, begun_ms=begun_ms)
    async with appender(bootstrap) as producer:
        builders = [producer.create_batch() for _ in range(partitions)]
        for number, (key, place, value) in enumerate(_mixed(made, known, count, placed(partitions))):
            if number % SHOW_EVERY == 0:
                bar(min(SHOW_EVERY, count - number))
            if builders[place].append(key=key, value=value, timestamp=None) is None:
                builders[place].close()
                await producer.send_batch(builders[place], topic, partition=place)
                builders[place] = producer.create_batch()
                builders[place].append(key=key, value=value, timestamp=None)
        for place, builder in enumerate(builders):
            if builder.record_count():
                builder.close()
                await producer.send_batch(builder, topic, partition=place)
        await producer.flush()
    expected.events += len(known)
    return expected


def _mixed(
    made: Iterator[tuple[int, bytes]], known: Sequence[tuple[int, bytes]], count: int, users: list[tuple[bytes, int]]
) -> Iterator[tuple[bytes, int, bytes]]:
    """Key, partition and value of each record."""
    keys = {place: key for key, place in users}
    taken = 0
    for number in range(count):
        if taken * count < number * len(known):
            place, value = known[taken]
            taken += 1
            yield keys[place], place, value
        else:
            user, value = next(made)
            yield *users[user], value


@contextlib.asynccontextmanager
async def appender(bootstrap: str) -> AsyncIterator[Any]:
    """A producer for large record batches."""
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=bootstrap, acks="all", max_batch_size=BATCH_BYTES, max_request_size=4 << 20
    )
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


def _event(rnd: random.Random, at_ms: int, text: str, expected: Expected) -> tuple[int, bytes]:
    """A new record, and notes what must become of it."""
    event_id = f"{rnd.getrandbits(128):032x}"
    kind = TYPES[rnd.randrange(len(TYPES))]
    user = rnd.randrange(USERS)
    value = (
        f'{{"event_id": "{event_id}", "event_type": "{kind}", "event_time": {at_ms}, '
        f'"source_system": "app", "trace_id": "{rnd.getrandbits(128):032x}", "payload": {{"message": {text}, '
        f'"amount": {rnd.random() * 100:.2f}, "user": "u{user}", "order_id": "o{rnd.getrandbits(40)}", '
        f'"channel": "web", "region": "eu-central-1"}}}}'
    ).encode()
    if rnd.random() < BROKEN:
        value = value[:-CUT]
        expected.broken[zlib.crc32(value)] += 1
    else:
        (expected.noise if kind in NOISE else expected.clean).add(event_id)
    return user, value
