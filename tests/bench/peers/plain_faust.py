"""The same ingest as an ordinary faust-streaming agent with a RocksDB table; at-least-once.

    python -m tests.bench.peers.plain_faust BOOTSTRAP INPUT PREFIX GROUP FOLDER [results]

One event at a time, as Faust's documentation shows it; uvloop and rocksdict. The table keeps which record an id came
with, so that a replay isn't taken for a duplicate. With `results` each clean event also gets a result by rule.
"""

import os
import sys
from typing import Any

import msgspec

os.environ["FAUST_LOOP"] = "uvloop"  # read when faust is imported; `-L` counts only on the command line itself
import faust

BOOTSTRAP, INPUT, PREFIX, GROUP, FOLDER = sys.argv[1:6]
RESULTS = sys.argv[6:] == ["results"]
PARTITIONS = 4
CATEGORIES = {"payment": "payment", "refund": "payment", "order": "order", "cart": "order", "logistics": "order"}
NOISE = frozenset(("heartbeat", "debug"))


class Envelope(msgspec.Struct, gc=False):
    event_id: str
    event_type: str


class Result(msgspec.Struct, gc=False):
    event_id: str
    event_type: str
    category: str
    confidence: float
    tier: str


encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(Envelope).decode
app = faust.App(
    GROUP, broker=f"kafka://{BOOTSTRAP}", store="rocksdb://", datadir=FOLDER, topic_partitions=PARTITIONS,
    topic_replication_factor=1, topic_disable_leader=True, producer_acks=-1, producer_linger=0.005,
    producer_max_batch_size=1 << 19, stream_buffer_maxsize=16384, broker_max_poll_records=1000, table_standby_replicas=0,
    web_enabled=False, consumer_auto_offset_reset="earliest",
)  # fmt: skip


def topic(name: str) -> Any:
    return app.topic(name, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw")


source, clean, noise, dead = topic(INPUT), *(topic(PREFIX + t) for t in ("clean-events", "sink-noise", "dead-letter"))
results = topic(f"{PREFIX}ai-results")
seen = app.Table(
    "seen", partitions=PARTITIONS, key_type=bytes, value_type=bytes,
    options={"driver": "rocksdict", "write_buffer_size": 16 << 20, "block_cache_size": 64 << 20},
)  # fmt: skip


@app.agent(source)
async def ingest(stream: Any) -> None:
    async for event in stream.events():
        value = event.value
        try:
            envelope = decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError):
            await dead.send(key=event.key, value=value)
            continue
        key, place = envelope.event_id.encode(), b"%d:%d" % (event.message.partition, event.message.offset)
        first = seen.get(key)
        if first is not None and first != place:
            continue
        if first is None:
            seen[key] = place
        target = noise if envelope.event_type in NOISE else clean
        await target.send(key=event.key, value=value)
        if RESULTS and target is clean:
            kind = envelope.event_type
            result = Result(envelope.event_id, kind, CATEGORIES.get(kind, "other"), 1.0, "rule")
            await results.send(key=key, value=encode(result))


if __name__ == "__main__":
    from faust.cli.faust import cli

    cli.main(["-A", "tests.bench.peers.plain_faust", "-L", "uvloop", "worker", "-l", "info", "--without-web"])
