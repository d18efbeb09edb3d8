"""What windows give: `agg-events` and `agent-trigger`, both JSON keyed by the entity."""

from typing import Literal

import msgspec

from models.results import Source

__all__ = ["Incident", "Number", "Severity", "Step", "Window"]

Number = int | float
Severity = Literal["low", "medium", "high", "critical"]


class Step(msgspec.Struct, gc=False, omit_defaults=True):
    """One event in a window's sequence."""

    at_ms: int
    label: str
    note: str = ""


class Window(msgspec.Struct, gc=False):
    """A closed window on `agg-events`: final, written once."""

    id: str
    """Entity, aggregate and start, joined by `@`."""
    aggregate: str
    entity: str
    start_ms: int
    end_ms: int
    """Not in the window any more."""
    events: int
    first_ms: int
    last_ms: int
    """Event times of the first and the last event."""
    counts: dict[str, int]
    """By label."""
    other: int
    """Events of labels beyond the first 100 of a hop."""
    features: dict[str, Number | None]
    estimated: list[str]
    """The distinct features that are estimates."""
    sequence: list[Step]
    """By event time, then offset."""
    cut: int
    """Events before those of the sequence."""
    intents: list[str]
    """Rules that fired, now or earlier."""
    source: Source
    """The last event's record."""
    created_ms: int


class Incident(msgspec.Struct, kw_only=True, gc=False):
    """A rule asks for an investigation: `agent-trigger`."""

    id: str
    """The window's id and the rule, joined by `@`: one incident for each window and rule."""
    kind: str
    severity: Severity
    rule: str
    aggregate: str
    entity: str
    start_ms: int
    end_ms: int
    open: bool
    """The window was still open: the evidence is what it held so far."""
    events: int
    counts: dict[str, int]
    features: dict[str, Number | None]
    sequence: list[Step]
    """The latest 20 steps."""
    source: Source
    """The last event's record."""
    created_ms: int
