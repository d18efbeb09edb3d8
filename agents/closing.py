"""Closes windows that the watermark has passed, a bounded number at a time.

A window's panes lie side by side in State, by hop and then entity, so closing reads and deletes what closes and nothing
else. How far it got is in State too (`Closing`): the next transaction, also that of another worker, goes on there.
"""

import heapq
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter

import msgspec

from agents.rows import Rows
from agents.verdicts import Verdicts
from app.logic.aggregates import Aggregate, Pane, pack_time, unpack_time
from app.logic.windows import first_open
from tables.panes import FIRED, PANES, Closing

__all__ = ["close", "due"]

_names = msgspec.msgpack.Decoder(list[str]).decode

Found = tuple[bytes, int, bytes]
"""Entity, place of the pane in the window (or `FIRED_AT`), encoded row."""

FIRED_AT = 1 << 30
"""In place of a pane's place: the rules that fired. Sorts behind all panes."""


def due(aggregate: Aggregate, closing: Closing, high_ms: int) -> bool:
    """Whether windows may be due. Cheap: it doesn't look whether there are any."""
    if closing.next_ms is None or closing.after is not None:
        return True
    return closing.next_ms < first_open(high_ms - aggregate.grace_ms, aggregate.size_ms, aggregate.hop_ms)


def close(
    rows: Rows, verdicts: Verdicts, partition: int, aggregate: Aggregate, closing: Closing, high_ms: int, limit: int
) -> int:
    """Closes up to `limit` windows, and moves `closing` on.

    Returns:
        How many it looked at. Fewer than `limit`: nothing is due any more.
    """
    bound = first_open(high_ms - aggregate.grace_ms, aggregate.size_ms, aggregate.hop_ms)
    done = 0
    while done < limit:
        if closing.after is None:
            start = next_start(rows, aggregate, closing.next_ms)
            if start is None or start >= bound:
                closing.next_ms = bound if closing.next_ms is None else max(bound, closing.next_ms)
                break
            closing.next_ms = start
        done += _close_some(rows, verdicts, partition, aggregate, closing, limit - done)
    return done


def next_start(rows: Rows, aggregate: Aggregate, at_least: int | None) -> int | None:
    """The first window from `at_least` on that holds a pane; None when there are no panes."""
    start = aggregate.id + (b"" if at_least is None else pack_time(at_least))
    for key, _ in rows.scan(PANES, aggregate.id, start):
        first = unpack_time(key[8:16]) - (aggregate.panes - 1) * aggregate.hop_ms
        return first if at_least is None else max(first, at_least)
    return None


def _close_some(
    rows: Rows, verdicts: Verdicts, partition: int, aggregate: Aggregate, closing: Closing, limit: int
) -> int:
    """Windows of one start, from one entity on."""
    start_ms, after = closing.next_ms, closing.after
    assert start_ms is not None
    out, done = rows.out, 0
    parts = [_pane_rows(rows, aggregate, start_ms, place, after) for place in range(aggregate.panes)]
    parts.append(_fired_rows(rows, aggregate, start_ms, after))
    for entity, group in groupby(heapq.merge(*parts), key=itemgetter(0)):
        panes: list[tuple[int, Pane]] = []
        fired: list[str] = []
        for _, place, raw in group:
            if place == FIRED_AT:
                fired = _names(raw)
                out.delete(FIRED, aggregate.id + pack_time(start_ms) + entity)
                continue
            panes.append((place, PANES.decode(raw)))
            if place == 0:  # the last window over this pane
                out.delete(PANES, aggregate.id + pack_time(start_ms) + entity)
                closing.panes -= 1
        window = aggregate.total(panes)
        if window is not None:
            verdicts.closed(out, partition, aggregate, entity, start_ms, window, fired)
        closing.after = entity
        done += 1
        if done >= limit:
            return done
    closing.next_ms, closing.after = start_ms + aggregate.hop_ms, None
    return done


def _pane_rows(rows: Rows, aggregate: Aggregate, start_ms: int, place: int, after: bytes | None) -> Iterator[Found]:
    prefix = aggregate.id + pack_time(start_ms + place * aggregate.hop_ms)
    for key, raw in rows.scan(PANES, prefix, None if after is None else prefix + after + b"\x00"):
        yield key[16:], place, raw


def _fired_rows(rows: Rows, aggregate: Aggregate, start_ms: int, after: bytes | None) -> Iterator[Found]:
    prefix = aggregate.id + pack_time(start_ms)
    for key, raw in rows.scan(FIRED, prefix, None if after is None else prefix + after + b"\x00"):
        yield key[16:], FIRED_AT, raw
