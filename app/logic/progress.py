"""How far event time has come in the partitions that events come from: what lanes tell the stages behind them. Pure.

Each partition of a stage that passes events on tells all partitions of the topic behind it, in records of that topic: what
follows such a record isn't older than it says, except for events that are late at their source already. So an order of
event times is kept over any number of hops, and silence never counts as progress.
"""

from collections.abc import Iterable, Mapping

import msgspec

from models.events import Headers, Record

__all__ = ["Progress", "Said", "joined", "progress_headers", "progress_of"]

HEADER = "headrace.progress"


class Said(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """What a partition said last."""

    high_ms: int = -1
    """The highest event time that counts; -1: it had no event yet."""
    idle_ms: int = -1
    """When it said so while it was read to its end and quiet, by its worker's clock; -1: it wasn't."""


class Progress(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """One such record: events of `source` that `origin` (stage and partition) passes on."""

    source: str
    origin: str
    said: Said


UNKNOWN = Said()

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Progress).decode


def joined(origins: Iterable[str], said: Mapping[str, Said]) -> Said:
    """Several partitions as one.

    The slowest one counts. Idle ones don't hold up those that aren't, but nothing gets ahead of the moment when they last
    said that they are idle: when their worker dies, all wait. When all are idle, their clocks go on and the foremost counts.
    One that hasn't said anything yet holds up all.
    """
    parts = [said.get(origin) for origin in origins]
    known = [part for part in parts if part is not None]
    if not known or len(known) < len(parts):
        return UNKNOWN
    asleep = min((part.idle_ms for part in known if part.idle_ms >= 0), default=-1)
    awake = [part.high_ms for part in known if part.idle_ms < 0]
    if not awake:
        return Said(max(part.high_ms for part in known), asleep)
    slowest = min(awake)
    return Said(slowest if asleep < 0 else min(slowest, asleep))


def progress_headers(progress: Progress) -> Headers:
    """The headers of its record, which has neither key nor value."""
    return ((HEADER, _encode(progress)),)


def progress_of(record: Record) -> Progress | None:
    """What a record without a key says; None: it is none of ours."""
    for name, value in record.headers:
        if name == HEADER and value is not None:
            try:
                return _decode(value)
            except msgspec.MsgspecError:
                return None
    return None
