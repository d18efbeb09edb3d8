"""What must come out, recomputed from the input topic alone: own parsing, own windows, none of the product's code."""

import json
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.fault.suite.load import GRACE_S, HOP_S, SEQUENCE, SIZE_S
from tests.helpers.modelserver import category_of

__all__ = ["HOSTILE", "Place", "Truth", "Window", "recompute"]

Place = tuple[int, int]
"""Partition and offset in the input."""
HOSTILE = b"hostile"
"""Key of records of which only this is known: they are no events, for whatever reason."""
SIZE_MS, HOP_MS, GRACE_MS, AHEAD_MS = SIZE_S * 1000, HOP_S * 1000, GRACE_S * 1000, 600_000


@dataclass
class Window:
    """Events of one entity by time and offset, with their types."""

    steps: list[tuple[int, int, str]] = field(default_factory=list)

    def shown(self) -> dict[str, Any]:
        """As a record of agg-events has it."""
        steps = sorted(self.steps)
        return {
            "events": len(steps), "first_ms": steps[0][0], "last_ms": steps[-1][0],
            "counts": dict(Counter(kind for _, _, kind in steps)),
            "sequence": [(at_ms, kind) for at_ms, _, kind in steps][-SEQUENCE:],
            "cut": max(0, len(steps) - SEQUENCE),
        }  # fmt: skip


@dataclass
class Accepted:
    """The first record of an event id."""

    place: Place
    keyed: bool
    kind: str
    text: str
    crc: int
    places: set[Place] = field(default_factory=set)
    """All records of that id: of those without a key any may be first, for they hop."""


@dataclass
class Truth:
    """All that has to be there at the end."""

    records: int = 0
    events: dict[str, Accepted] = field(default_factory=dict)
    dead: dict[Place, tuple[str, bytes | None]] = field(default_factory=dict)
    """Reason and value of each record that is no event."""
    windows: dict[tuple[str, int], Window] = field(default_factory=dict)
    open: dict[tuple[str, int], Window] = field(default_factory=dict)
    late: Counter[Place] = field(default_factory=Counter)
    panes: dict[tuple[int, str, int], int] = field(default_factory=dict)
    """Partition, entity and hop -> events, of panes that an open window needs."""
    ends: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Partition -> the last record's offset and checksum."""

    def of_kind(self, *kinds: str) -> set[str]:
        return {name for name, event in self.events.items() if event.kind in kinds}


def recompute(records: Iterable[Any]) -> Truth:
    """Reads the input in order, as the product had to."""
    truth = Truth()
    timeline: dict[int, list[tuple[int, int, int, str, str]]] = defaultdict(list)
    for record in records:
        truth.records += 1
        truth.ends[record.partition] = (record.offset, zlib.crc32(record.value or b""))
        place = (record.partition, record.offset)
        event = parse(record.value)
        if isinstance(event, str):
            truth.dead[place] = ("" if record.key == HOSTILE else event, record.value)
            continue
        name = event["event_id"]
        known = truth.events.get(name)
        if known is not None:
            known.places.add(place)
            continue
        keyed, kind = bool(record.key), event["event_type"]
        text = event.get("payload", {}).get("message", "")
        truth.events[name] = Accepted(place, keyed, kind, text, zlib.crc32(record.value), {place})
        if keyed and kind != "heartbeat":
            entity = record.key.decode()
            timeline[record.partition].append((record.offset, event["event_time"], record.timestamp, entity, kind))
    for partition, events in timeline.items():
        _windows(truth, partition, events)
    return truth


def parse(value: bytes | None) -> dict[str, Any] | str:
    """The event, or the reason why it is none."""
    if value is None:
        return "null-value"
    if not value:
        return "empty-value"
    try:
        event = json.loads(value, parse_constant=_no_json)
    except (ValueError, RecursionError):
        return "invalid-json"
    if not isinstance(event, dict):
        return "not-an-object"
    if not all(name in event for name in ("event_id", "event_type", "event_time")):
        return "missing-field"
    return event


def _no_json(name: str) -> None:
    raise ValueError(f"{name} isn't JSON")


def _windows(truth: Truth, partition: int, events: list[tuple[int, int, int, str, str]]) -> None:
    """Every event against every window over it, in the order of the partition."""
    high, members, panes = -1, defaultdict[tuple[str, int], Window](Window), Counter[tuple[str, int]]()
    for offset, at_ms, append_ms, entity, kind in events:
        if at_ms > high:
            if at_ms > append_ms + AHEAD_MS:
                truth.late[partition, offset] += 1
                continue
            high = at_ms
        pane = at_ms - at_ms % HOP_MS
        starts = range(pane - SIZE_MS + HOP_MS, pane + 1, HOP_MS)
        missed = [start for start in starts if start + SIZE_MS <= high - GRACE_MS]
        for start in starts:
            if start not in missed:
                members[entity, start].steps.append((at_ms, offset, kind))
        if missed:
            truth.late[partition, offset] += 1
        if len(missed) < len(starts):
            panes[entity, pane] += 1
    for (entity, start), window in members.items():
        (truth.windows if start + SIZE_MS <= high - GRACE_MS else truth.open)[entity, start] = window
    for (entity, pane), count in panes.items():
        if pane + SIZE_MS > high - GRACE_MS:
            truth.panes[partition, entity, pane] = count


def answer(event: Accepted) -> tuple[str, str | None]:
    """Tier and category of an event's result; no category: any will do."""
    if event.kind == "message":
        return "deep", category_of(event.text)
    if event.kind == "note":
        return "light", None
    return "rule", "payment" if event.kind in ("payment", "refund") else "other"
