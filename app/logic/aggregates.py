"""Aggregates: what a pane holds of the events of one hop, and how panes make a window. Pure.

A pane is a hop's share of an entity's events; a window is the sum of its panes. Everything here depends only on the
events and their order in the partition, never on how the input was cut into batches.

An event can be late for the older windows over its hop and in time for the newer ones. Such events are kept apart, by
how many windows they missed, so that a window never changes once the watermark has passed it, whenever it is written.
"""

import hashlib
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, TypeAlias, cast

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
Entry: TypeAlias = tuple[int, int, str] | tuple[int, int, str, str]
"""An item as a pane has it: with the time since the pane's start, and a note only where the aggregate has one."""


Add: TypeAlias = "Callable[[Segment, list[Entry], Event, int, int, int], str]"


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
        values = [field_of(f.field, f"{where}, feature {f.name}") for f in settings.features]
        self._read = [(place, f.add, value) for place, (f, value) in enumerate(zip(self.features, values, strict=True))]
        self._label = field_of(settings.label, f"{where}, label")
        self._by_type = settings.label == "event_type"
        self._note = field_of(settings.note, f"{where}, note") if settings.note else None
        self._types = frozenset(settings.types)
        self._when = compile_conditions(settings.when, where) if settings.when else None
        self.takes_all = not self._types and self._when is None
        self.id = definition(settings)
        self.add: Add = self._adder()
        """Adds an event to a segment; returns its label. Its entry goes to a list of new ones, see `pack`.

        Its arguments are segment, new entries, event, offset, append time, and the start of the pane.
        """

    def takes(self, event: Event) -> bool:
        """Whether the event counts here."""
        if self._types and event.event_type not in self._types:
            return False
        return self._when is None or self._when(event)

    def _adder(self) -> "Add":
        """`add`, with all that it needs bound once: it runs for every event."""
        keep, read_note, label_of, plain = self.keep, self._note, self._label, self._by_type
        reads, trim = self._read, self.trim

        def add(segment: Segment, fresh: list[Entry], event: Event, offset: int, append_ms: int, pane_ms: int) -> str:
            at_ms, events = event.event_time_ms, segment.events
            if not events:
                segment.first_ms = at_ms
                if reads:
                    segment.features = [None] * len(reads)
            elif at_ms < segment.first_ms:
                segment.first_ms = at_ms
            if at_ms > segment.last_ms or (at_ms == segment.last_ms and offset > segment.last_offset):
                segment.last_ms, segment.last_offset, segment.last_append_ms = at_ms, offset, append_ms
            segment.events = events + 1
            label: Any = event.event_type if plain else label_of(event)
            counts = segment.counts
            if type(label) is str and label in counts:  # those in there are cut already
                counts[label] += 1
            else:
                label = (label if type(label) is str else as_text(label))[:MAX_LABEL_CHARS]
                if label in counts or len(counts) < MAX_LABELS:
                    counts[label] = counts.get(label, 0) + 1
                else:
                    segment.other += 1
            if keep:
                after_ms = at_ms - pane_ms
                if read_note is None:
                    fresh.append((after_ms, offset, label))
                else:
                    fresh.append((after_ms, offset, label, as_text(read_note(event))[:MAX_NOTE_CHARS]))
                kept = segment.kept = segment.kept + 1
                if kept >= 2 * keep:
                    trim(segment, fresh)
            if reads:
                features = segment.features
                for place, add_to, value_of in reads:
                    value = value_of(event)
                    if value is not None:
                        features[place] = add_to(features[place], value, at_ms, offset)
            return cast(str, label)

        return add

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

    def total(self, panes: Iterable[tuple[int, Pane]], start_ms: int) -> Window | None:
        """A window's sum.

        Args:
            panes: the place of each pane in the window (0: the window's first hop) and the pane, in order.
            start_ms: the window's start.

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
                if part.kept:
                    whole.sequence += self._items(part, pane_ms)
        if whole is not None:
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
