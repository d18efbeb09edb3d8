"""Aggregates: what a pane holds of the events of one hop, and how panes make a window. Pure.

A pane is a hop's share of an entity's events; a window is the sum of its panes. Everything here depends only on the
events and their order in the partition, never on how the input was cut into batches.

An event can be late for the older windows over its hop and in time for the newer ones. Such events are kept apart, by
how many windows they missed, so that a window never changes once the watermark has passed it, whenever it is written.
"""

import hashlib
from bisect import insort
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, cast

import msgspec

from app.logic.features import Feature, compile_feature
from app.logic.rules import BUILT_IN, compile_conditions
from app.settings_windows import AggregateSettings
from app.sources.paths import as_text, compile_path
from models.events import Event

__all__ = ["EPOCH", "MAX_LABELS", "Aggregate", "Pane", "Segment", "pack_time", "unpack_time"]

MAX_LABELS = 100
"""Labels counted by name in a pane; further ones are counted together."""
MAX_LABEL_CHARS = 64
MAX_NOTE_CHARS = 80
EPOCH = 1 << 62
"""Added to times in keys: window starts may lie before 1970, and unsigned numbers sort."""

Item = tuple[int, int, str, str]
"""Event time in ms, offset, label, note."""


class Segment(msgspec.Struct, array_like=True, gc=False):
    """Events of one entity and hop, added up."""

    events: int = 0
    first_ms: int = 0
    last_ms: int = 0
    last_offset: int = -1
    last_append_ms: int = 0
    """When Kafka appended the last event (by event time, then offset)."""
    counts: dict[str, int] = msgspec.field(default_factory=dict)
    other: int = 0
    sequence: list[Item] = msgspec.field(default_factory=list)
    """The latest, in order; see `Aggregate.trim`."""
    features: list[Any] = msgspec.field(default_factory=list)
    """One state for each feature of the aggregate; None: no value yet."""


class Pane(Segment, array_like=True, gc=False):
    """A hop. What is in the segment itself counts in all windows over it."""

    late: dict[int, Segment] | None = None
    """By how many windows they missed: events that count only in the newer ones."""
    checked_ms: int = -1
    """Event time at which intent rules last looked; -1: never."""


def pack_time(at_ms: int) -> bytes:
    return (at_ms + EPOCH).to_bytes(8, "big")


def unpack_time(raw: bytes) -> int:
    return int.from_bytes(raw, "big") - EPOCH


class Aggregate:
    """A compiled aggregate over a source.

    Raises:
        SettingsError: a condition, label, note or feature that can't be. Not retryable.
    """

    def __init__(self, settings: AggregateSettings, source: str) -> None:
        where = f"aggregate {settings.name}"
        self.name, self.source = settings.name, source
        self.size_ms, self.hop_ms, self.grace_ms = settings.size_ms, settings.hop_ms, settings.grace_ms
        self.panes = settings.size_ms // settings.hop_ms
        self.keep = settings.sequence
        self.features: list[Feature] = [compile_feature(f) for f in settings.features]
        self._values = [field_of(f.field, f"{where}, feature {f.name}") for f in settings.features]
        self._read = list(zip(self.features, self._values, strict=True))
        self._label = field_of(settings.label, f"{where}, label")
        self._plain_label = settings.label in BUILT_IN
        self._note = field_of(settings.note, f"{where}, note") if settings.note else None
        self._types = frozenset(settings.types)
        self._when = compile_conditions(settings.when, where) if settings.when else None
        self.takes_all = not self._types and self._when is None
        self.id = definition(settings)

    def takes(self, event: Event) -> bool:
        """Whether the event counts here."""
        if self._types and event.event_type not in self._types:
            return False
        return self._when is None or self._when(event)

    def label_of(self, event: Event) -> str:
        label = self._label(event)
        text = cast(str, label) if self._plain_label else as_text(label)
        return text if len(text) <= MAX_LABEL_CHARS else text[:MAX_LABEL_CHARS]

    def add(self, segment: Segment, event: Event, label: str, offset: int, append_ms: int) -> None:
        """Adds an event to a segment."""
        at_ms, events = event.event_time_ms, segment.events
        if not events:
            segment.first_ms = at_ms
            segment.features = [None] * len(self.features)
        elif at_ms < segment.first_ms:
            segment.first_ms = at_ms
        if at_ms > segment.last_ms or (at_ms == segment.last_ms and offset > segment.last_offset):
            segment.last_ms, segment.last_offset, segment.last_append_ms = at_ms, offset, append_ms
        segment.events = events + 1
        counts = segment.counts
        if label in counts:
            counts[label] += 1
        elif len(counts) < MAX_LABELS:
            counts[label] = 1
        else:
            segment.other += 1
        if self.keep:
            note = "" if self._note is None else as_text(self._note(event))[:MAX_NOTE_CHARS]
            item, sequence = (at_ms, offset, label, note), segment.sequence
            if sequence and item < sequence[-1]:
                insort(sequence, item)
            else:
                sequence.append(item)
            if len(sequence) > 4 * self.keep:
                self.trim(segment)
        for index, (feature, value_of) in enumerate(self._read):
            value = value_of(event)
            if value is not None:
                segment.features[index] = feature.add(segment.features[index], value, at_ms, offset)

    def trim(self, segment: Segment) -> None:
        """Cuts the sequence. The latest of a union are the latest of the latest of its parts."""
        sequence = segment.sequence
        if len(sequence) > self.keep:
            del sequence[: len(sequence) - self.keep]

    def total(self, panes: Iterable[tuple[int, Pane]]) -> Segment | None:
        """A window's sum.

        Args:
            panes: the place of each pane in the window (0: the window's first hop) and the pane, in order.

        Returns:
            None when nothing in them counts in this window. Not to be changed: it may be a pane itself.
        """
        parts: list[Segment] = []
        for place, pane in panes:
            if pane.events:
                parts.append(pane)
            if pane.late:
                missed = self.panes - 1 - place  # windows over this pane that are older than this one
                parts.extend(pane.late[key] for key in sorted(pane.late) if key <= missed)
        if len(parts) < 2:
            return parts[0] if parts else None
        whole = copied(parts[0])
        for part in parts[1:]:
            self._merge(whole, part)
        whole.sequence.sort()
        if len(whole.sequence) > self.keep:
            self.trim(whole)
        return whole

    def _merge(self, whole: Segment, part: Segment) -> None:
        whole.events += part.events
        if part.first_ms < whole.first_ms:
            whole.first_ms = part.first_ms
        last_ms = part.last_ms
        if last_ms > whole.last_ms or (last_ms == whole.last_ms and part.last_offset > whole.last_offset):
            whole.last_ms, whole.last_offset, whole.last_append_ms = last_ms, part.last_offset, part.last_append_ms
        counts = whole.counts
        for label, n in part.counts.items():
            counts[label] = counts.get(label, 0) + n
        whole.other += part.other
        whole.sequence += part.sequence
        for index, feature in enumerate(self.features):
            mine, more = whole.features[index], part.features[index]
            if more is not None:
                whole.features[index] = more if mine is None else feature.merge(mine, more)


def copied(part: Segment) -> Segment:
    """A segment to merge others into."""
    return Segment(
        part.events, part.first_ms, part.last_ms, part.last_offset, part.last_append_ms, part.counts.copy(), part.other,
        part.sequence.copy(), part.features.copy(),
    )  # fmt: skip


def field_of(name: str, where: str) -> Callable[[Event], object]:
    """A getter for a field of an event, named as conditions name it."""
    if name in BUILT_IN:
        return cast(Callable[[Event], object], attrgetter(name))
    compile_path(name, where)
    return lambda event: event.fields.get(name)


def definition(settings: AggregateSettings) -> bytes:
    """8 bytes that change with anything that panes depend on."""
    parts = settings.model_dump(mode="json", exclude={"grace_s", "name"})
    return hashlib.blake2b(f"{settings.name}\0{msgspec.json.encode(parts).decode()}".encode(), digest_size=8).digest()
