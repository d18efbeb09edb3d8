"""The same ingest on Quix Streams: exactly-once, ids in its RocksDB state with a changelog topic.

    quix_ingest.py BOOTSTRAP INPUT PREFIX GROUP FOLDER [results]

Its state is kept by message key; copies of an event have the same key here, so an id is looked up under its key. Values
stay bytes, and `set_bytes` keeps the state's serialiser out of the way. Kafka's murmur2 partitioner, as all others use. With
`results` each clean event also gets a result by rule.
"""

import sys
from typing import Any

import msgspec
from quixstreams import Application
from quixstreams.state.rocksdb import RocksDBOptions

BOOTSTRAP, INPUT, PREFIX, GROUP, FOLDER = sys.argv[1:6]
RESULTS = sys.argv[6:] == ["results"]
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


def main() -> None:
    encode = msgspec.json.Encoder().encode
    decode = msgspec.json.Decoder(Envelope).decode
    app = Application(
        broker_address=BOOTSTRAP, consumer_group=GROUP, auto_offset_reset="earliest", processing_guarantee="exactly-once",
        state_dir=FOLDER, commit_interval=1.0, loglevel="INFO",
        rocksdb_options=RocksDBOptions(use_fsync=False, block_cache_size=64 << 20),
        producer_extra_config={
            "transactional.id": GROUP, "partitioner": "murmur2_random", "linger.ms": 20, "batch.size": 1 << 20,
        },
        consumer_extra_config={"check.crcs": False},
    )  # fmt: skip
    kinds = {
        "key_serializer": "bytes", "value_serializer": "bytes", "key_deserializer": "bytes", "value_deserializer": "bytes",
    }  # fmt: skip
    source = app.topic(INPUT, **kinds)
    clean, noise, dead = (app.topic(PREFIX + name, **kinds) for name in ("clean-events", "sink-noise", "dead-letter"))

    results = app.topic(f"{PREFIX}ai-results", **kinds) if RESULTS else None

    def decide(value: bytes, key: bytes, timestamp: int, headers: Any, state: Any) -> list[Any]:
        """Topic, key and value of each output; none of a duplicate."""
        try:
            envelope = decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return [(dead, key, value)]
        event_id, kind = envelope.event_id, envelope.event_type
        if state.get_bytes(event_id) is not None:
            return []
        state.set_bytes(event_id, b"1")
        if kind in NOISE:
            return [(noise, key, value)]
        if results is None:
            return [(clean, key, value)]
        result = Result(event_id, kind, CATEGORIES.get(kind, "other"), 1.0, "rule")
        return [(clean, key, value), (results, event_id.encode(), encode(result))]

    # A record goes through the whole pipeline before the next, so what is chosen for it can stand aside of its value.
    current: list[Any] = [clean, b""]

    def split(output: Any) -> bytes:
        current[:] = output[:2]
        return output[2]  # type: ignore[no-any-return]  # it comes through an untyped pipeline

    frame = app.dataframe(source).apply(decide, stateful=True, metadata=True, expand=True).apply(split)
    frame.to_topic(lambda value, key, timestamp, headers: current[0], key=lambda value: current[1])
    app.run()


if __name__ == "__main__":
    main()
