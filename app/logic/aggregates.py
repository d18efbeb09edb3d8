"""Aggregates: what a pane holds of the events of one hop, and how panes make a window. Pure.

A pane is a hop's share of an entity's events; a window is the sum of its panes. Everything here depends only on the
events and their order in the partition, never on how the input was cut into batches.

An event can be late for the older windows over its hop and in time for the newer ones. Such events are kept apart, by
how many windows they missed, so that a window never changes once the watermark has passed it, whenever it is written.
"""

import hashlib
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, cast

import msgspec

from app.logic.features import Feature, compile_feature
from app.logic.rules import BUILT_IN, compile_conditions
from app.settings_windows import AggregateSettings
from app.sources.paths import as_text, compile_path
from models.events import Event

__all__ = ["EPOCH", "MAX_LABELS", "Aggregate", "Entry", "Item", "Pane", "Segment", "Window", "pack_time", "unpack_time"]

_encode = msgspec.msgpack.Encoder().encode
_short_entries = msgspec.msgpack.Decoder(list[tuple[int, int, str]]).decode
_long_entries = msgspec.msgpack.Decoder(list[tuple[int, int, str, str]]).decode
ARRAY = b"\xdd"
"""msgpack's head of a list of up to 2^32 items, whose number follows in 4 bytes."""

MAX_LABELS = 100
"""Labels counted by name in a pane; further ones are counted together."""
MAX_LABEL_CHARS = 64
MAX_NOTE_CHARS = 80
EPOCH = 1 << 62
"""Added to times in keys: window starts may lie before 1970, and unsigned numbers sort."""

Item = tuple[int, int, str, str]
"""Event time in ms, offset, label, note."""
Entry = tuple[int, int, str] | tuple[int, int, str, str]
"""An item as a pane has it: with the time since the pane's start, and a note only where the aggregate has one."""


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
    kept: int = 0
    """Entries in the sequence."""
    sequence: bytes = b""
    """The latest, as they came: entries in msgpack, one behind the other, so that more are added without reading these.
    See `Aggregate.trim`."""
    features: list[Any] = msgspec.field(default_factory=list)
    """One state for each feature of the aggregate; None: no value yet."""


class Pane(Segment, array_like=True, gc=False):
    """A hop. What is in the segment itself counts in all windows over it."""

    late: dict[int, Segment] | None = None
    """By how many windows they missed: events that count only in the newer ones."""
    checked_ms: int = -1
    """Event time at which intent rules last looked; -1: never."""


class Window(msgspec.Struct, gc=False):
    """The sum of a window's panes."""

    events: int
    first_ms: int
    last_ms: int
    last_offset: int
    last_append_ms: int
    counts: dict[str, int]
    other: int
    features: list[Any]
    sequence: list[Item]
    """The latest, by event time, then offset."""


def pack_time(at_ms: int) -> bytes:
    return (at_ms + EPOCH).to_bytes(8, "big")


def unpack_time(raw: bytes) -> int:
    return int.from_bytes(raw, "big") - EPOCH


class Aggregate:
    """A compiled aggregate.

    Args:
        settings: its settings.
        sources: the names of the sources that it is over.

    Raises:
        SettingsError: a condition, label, note or feature that can't be. Not retryable.
    """

    def __init__(self, settings: AggregateSettings, sources: list[str]) -> None:
        where = f"aggregate {settings.name}"
        self.name, self.sources = settings.name, sources
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

    def add(
        self, segment: Segment, fresh: list[Entry], event: Event, label: str, offset: int, append_ms: int, pane_ms: int
    ) -> None:
        """Adds an event to a segment of the pane that starts at `pane_ms`; its entry goes to `fresh`, see `pack`."""
        at_ms, events = event.event_time_ms, segment.events
        if not events:
            segment.first_ms = at_ms
            if self._read:
                segment.features = [None] * len(self._read)
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
            if self._note is None:
                fresh.append((at_ms - pane_ms, offset, label))
            else:
                fresh.append((at_ms - pane_ms, offset, label, as_text(self._note(event))[:MAX_NOTE_CHARS]))
            segment.kept += 1
            if segment.kept >= 2 * self.keep:
                self.trim(segment, fresh)
        if self._read:
            features = segment.features
            for index, (feature, value_of) in enumerate(self._read):
                value = value_of(event)
                if value is not None:
                    features[index] = feature.add(features[index], value, at_ms, offset)

    def trim(self, segment: Segment, fresh: list[Entry]) -> None:
        """Cuts the sequence to the latest. Those of a union are the latest of the latest of its parts.

        Called whenever twice as many are kept: by the events alone, so that State doesn't depend on batches.
        """
        entries = sorted([*self._entries(segment.sequence, segment.kept - len(fresh)), *fresh])[-self.keep :]
        fresh.clear()
        segment.kept, segment.sequence = len(entries), packed(entries)

    @staticmethod
    def pack(segment: Segment, fresh: list[Entry]) -> None:
        """Puts new entries behind the others, to be stored."""
        if fresh:
            segment.sequence += packed(fresh)
            fresh.clear()

    def _entries(self, sequence: bytes, count: int) -> list[Entry]:
        """Decodes `count` packed entries."""
        decode: Callable[[bytes], Any] = _short_entries if self._note is None else _long_entries
        return cast(list[Entry], decode(ARRAY + count.to_bytes(4, "big") + sequence)) if count else []

    def total(
        self, panes: Iterable[tuple[int, Pane]], start_ms: int, with_sequence: bool = True
    ) -> Window | None:  # fmt: skip
        """A window's sum.

        Args:
            panes: the place of each pane in the window (0: the window's first hop) and the pane, in order.
            start_ms: the window's start.
            with_sequence: False: the sequence isn't asked for, and left empty.

        Returns:
            None when nothing in them counts in this window. Its counts and features are not to be changed.
        """
        whole: Window | None = None
        parts = 0
        for place, pane in panes:
            pane_ms = start_ms + place * self.hop_ms
            segments: list[Segment] = [pane] if pane.events else []
            if pane.late:
                missed = self.panes - 1 - place  # windows over this pane that are older than this one
                segments += [pane.late[key] for key in sorted(pane.late) if key <= missed]
            for part in segments:
                parts += 1
                if whole is None:
                    whole = Window(
                        part.events, part.first_ms, part.last_ms, part.last_offset, part.last_append_ms, part.counts,
                        part.other, part.features, [],
                    )  # fmt: skip
                else:
                    if parts == 2:  # what is a pane's own until here is changed from here on
                        whole.counts, whole.features = whole.counts.copy(), whole.features.copy()
                    self._merge(whole, part)
                if with_sequence and part.kept:
                    whole.sequence += self._items(part, pane_ms)
        if whole is not None and with_sequence:
            whole.sequence.sort()
            if len(whole.sequence) > self.keep:
                del whole.sequence[: len(whole.sequence) - self.keep]
        return whole

    def _items(self, part: Segment, pane_ms: int) -> list[Item]:
        entries: list[Any] = self._entries(part.sequence, part.kept)
        if self._note is None:
            return [(pane_ms + after_ms, offset, label, "") for after_ms, offset, label in entries]
        return [(pane_ms + after_ms, offset, label, note) for after_ms, offset, label, note in entries]

    def _merge(self, whole: Window, part: Segment) -> None:
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
        for index, feature in enumerate(self.features):
            mine, more = whole.features[index], part.features[index]
            if more is not None:
                whole.features[index] = more if mine is None else feature.merge(mine, more)


def packed(entries: list[Entry]) -> bytes:
    """Entries in msgpack, one behind the other."""
    raw = _encode(entries)
    count = len(entries)
    return raw[1 if count < 16 else 3 if count < 1 << 16 else 5 :]  # without the head of the list


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
