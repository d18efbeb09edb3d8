"""Panes in memory: decoded once, added to by batch after batch, encoded once a batch and pane.

A lane keeps the panes that it touched. What is kept is what State will be once the batches under way are committed; where
a batch was given up, all of it is forgotten and read again (`Desk.fit`).
"""

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from app.delivery.outbox import Outbox
from app.delivery.state import View
from app.logic.aggregates import Aggregate, Entry, Pane, pack_time
from app.logic.intent import Intents
from app.logic.progress import Said
from models.events import Event
from tables.panes import PANES, Closing, Mark

__all__ = ["Desk", "Held", "Placed", "Slot"]

_pane = msgspec.msgpack.Decoder(Pane).decode
_encode = msgspec.msgpack.Encoder().encode

PREFETCHED_PANES = 4
"""Of windows of up to so many panes, the older ones come in the same read as a pane: rules look at them all the time."""


class Slot:
    """One aggregate of a stage, and how far its event time is in the partition at hand."""

    __slots__ = ("aggregate", "closes_before_ms", "early", "high_ms", "index", "intents", "prefetched", "row")

    def __init__(self, index: int, aggregate: Aggregate, intents: Intents) -> None:
        self.index, self.aggregate, self.intents = index, aggregate, intents
        self.early = intents if intents.early else None
        self.row = f"{aggregate.name}@{aggregate.id.hex()}".encode()
        """Key of its `Closing`."""
        self.prefetched = aggregate.panes - 1 if intents.early and aggregate.panes <= PREFETCHED_PANES else 0
        self.moved(-1)

    def moved(self, high_ms: int) -> None:
        """Event time is here now."""
        self.high_ms = high_ms
        self.closes_before_ms = high_ms - self.aggregate.grace_ms - self.aggregate.hop_ms
        """A pane that starts at this time or before has windows that are closed."""


class Held:
    """A pane in memory."""

    __slots__ = ("changed_for", "entity", "fresh", "key", "pane", "pane_ms", "row")

    def __init__(self, key: bytes, entity: bytes, pane_ms: int) -> None:
        self.key, self.entity, self.pane_ms = key, entity, pane_ms
        self.row = PANES.prefix + key
        self.pane: Pane | None = None
        """None: there is none in State."""
        self.fresh: list[Entry] = []
        """Entries of its sequence that aren't packed yet."""
        self.changed_for: Outbox | None = None
        """The outbox that writes it."""


Placed: TypeAlias = tuple[Slot, Held, int, Event, int, int]
"""An event on its way into a pane: its aggregate, the pane, windows missed, the event, offset, append time."""


class Desk:
    """The panes that a lane holds in memory.

    Args:
        slots: the aggregates.
        limit: panes kept after a batch; of more the oldest hops are let go, and read again when they are needed.
    """

    def __init__(self, slots: Sequence[Slot], limit: int) -> None:
        self.slots, self.limit = slots, limit
        self._local: dict[bytes, bytes | None] | None = None
        """The writes of the outbox that the panes were last changed for."""
        self.forget()

    def forget(self) -> None:
        self.hops: list[dict[int, dict[bytes, Held]]] = [{} for _ in self.slots]
        """For each aggregate, by start and entity."""
        self.count = 0
        self.missing: list[Held] = []
        """Those that aren't read yet."""
        self._local = None
        self.mark: Mark | None = None
        self.marks: list[Mark] = []
        self.heard: dict[str, Said] | None = None
        self.closing: list[Closing | None] = [None for _ in self.slots]
        self.closing_raw: list[bytes | None] = [None for _ in self.slots]
        """Rows of State that every batch needs, as they are and as they are stored."""

    def fit(self, view: View, out: Outbox) -> None:
        """Called before anything else for an outbox: forgets all if the last isn't the lane's latest (others came between)."""
        local = self._local
        if local is not out.local:
            if local is not None and view.latest is not local:
                self.forget()
            elif self.count > self.limit:
                self._let_go()
        self._local = out.local

    def _let_go(self) -> None:
        """Lets the oldest hops go: events come to the newest ones."""
        starts = sorted((start, index) for index, hops in enumerate(self.hops) for start in hops)
        for start, index in starts:
            if self.count <= self.limit:
                return
            self.count -= len(self.hops[index].pop(start))

    def held(self, slot: Slot, pane_ms: int, entity: bytes) -> Held:
        """The pane's place; it is filled by `load`."""
        hops = self.hops[slot.index]
        entities = hops.get(pane_ms)
        if entities is None:
            entities = hops[pane_ms] = {}
        held = entities.get(entity)
        if held is None:
            held = entities[entity] = Held(slot.aggregate.id + pack_time(pane_ms) + entity, entity, pane_ms)
            self.missing.append(held)
            self.count += 1
        return held

    def load(self, view: View, out: Outbox) -> None:
        """Reads what is missing, all at once."""
        missing = self.missing
        if not missing:
            return
        local = out.local
        for held, raw in zip(missing, view.get_raw(PANES, [held.key for held in missing]), strict=True):
            if local:
                raw = local.get(held.row, raw)
            if raw is not None:
                held.pane = _pane(raw)
        self.missing = []

    def drop(self, slot: Slot, pane_ms: int, entity: bytes) -> None:
        """The pane is deleted from State."""
        entities = self.hops[slot.index].get(pane_ms)
        if entities is not None and entities.pop(entity, None) is not None:
            self.count -= 1
            if not entities:
                del self.hops[slot.index][pane_ms]

    @staticmethod
    def write(out: Outbox, touched: list[tuple[Held, Slot]]) -> None:
        """Encodes the panes that a batch changed."""
        changelog, local = out.changelog, out.local
        for held, slot in touched:
            pane, held.changed_for = held.pane, None
            assert pane is not None
            fresh = held.fresh
            if len(fresh) == 1:
                pane.sequence += _encode(fresh.pop())
            elif fresh:
                slot.aggregate.pack(pane, fresh)
            changelog[held.row] = local[held.row] = _encode(pane)
