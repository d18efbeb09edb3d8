"""An entity's windows that aren't closed, as they stand: for people. Reads a few keys a hop, and changes nothing."""

from agents.verdicts import entity_text, estimates, shown, window_id
from app.delivery.state import View
from app.logic.aggregates import Aggregate, Pane, pack_time, unpack_time
from models.results import Source
from models.windows import Step, Window
from tables.panes import CLOSING, FIRED, PANES, Closing

__all__ = ["open_windows"]

MAX_HOPS = 2000
"""Hops of an aggregate that are looked at: each is a seek of some microseconds. A day of 60 s hops has 1440."""


def open_windows(view: View, aggregates: list[Aggregate], topic: str, entity: bytes) -> list[Window]:
    """The windows of an entity that hold something and aren't closed, the oldest first.

    Args:
        view: the State of one partition.
        aggregates: those of the stage.
        topic: the stage's input.
        entity: the record key that its events have, or the entity's bytes.
    """
    found = [
        window
        for aggregate in aggregates
        for start_ms, panes in sorted(_panes(view, aggregate, entity).items())
        if (window := _window(view, aggregate, topic, entity, start_ms, panes)) is not None
    ]
    return sorted(found, key=lambda window: (window.start_ms, window.aggregate))


def _panes(view: View, aggregate: Aggregate, entity: bytes) -> dict[int, list[tuple[int, Pane]]]:
    """By the start of each window that isn't closed: the places and panes in it."""
    closing = view.get(CLOSING, f"{aggregate.name}@{aggregate.id.hex()}".encode())
    found: dict[int, list[tuple[int, Pane]]] = {}
    for at_ms, pane in _held(view, aggregate, entity):
        for place in range(aggregate.panes):
            start_ms = at_ms - place * aggregate.hop_ms
            if closing is None or not _closed(closing, start_ms, entity):
                found.setdefault(start_ms, []).append((place, pane))
    return found


def _held(view: View, aggregate: Aggregate, entity: bytes) -> list[tuple[int, Pane]]:
    """The entity's panes, the oldest first. Panes lie by hop and then entity, so this goes from hop to hop."""
    found: list[tuple[int, Pane]] = []
    after = b""
    for _ in range(MAX_HOPS):
        prefix = PANES.prefix + aggregate.id
        key = next((row[len(PANES.prefix) :] for row, _ in view.scan_rows(prefix, prefix + after)), None)
        if key is None:
            break
        at_ms = unpack_time(key[8:16])
        pane = view.get(PANES, aggregate.id + pack_time(at_ms) + entity)
        if pane is not None:
            found.append((at_ms, pane))
        after = pack_time(at_ms + 1)
    return found


def _closed(closing: Closing, start_ms: int, entity: bytes) -> bool:
    if closing.next_ms is None or start_ms > closing.next_ms:
        return False
    return start_ms < closing.next_ms or (closing.after is not None and entity <= closing.after)


def _window(
    view: View, aggregate: Aggregate, topic: str, entity: bytes, start_ms: int, panes: list[tuple[int, Pane]]
) -> Window | None:
    window = aggregate.total(sorted(panes, key=lambda each: each[0]), start_ms)
    if window is None:
        return None
    sequence = [Step(at_ms, label, note) for at_ms, _, label, note in window.sequence]
    return Window(
        window_id(aggregate, entity, start_ms), aggregate.name, entity_text(entity), start_ms,
        start_ms + aggregate.size_ms, window.events, window.first_ms, window.last_ms, window.counts, window.other,
        shown(aggregate, window), estimates(aggregate, window), sequence,
        window.events - len(sequence) if aggregate.keep else 0,
        view.get(FIRED, aggregate.id + pack_time(start_ms) + entity) or [],
        Source(topic, view.partition, window.last_offset), 0,
    )  # fmt: skip
