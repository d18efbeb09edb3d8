"""Hopping windows of a stage: adds events to panes, shows open windows to rules, closes what is due.

What decides about windows is a function of the records in their order: event time moves with the records, an event that is
late for a window is never added to it, however long the window waits to be written. How event time moves is up to the two
users of this: `agents.windows` inside ingest, `agents.aggregate` as a stage of its own.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

from agents.closing import close, due, next_start
from agents.panes import Desk, Held, Placed, Slot
from agents.rows import Rows
from agents.verdicts import Verdicts
from app import metrics
from app.delivery.lane import Lane
from app.delivery.maps import Map
from app.delivery.outbox import Outbox
from app.delivery.state import View
from app.logic.aggregates import Aggregate, Entry, Segment, pack_time
from app.logic.windows import first_open, missed, oldest_open
from app.settings import Settings
from models.events import Event, Record
from tables.panes import CLOSING, FIRED, PANES, Closing, Mark

__all__ = ["Hopping", "Quiet", "Taken"]

Taken: TypeAlias = Sequence[tuple[Record, Event]]
"""Newly accepted events with the records they were read from, in order."""

PURGE_ROWS = 5000
"""Panes of an earlier definition removed in one transaction."""
CLOSED_AT_ONCE = 500
"""Windows closed in one step while input comes, besides as many as its events can open: about 20 ms, so that thousands of
windows that end together hold up no event for longer."""
HELD_PANES = 40_000
"""Panes that a stage keeps in memory, about 1.5 KB each."""

_names = msgspec.msgpack.Decoder(list[str]).decode


class Quiet:
    """What is kept in memory for a lane: its panes, since when it is quiet, and whether windows wait to be closed."""

    __slots__ = ("base_ms", "behind", "desk", "full", "hints_at", "panes", "purging", "since", "takes")

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.since = self.hints_at = time.monotonic()
        self.base_ms: int | None = None
        """Event time at the last record; the clock is added to it while the partition is idle."""
        self.takes = 0
        self.behind = self.full = self.purging = False
        self.panes: dict[str, int] = {}


class Hopping(ABC):
    """The windows of one stage.

    Args:
        settings: the tree.
        aggregates: which of them.
        topic: the stage's input.
    """

    def __init__(self, settings: Settings, aggregates: list[Aggregate], topic: str) -> None:
        self.aggregates, self.limits = aggregates, settings.windows
        self.max_ahead_ms = round(settings.windows.max_ahead_s * 1000)
        self.early_ms = round(settings.windows.early_s * 1000)
        self.late_topic = settings.topic("late-events")
        self.verdicts = Verdicts(settings, aggregates, topic)
        self.slots = [Slot(index, a, self.verdicts.intents[a.name]) for index, a in enumerate(aggregates)]
        self._opened = sum(aggregate.panes for aggregate in aggregates)
        """Windows that one event can open."""
        self._quiet: dict[int, Quiet] = {}

    def _of(self, partition: int) -> Quiet:
        quiet = self._quiet.get(partition)
        if quiet is None:
            quiet = self._quiet[partition] = Quiet(Desk(self.slots, HELD_PANES))
            self._share()
        return quiet

    def _share(self) -> None:
        """Partitions share the panes that may be held."""
        for each in self._quiet.values():
            each.desk.limit = HELD_PANES // len(self._quiet)

    # -- input -----------------------------------------------------------------------------------------------------

    def _place(self, out: Outbox, desk: Desk, taken: Taken, mark: Mark | None) -> list[Placed]:
        """Finds the pane of each event, and turns away what is late or too far ahead. With `mark` it moves event time."""
        placed: list[Placed] = []
        place, slots, max_ahead_ms = placed.append, self.slots, self.max_ahead_ms
        high_ms = -1 if mark is None else mark.high_ms
        for record, event in taken:
            at_ms = event.event_time_ms
            if at_ms > high_ms:
                append_ms = record.timestamp if record.timestamp >= 0 else out.now_ms
                if at_ms > append_ms + max_ahead_ms:
                    self._refuse(out, record, event, (("headrace.ahead-ms", b"%d" % (at_ms - append_ms)),))
                    out.count("ahead")
                    continue
                if mark is not None:
                    mark.high_ms = high_ms = at_ms
                    mark.offset = record.offset
                    for slot in slots:
                        slot.moved(at_ms)
            entity = record.key or event.entity.encode()
            for slot in slots:
                aggregate = slot.aggregate
                if not (aggregate.takes_all or aggregate.takes(event)):
                    continue
                pane_ms = at_ms - at_ms % aggregate.hop_ms
                late = 0
                if pane_ms <= slot.closes_before_ms:
                    late = missed(pane_ms, aggregate.hop_ms, aggregate.panes, slot.high_ms - aggregate.grace_ms)
                    self._late(out, record, event, slot, pane_ms, late, (mark or desk.marks[slot.index]).offset)
                    if late == aggregate.panes:
                        continue
                place((slot, desk.held(slot, pane_ms, entity), late, event, record.offset, record.timestamp))
        return placed

    def _late(
        self, out: Outbox, record: Record, event: Event, slot: Slot, pane_ms: int, late: int, culprit: int
    ) -> None:
        aggregate = slot.aggregate
        first = oldest_open(pane_ms, aggregate.hop_ms, aggregate.panes, 0)
        starts = b",".join(b"%d" % (first + n * aggregate.hop_ms) for n in range(late))
        self._refuse(
            out, record, event,
            (
                ("headrace.aggregate", aggregate.name.encode()),
                ("headrace.windows", starts),
                ("headrace.watermark", b"%d" % (slot.high_ms - aggregate.grace_ms)),
                ("headrace.watermark-by", b"%d" % culprit),
            ),
        )  # fmt: skip
        out.count("late", aggregate.name)

    def _refuse(self, out: Outbox, record: Record, event: Event, why: tuple[tuple[str, bytes], ...]) -> None:
        key, record = record.key or event.entity.encode(), self._as_received(record)
        origin = b"%s/%d/%d" % (record.topic.encode(), record.partition, record.offset)
        headers = (*record.headers, ("headrace.origin", origin), *why)
        out.send(self.late_topic, key, record.value, headers)

    def _as_received(self, record: Record) -> Record:
        """The record as its source had it."""
        return record

    def _add(self, view: View, out: Outbox, partition: int, desk: Desk, placed: list[Placed]) -> dict[str, int]:
        """Adds the events to their panes, in order; returns how many panes each aggregate has got."""
        self._prefetch(desk)
        desk.load(view, out)
        touched: list[tuple[Held, Slot]] = []
        made: dict[str, int] = {}
        early_ms = self.early_ms
        for item in placed:
            slot, held, late, event, offset, append_ms = item
            aggregate, early, pane = slot.aggregate, slot.early, held.pane
            if pane is None:
                pane = held.pane = PANES.kind()
                made[aggregate.name] = made.get(aggregate.name, 0) + 1
            if held.changed_for is not out:
                held.changed_for = out
                touched.append((held, slot))
            if not late:
                label = aggregate.add(pane, held.fresh, event, offset, append_ms, held.pane_ms)
            else:
                pane.late = pane.late or {}
                segment, fresh = pane.late.setdefault(late, Segment()), list[Entry]()
                label = aggregate.add(segment, fresh, event, offset, append_ms, held.pane_ms)
                aggregate.pack(segment, fresh)
            if (
                early is not None
                and (label in early.labels or pane.events >= early.floor)
                and (pane.checked_ms < 0 or event.event_time_ms - pane.checked_ms >= early_ms)
            ):
                self._look(view, out, partition, desk, item, label)
        desk.write(out, touched)
        return made

    @staticmethod
    def _prefetch(desk: Desk) -> None:
        """Reads the older panes of the oldest open window with the pane itself: rules look at both."""
        by_aggregate = {slot.aggregate.id: slot for slot in desk.slots if slot.prefetched}
        if by_aggregate:
            for held in desk.missing[:]:
                slot = by_aggregate.get(held.key[:8])
                if slot is not None:
                    for back in range(1, slot.prefetched + 1):
                        desk.held(slot, held.pane_ms - back * slot.aggregate.hop_ms, held.entity)

    # -- open windows ----------------------------------------------------------------------------------------------

    def _look(self, view: View, out: Outbox, partition: int, desk: Desk, item: Placed, label: str) -> None:
        """Lets the rules see the oldest open window of an event: it holds all that the newer ones hold so far."""
        slot, held, late, event, _, _ = item
        aggregate, pane = slot.aggregate, held.pane
        assert pane is not None
        start_ms = oldest_open(held.pane_ms, aggregate.hop_ms, aggregate.panes, late)
        over = [desk.held(slot, start_ms + place * aggregate.hop_ms, held.entity) for place in range(aggregate.panes)]
        desk.load(view, out)
        there = [(place, one.pane) for place, one in enumerate(over) if one.pane is not None]
        if not slot.intents.possible(label, [each for _, each in there]):
            return
        pane.checked_ms = event.event_time_ms
        for one in over:
            if one.pane is not None:
                aggregate.pack(one.pane, one.fresh)
        window = aggregate.total(there, start_ms)
        if window is None:
            return
        holding = slot.intents.fired(window, early=True)
        if not holding:
            return
        row = aggregate.id + pack_time(start_ms) + held.entity
        raw = Rows(view, out).get_raw(FIRED, [row])[0]
        fired = [] if raw is None else _names(raw)
        new = [rule for rule in holding if rule.name not in fired]
        if new:
            self.verdicts.act(out, partition, aggregate, held.entity, start_ms, window, new, fired, early=True)
            out.put(FIRED, row, [*fired, *(rule.name for rule in new)])

    # -- closing ---------------------------------------------------------------------------------------------------

    def _close(self, rows: Rows, partition: int, made: dict[str, int], records: int) -> None:
        """Closes what is due, within the bound of a transaction, and notes how far. Slots know their event time."""
        out, quiet = rows.out, self._of(partition)
        desk = quiet.desk
        left = min(self.limits.close_windows, CLOSED_AT_ONCE + records * self._opened)
        capped = left == self.limits.close_windows
        quiet.behind = False
        if not all(desk.closing):
            stored = rows.get_raw(CLOSING, [slot.row for slot in self.slots])
            for slot, raw in zip(self.slots, stored, strict=True):
                desk.closing[slot.index] = Closing(slot.aggregate.id) if raw is None else CLOSING.decode(raw)
                desk.closing_raw[slot.index] = raw
        for slot in self.slots:
            aggregate, closing = slot.aggregate, desk.closing[slot.index]
            assert closing is not None
            closing.panes += made.get(aggregate.name, 0)
            if slot.high_ms >= 0 and left > 0 and due(aggregate, closing, slot.high_ms):
                left -= close(rows, self.verdicts, partition, slot, desk, closing, left)
            quiet.behind = quiet.behind or (left <= 0 and due(aggregate, closing, slot.high_ms))
            quiet.panes[aggregate.name] = closing.panes
            raw = CLOSING.encode(closing)
            if raw != desk.closing_raw[slot.index]:
                desk.closing_raw[slot.index] = raw
                out.changelog[CLOSING.prefix + slot.row] = out.local[CLOSING.prefix + slot.row] = raw
        quiet.full = quiet.behind and capped

    def _waiting(self, view: View, high_ms: int) -> bool:
        """Whether a window with content would close at this event time."""
        rows = Rows(view, Outbox(0))
        for slot, raw in zip(self.slots, rows.get_raw(CLOSING, [slot.row for slot in self.slots]), strict=True):
            closing, aggregate = None if raw is None else CLOSING.decode(raw), slot.aggregate
            if closing is None or not closing.panes:
                continue
            start = next_start(rows, aggregate, closing.next_ms)
            bound = first_open(high_ms - aggregate.grace_ms, aggregate.size_ms, aggregate.hop_ms)
            if start is not None and start < bound:
                return True
        return False

    @abstractmethod
    def _go_on(self, lane: Lane) -> None:
        """Posts the next step of closing."""

    # -- life ------------------------------------------------------------------------------------------------------

    def ready(self, lane: Lane) -> None:
        """Goes on closing where the last owner stopped, and removes what belongs to no aggregate any more."""
        partition = lane.tp.partition
        self._quiet.pop(partition, None)
        quiet, known = self._of(partition), {slot.row for slot in self.slots}
        self._go_on(lane)
        quiet.purging = any(key not in known for key, _ in Rows(lane.view, Outbox(0)).scan(CLOSING, b""))
        if quiet.purging:
            lane.post(self._purge)

    def closed(self, lane: Lane) -> None:
        if self._quiet.pop(lane.tp.partition, None) is not None:
            self._share()
            for aggregate in self.aggregates:
                metrics.OPEN_PANES.labels(aggregate.name, str(lane.tp.partition)).set(0)

    def committed(self, lane: Lane) -> None:
        """More windows wait: on with it."""
        quiet = self._quiet.get(lane.tp.partition)
        if quiet is None:
            return
        if quiet.behind:
            self._go_on(lane)
        if not quiet.full:
            lane.delivery.room()
        if quiet.purging:
            lane.post(self._purge)

    def room(self, lane: Lane) -> bool:
        """No input while more windows wait than input can open: State would grow faster than it closes."""
        quiet = self._quiet.get(lane.tp.partition)
        return quiet is None or not quiet.full

    def gauges(self, partition: int) -> None:
        panes = self._of(partition).panes
        for aggregate in self.aggregates:
            metrics.OPEN_PANES.labels(aggregate.name, str(partition)).set(panes.get(aggregate.name, 0))

    def _purge(self, view: View, out: Outbox) -> None:
        """Removes panes of aggregates that were changed or taken out, some at a time."""
        rows, left, known = Rows(view, out), PURGE_ROWS, {slot.row for slot in self.slots}
        for name, raw in rows.scan(CLOSING, b""):
            if name in known:
                continue
            prefix = CLOSING.decode(raw).id
            both: tuple[Map[Any], ...] = (PANES, FIRED)
            for of in both:
                for key, _ in rows.scan(of, prefix):
                    if not left:
                        return
                    left -= 1
                    out.delete(of, key)
                    if of is PANES:
                        out.count("purged", name.decode().rsplit("@", 1)[0])
            out.delete(CLOSING, name)
        if view.partition in self._quiet:
            self._quiet[view.partition].purging = False
