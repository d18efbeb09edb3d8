"""Closes windows that the watermark has passed, a bounded number at a time.

A window's panes lie side by side in State, by hop and then entity, so closing reads and deletes what closes and nothing
else. How far it got is in State too (`Closing`): the next transaction, also that of another worker, goes on there.
"""

from typing import Any

import msgspec

from agents.panes import Desk, Slot
from agents.rows import Rows
from agents.verdicts import Verdicts
from app.delivery.maps import Map
from app.logic.aggregates import Aggregate, Pane, pack_time, unpack_time
from app.logic.windows import first_open
from tables.panes import FIRED, PANES, Closing

__all__ = ["close", "due"]

_names = msgspec.msgpack.Decoder(list[str]).decode
_pane = msgspec.msgpack.Decoder(Pane).decode

FIRED_AT = -1
"""In place of a pane's place: the rules that fired."""
KEY_BYTES = 17
"""Before the entity in a row: map, aggregate, time."""


def due(aggregate: Aggregate, closing: Closing, high_ms: int) -> bool:
    """Whether windows may be due. Cheap: it doesn't look whether there are any."""
    if closing.next_ms is None or closing.after is not None:
        return True
    return closing.next_ms < first_open(high_ms - aggregate.grace_ms, aggregate.size_ms, aggregate.hop_ms)


def close(rows: Rows, verdicts: Verdicts, partition: int, slot: Slot, desk: Desk, closing: Closing, limit: int) -> int:
    """Closes up to `limit` windows, and moves `closing` on.

    Returns:
        How many it looked at. Fewer than `limit`: nothing is due any more.
    """
    aggregate = slot.aggregate
    bound = first_open(slot.high_ms - aggregate.grace_ms, aggregate.size_ms, aggregate.hop_ms)
    done = 0
    while done < limit:
        if closing.after is None:
            start = next_start(rows, aggregate, closing.next_ms)
            if start is None or start >= bound:
                closing.next_ms = bound if closing.next_ms is None else max(bound, closing.next_ms)
                break
            closing.next_ms = start
        done += _close_some(rows, verdicts, partition, slot, desk, closing, limit - done)
    return done


def next_start(rows: Rows, aggregate: Aggregate, at_least: int | None) -> int | None:
    """The first window from `at_least` on that holds a pane; None when there are no panes."""
    start = aggregate.id + (b"" if at_least is None else pack_time(at_least))
    for key, _ in rows.scan(PANES, aggregate.id, start):
        first = unpack_time(key[8:16]) - (aggregate.panes - 1) * aggregate.hop_ms
        return first if at_least is None else max(first, at_least)
    return None


def _close_some(
    rows: Rows, verdicts: Verdicts, partition: int, slot: Slot, desk: Desk, closing: Closing, limit: int
) -> int:
    """Windows of one start, from one entity on."""
    aggregate = slot.aggregate
    start_ms = closing.next_ms
    assert start_ms is not None
    groups, whole = _group(rows, aggregate, start_ms, closing.after, limit)
    out, first = rows.out, aggregate.id + pack_time(start_ms)
    total = aggregate.total
    held = [desk.hops[slot.index].get(start_ms + place * aggregate.hop_ms, {}) for place in range(aggregate.panes)]
    close_one = verdicts.closer(out, partition, aggregate, start_ms)
    for entity in sorted(groups)[:limit]:
        fired: list[str] = []
        panes: list[tuple[int, Pane]] = []
        for place, raw in groups[entity]:
            if place == FIRED_AT:
                fired = _names(raw)
                out.delete(FIRED, first + entity)
                continue
            known = held[place].get(entity)
            panes.append((place, _pane(raw) if known is None or known.pane is None else known.pane))
            if place == 0:  # the last window over this pane
                out.delete(PANES, first + entity)
                desk.drop(slot, start_ms, entity)
                closing.panes -= 1
        window = total(panes, start_ms)
        if window is not None:
            close_one(entity, window, fired)
        closing.after = entity
    if whole and len(groups) <= limit:
        closing.next_ms, closing.after = start_ms + aggregate.hop_ms, None
    return min(len(groups), limit)


def _group(
    rows: Rows, aggregate: Aggregate, start_ms: int, after: bytes | None, limit: int
) -> tuple[dict[bytes, list[tuple[int, bytes]]], bool]:
    """What is stored for the next entities of a window, in the order of its panes, and whether these are all.

    Each pane is read up to the same number of rows; entities behind the last one of a pane that has more wait.
    """
    places = [(place, start_ms + place * aggregate.hop_ms) for place in range(aggregate.panes)]
    size = max(64, 2 * limit // aggregate.panes)
    groups: dict[bytes, list[tuple[int, bytes]]] = {}
    bound: bytes | None = None
    maps: list[tuple[Map[Any], int, int]] = [(PANES, place, at_ms) for place, at_ms in places]
    for of, place, at_ms in (*maps, (FIRED, FIRED_AT, start_ms)):
        prefix = aggregate.id + pack_time(at_ms)
        page = rows.page(of, prefix, prefix if after is None else prefix + after + b"\x00", size)
        for row, raw in page:
            entity = row[KEY_BYTES:]
            if entity in groups:
                groups[entity].append((place, raw))
            else:
                groups[entity] = [(place, raw)]
        if len(page) == size:
            last = page[-1][0][KEY_BYTES:]
            bound = last if bound is None else min(bound, last)
    if bound is None:
        return groups, True
    return {entity: found for entity, found in groups.items() if entity <= bound}, False
