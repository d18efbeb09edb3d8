"""The same ingest on Quix Streams: exactly-once, ids in its RocksDB state with a changelog topic.

    quix_ingest.py BOOTSTRAP INPUT PREFIX GROUP FOLDER

Its state is kept by message key; copies of an event have the same key here, so an id is looked up under its key. Values
stay bytes, and `set_bytes` keeps the state's serialiser out of the way. Kafka's murmur2 partitioner, as all others use.
"""

import sys
from typing import Any

import msgspec
from quixstreams import Application
from quixstreams.state.rocksdb import RocksDBOptions

BOOTSTRAP, INPUT, PREFIX, GROUP, FOLDER = sys.argv[1:6]
NOISE = frozenset(("heartbeat", "debug"))


class Envelope(msgspec.Struct, gc=False):
    event_id: str
    event_type: str


def main() -> None:
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

    def decide(value: bytes, state: Any) -> Any:
        """The topic and the value; None for a duplicate."""
        try:
            envelope = decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return dead, value
        if state.get_bytes(envelope.event_id) is not None:
            return None
        state.set_bytes(envelope.event_id, b"1")
        return (noise if envelope.event_type in NOISE else clean), value

    targets: list[Any] = [clean]

    def split(pair: Any) -> bytes:
        targets[0] = pair[0]
        return pair[1]  # type: ignore[no-any-return]  # the pair comes through an untyped pipeline

    frame = app.dataframe(source).apply(decide, stateful=True)
    frame = frame.filter(lambda pair: pair is not None).apply(split)
    frame.to_topic(lambda value, key, timestamp, headers: targets[0])
    app.run()


if __name__ == "__main__":
    main()
