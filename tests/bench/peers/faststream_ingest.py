"""The same ingest as a FastStream batch subscriber; ids in memory only, at-least-once.

    faststream_ingest.py BOOTSTRAP INPUT PREFIX GROUP [results]

Batch subscriber and batch publish on aiokafka (its confluent broker starts a task a message), uvloop, acks=all, one
offset commit a batch after its outputs are acked. FastStream has no state of its own, so ids are lost when it ends.
Bodies are decoded by a decoder of the application and sent as bytes, so FastStream does no work that isn't needed. With
`results` each clean event also gets a result by rule.
"""

import asyncio
import gc
import logging
import sys
from typing import Any

import msgspec
import uvloop
from aiokafka.partitioner import murmur2
from faststream import AckPolicy, FastStream
from faststream.kafka import KafkaBroker, KafkaMessage, KafkaPublishMessage

BOOTSTRAP, INPUT, PREFIX, GROUP = sys.argv[1:5]
CLEAN, SINK, DEAD = f"{PREFIX}clean-events", f"{PREFIX}sink-noise", f"{PREFIX}dead-letter"
RESULTS = f"{PREFIX}ai-results" if sys.argv[5:] == ["results"] else ""
PARTITIONS = 4
CATEGORIES = {"payment": "payment", "refund": "payment", "order": "order", "cart": "order", "logistics": "order"}
NOISE = frozenset(("heartbeat", "debug"))
MAX_RECORDS = 2000
"""Keeps what one batch sends to one partition below a record batch of BATCH_BYTES."""
BATCH_BYTES = 1 << 20


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
decode_envelope = msgspec.json.Decoder(Envelope).decode
broker = KafkaBroker(
    BOOTSTRAP, acks="all", max_batch_size=BATCH_BYTES, max_request_size=4 << 20, allow_auto_create_topics=False,
    graceful_timeout=10, logger=None,
)  # fmt: skip
seen: set[str] = set()


async def decode(message: KafkaMessage) -> list[Envelope | None]:
    """The envelope of each record, or None where it is broken."""
    found: list[Envelope | None] = []
    for value in message.body:
        try:
            found.append(decode_envelope(value))
        except (msgspec.DecodeError, UnicodeDecodeError):
            found.append(None)
    return found


@broker.subscriber(
    INPUT, group_id=GROUP, batch=True, max_records=MAX_RECORDS, auto_offset_reset="earliest", ack_policy=AckPolicy.NACK_ON_ERROR,
    no_reply=True, decoder=decode, max_partition_fetch_bytes=1 << 20, fetch_max_bytes=8 << 20, check_crcs=False,
)  # fmt: skip
async def ingest(envelopes: list[Any], message: KafkaMessage) -> None:
    outputs: dict[tuple[str, int], list[KafkaPublishMessage]] = {}
    for record, envelope in zip(message.raw_message, envelopes, strict=True):
        if envelope is None:
            topic = DEAD
        elif envelope.event_id in seen:
            continue
        else:
            seen.add(envelope.event_id)
            topic = SINK if envelope.event_type in NOISE else CLEAN
            if RESULTS and topic is CLEAN:
                kind = envelope.event_type
                result = Result(envelope.event_id, kind, CATEGORIES.get(kind, "other"), 1.0, "rule")
                key = envelope.event_id.encode()
                place = (RESULTS, (murmur2(key) & 0x7FFFFFFF) % PARTITIONS)
                outputs.setdefault(place, []).append(KafkaPublishMessage(encode(result), key=key))
        # Input and outputs have the same partitions and partitioner: a key's partition is the record's.
        outputs.setdefault((topic, record.partition), []).append(KafkaPublishMessage(record.value, key=record.key))
    acks = [
        await broker.publish_batch(*messages, topic=topic, partition=partition, no_confirm=True)
        for (topic, partition), messages in outputs.items()
    ]
    await asyncio.gather(*acks)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    gc.set_threshold(100_000, 50, 100)
    uvloop.run(FastStream(broker, logger=None).run())
