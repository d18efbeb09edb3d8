"""The same ingest by hand: aiokafka, one loop, record batches; ids in memory only, at-least-once.

    python -m tests.bench.peers.raw_loop BOOTSTRAP INPUT PREFIX GROUP [results]

With `results` each clean event also gets a result by rule.

It is meant to be as fast as such a loop gets, and gives up what makes the product's job hard: ids are lost when it
ends, and a crash makes copies.
"""

import asyncio
import gc
import signal
import sys
from typing import Any

import aiokafka
import msgspec
import uvloop
from aiokafka.partitioner import murmur2
from aiokafka.structs import TopicPartition

PARTITIONS = 4
NOISE = frozenset(("heartbeat", "debug"))
BATCH_BYTES = 1_000_000
COMMIT_EVERY_S = 1.0


class Envelope(msgspec.Struct, gc=False):
    event_id: str
    event_type: str


CATEGORIES = {"payment": "payment", "refund": "payment", "order": "order", "cart": "order", "logistics": "order"}


class Result(msgspec.Struct, gc=False):
    """What the others write as well, in the same JSON."""

    event_id: str
    event_type: str
    category: str
    confidence: float
    tier: str


class Loop:
    """Fetches, decides, and writes while the last round's writes are still on their way."""

    def __init__(self, bootstrap: str, topic: str, prefix: str, group: str, results: str = "") -> None:
        self.topic = topic
        self.results = f"{prefix}ai-results" if results else ""
        self.clean, self.noise, self.dead = f"{prefix}clean-events", f"{prefix}sink-noise", f"{prefix}dead-letter"
        self.consumer = aiokafka.AIOKafkaConsumer(
            topic, bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False, auto_offset_reset="earliest",
            max_partition_fetch_bytes=1 << 20, fetch_max_bytes=8 << 20, check_crcs=False,
        )  # fmt: skip
        self.producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap, acks="all", max_batch_size=BATCH_BYTES, max_request_size=4 << 20
        )
        self.seen: dict[int, set[str]] = {}
        self.places: dict[bytes | None, int] = {}
        self.stopping = asyncio.Event()

    async def run(self) -> None:
        await self.producer.start()
        await self.consumer.start()
        acks: Any = None
        offsets: dict[TopicPartition, int] = {}
        written: dict[TopicPartition, int] = {}
        loop = asyncio.get_running_loop()
        committed_at = loop.time()
        try:
            while not self.stopping.is_set():
                fetched = await self.consumer.getmany(timeout_ms=200)
                for tp, records in fetched.items():
                    futures = await self.write(self.decide(tp.partition, records))
                    if acks is not None:
                        await acks
                        written.update(offsets)
                    acks, offsets = asyncio.gather(*futures), {tp: records[-1].offset + 1}
                if not fetched and acks is not None:
                    await acks
                    acks = None
                    written.update(offsets)
                if written and (not fetched or loop.time() - committed_at > COMMIT_EVERY_S):
                    await self.consumer.commit(written)
                    written, committed_at = {}, loop.time()
            if acks is not None:
                await acks
                written.update(offsets)
            if written:
                await self.consumer.commit(written)
        finally:
            await self.consumer.stop()
            await self.producer.stop()

    def decide(self, partition: int, records: list[Any]) -> dict[tuple[str, int], list[Any]]:
        """Closed builders by topic and partition."""
        seen = self.seen.setdefault(partition, set())
        decode = msgspec.json.Decoder(Envelope).decode
        clean, noise, dead, places = self.clean, self.noise, self.dead, self.places
        results, encode = self.results, msgspec.json.Encoder().encode
        appends: dict[tuple[str, int], Any] = {}
        full: dict[tuple[str, int], list[Any]] = {}
        for record in records:
            key, value = record.key, record.value
            try:
                envelope = decode(value)
            except (msgspec.DecodeError, UnicodeDecodeError):
                topic = dead
            else:
                event_id = envelope.event_id
                if event_id in seen:
                    continue
                seen.add(event_id)
                topic = noise if envelope.event_type in NOISE else clean
                if results and topic is clean:
                    kind = envelope.event_type
                    category = CATEGORIES.get(kind, "other")
                    value_ = encode(Result(event_id, kind, category, 1.0, "rule"))
                    id_ = event_id.encode()
                    target = (results, (murmur2(id_) & 0x7FFFFFFF) % PARTITIONS)
                    append = appends.get(target)
                    if append is None or append(timestamp=None, key=id_, value=value_) is None:
                        builder = self.producer.create_batch()
                        full.setdefault(target, []).append(builder)
                        append = appends[target] = builder.append
                        append(timestamp=None, key=id_, value=value_)
            place = places.get(key)
            if place is None:
                place = places[key] = (murmur2(key or b"") & 0x7FFFFFFF) % PARTITIONS
            target = (topic, place)
            append = appends.get(target)
            if append is None or append(timestamp=None, key=key, value=value) is None:
                builder = self.producer.create_batch()
                full.setdefault(target, []).append(builder)
                append = appends[target] = builder.append
                append(timestamp=None, key=key, value=value)
        return full

    async def write(self, builders: dict[tuple[str, int], list[Any]]) -> list[Any]:
        futures = []
        for (topic, place), full in builders.items():
            for builder in full:
                builder.close()
                futures.append(await self.producer.send_batch(builder, topic, partition=place))
        return futures


async def main() -> None:
    loop = Loop(*sys.argv[1:])
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, loop.stopping.set)
    await loop.run()


if __name__ == "__main__":
    gc.set_threshold(100_000, 50, 100)
    uvloop.run(main())
