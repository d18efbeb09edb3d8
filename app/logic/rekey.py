"""The hop by event_id: a raw record inside a record of ours, with all that a source needs to read it again."""

import msgspec

from models.events import Headers, Received, Record

__all__ = ["rekey_headers", "unwrap"]

ENVELOPE = "headrace.rekeyed"


class Hop(msgspec.Struct, array_like=True):
    """What a raw record had beside its value."""

    source: str
    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    headers: list[tuple[str, bytes | None]]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Hop).decode


def rekey_headers(record: Record, source: str) -> Headers:
    """One header that holds the rest of the raw record; its own headers travel inside, so none can pose as ours."""
    hop = Hop(source, record.topic, record.partition, record.offset, record.timestamp, record.key, list(record.headers))
    return ((ENVELOPE, _encode(hop)),)


def unwrap(record: Record) -> tuple[Record, str]:
    """The raw record as its source had it (topic, partition, offset, time, key, headers), and the source's name.

    A record that isn't ours comes back as it is, with an empty name.
    """
    for name, value in record.headers:
        if name == ENVELOPE and value is not None:
            try:
                hop = _decode(value)
            except msgspec.MsgspecError:
                return record, ""
            raw = Received(
                hop.topic, hop.partition, hop.offset, hop.timestamp_ms, hop.key, record.value, tuple(hop.headers)
            )
            return raw, hop.source
    return record, ""
