"""Dead letters: what one says of itself, and the record that it becomes when it is sent back.

A record that is sent back has its key, value and headers as they were received, without what the dead letter topic added,
and two headers of ours: how often it was sent back, and where it was read the first time.
"""

import hashlib
from collections.abc import Set
from dataclasses import dataclass, field

import msgspec

from models.events import Headers, Record

__all__ = ["ATTEMPT", "ORIGIN", "DeadLetter", "Selection", "examine", "position_of"]

ATTEMPT, ORIGIN = "headrace.redrive-attempt", "headrace.redrive-origin"

TOO_LARGE = "output-too-large"
TOLD_IDS = 20
"""An audit record is read by people."""
_CONNECT = "__connect.errors."
_ADDED = {
    *(f"{_CONNECT}{name}" for name in ("topic", "partition", "offset", "connector.name", "task.id", "stage", "class.name")),
    f"{_CONNECT}exception.class.name", f"{_CONNECT}exception.message",
    "headrace.reason", "headrace.field", "headrace.stage",
}  # fmt: skip
_ADDED_TO_OUTPUT = {"headrace.reason", "headrace.field", "headrace.stage", f"{_CONNECT}exception.message"}
"""What `Delivery` adds to an output that is too large: it has no place that it was read from."""


class _Ids(msgspec.Struct):
    event_id: str | int | None = None
    id: str | int | None = None


_ids = msgspec.json.Decoder(_Ids).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A record of the dead letter topic."""

    partition: int
    offset: int
    at_ms: int
    """When it became a dead letter."""
    key: bytes | None
    value: bytes | None
    reason: str
    stage: str
    field: str
    message: str
    topic: str
    """Where it is sent back to: what the stage that failed reads; empty when it can't be."""
    read_at: str
    """Where it was read, as `topic/partition/offset`; empty for what a stage made."""
    topic_partition: int | None
    """The partition that it was read from; None: by its key."""
    attempt: int
    """How often it was sent back before."""
    headers: Headers
    """Of the record that is sent back."""

    @property
    def position(self) -> str:
        """Names it, as `partition/offset` of the dead letter topic."""
        return f"{self.partition}/{self.offset}"

    @property
    def is_output(self) -> bool:
        """A stage made it, and it was too large for its topic."""
        return self.reason == TOO_LARGE

    @property
    def event_id(self) -> str:
        """The event's id where the value has one at its top; else empty."""
        try:
            ids = _ids(self.value or b"")
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            return ""
        found = ids.event_id if ids.event_id is not None else ids.id
        return "" if found is None else str(found)


def position_of(text: str) -> tuple[int, int] | None:
    """Partition and offset of a position as `DeadLetter.position` has it; None where the text is none."""
    partition, _, offset = text.partition("/")
    if not (partition.isdecimal() and offset.isdecimal()) or len(partition) > 6 or len(offset) > 18:
        return None
    return int(partition), int(offset)


def examine(record: Record, targets: Set[str]) -> DeadLetter:
    """What a record of the dead letter topic says.

    Args:
        record: as it was read.
        targets: the topics that may be written: those that stages read, and our outputs.
    """
    last = {name: value for name, value in record.headers if value is not None}
    reason = _text(last.get("headrace.reason"))
    too_large = reason == TOO_LARGE
    topic = _text(last.get("headrace.field" if too_large else f"{_CONNECT}topic"))
    partition = None if too_large else _number(last.get(f"{_CONNECT}partition"))
    attempt = _number(last.get(ATTEMPT)) or 0
    read_at = "" if too_large or not topic else f"{topic}/{partition}/{_text(last.get(f'{_CONNECT}offset'))}"
    origin = last.get(ORIGIN) or read_at.encode()
    kept = [header for header in _received(record, too_large) if header[0] not in (ATTEMPT, ORIGIN)]
    return DeadLetter(
        partition=record.partition, offset=record.offset, at_ms=record.timestamp, key=record.key, value=record.value,
        reason=reason, stage=_text(last.get("headrace.stage")), field=_text(last.get("headrace.field")),
        message=_text(last.get(f"{_CONNECT}exception.message")), topic=topic if reason and topic in targets else "",
        read_at=read_at, topic_partition=partition, attempt=attempt,
        headers=[*kept, (ATTEMPT, b"%d" % (attempt + 1)), (ORIGIN, origin)],
    )  # fmt: skip


def _received(record: Record, too_large: bool) -> Headers:
    """The headers without those that were added last. A producer's own of the same name stand in front, and stay."""
    left, added = list(record.headers), set(_ADDED_TO_OUTPUT if too_large else _ADDED)
    while left and left[-1][0] in added:
        added.discard(left.pop()[0])
    return left


def _text(raw: bytes | None) -> str:
    return (raw or b"").decode("utf-8", "replace")


def _number(raw: bytes | None) -> int | None:
    return int(raw) if raw is not None and raw.isdigit() and len(raw) <= 9 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which dead letters are meant. Empty sets and None let all through."""

    reasons: Set[str] = field(default_factory=frozenset)
    stages: Set[str] = field(default_factory=frozenset)
    fields: Set[str] = field(default_factory=frozenset)
    """Fields at fault; empty text is the whole record."""
    topics: Set[str] = field(default_factory=frozenset)
    """Where they'd be sent back to; empty text: where they can't be."""
    ids: Set[str] = field(default_factory=frozenset)
    """Event ids, or positions as `partition/offset`."""
    since_ms: int | None = None
    until_ms: int | None = None
    """Not this time any more."""

    @property
    def positions(self) -> list[tuple[int, int]] | None:
        """Partitions and offsets, where nothing but positions is named: only these need to be read."""
        found = [place for each in self.ids if (place := position_of(each)) is not None]
        return sorted(found) if found and len(found) == len(self.ids) else None

    @property
    def told(self) -> dict[str, object]:
        """What it asks for, for an audit record. Of many ids their number and hash, SHA-256 of the sorted lines."""
        sets = {"reasons": self.reasons, "stages": self.stages, "fields": self.fields, "topics": self.topics}
        found: dict[str, object] = {name: sorted(each) for name, each in sets.items() if each}
        found |= {n: at for n, at in (("since_ms", self.since_ms), ("until_ms", self.until_ms)) if at is not None}
        if len(self.ids) > TOLD_IDS:
            lines = "\n".join(sorted(self.ids)).encode("utf-8", "surrogatepass")
            found["ids"] = {"count": len(self.ids), "sha256": hashlib.sha256(lines).hexdigest()}
        elif self.ids:
            found["ids"] = sorted(self.ids)
        return found

    def takes(self, letter: DeadLetter) -> bool:
        return (
            (not self.reasons or letter.reason in self.reasons)
            and (not self.stages or letter.stage in self.stages)
            and (not self.fields or letter.field in self.fields)
            and (not self.topics or letter.topic in self.topics)
            and (self.since_ms is None or letter.at_ms >= self.since_ms)
            and (self.until_ms is None or letter.at_ms < self.until_ms)
            and (not self.ids or letter.position in self.ids or letter.event_id in self.ids)
        )
