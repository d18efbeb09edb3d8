"""Prompts and raw answers, where classify.keep_prompts_s asks for them: kept in State with the answer, in its transaction."""

from collections.abc import Callable
from typing import Any

import msgspec

from agents.expiry import Expiry
from agents.pools import Open
from app.delivery.lane import Lane
from app.delivery.maps import PackedMap
from app.delivery.outbox import Outbox
from app.delivery.state import View
from app.settings import ClassifySettings
from models.events import Exchange
from tables.open_work import CALLS, PROMPTS, Called, Prompted

__all__ = ["Prompts", "told"]

_pack = msgspec.msgpack.Encoder().encode

Also = Callable[[Outbox], None]
"""What a transaction writes beside an item's outcome."""


class Prompts:
    """Says what is written of a call; nothing where nothing is to be kept, and what was kept goes then.

    Args:
        settings: whether, how long, how many.
    """

    def __init__(self, settings: ClassifySettings) -> None:
        horizon_ms, most = int(settings.keep_prompts_s * 1000), settings.keep_prompts_items
        self._expiries = [Expiry(of, horizon_ms, most) for of in (PROMPTS, CALLS)]
        self.keeps = horizon_ms > 0

    def use(self, settings: ClassifySettings) -> None:
        """Takes other settings; what is kept is judged by them."""
        self.keeps = settings.keep_prompts_s > 0
        for expiry in self._expiries:
            expiry.horizon_ms, expiry.most = int(settings.keep_prompts_s * 1000), settings.keep_prompts_items

    def tick(self, lane: Lane, now_ms: int) -> None:
        """Removes what is too old, or too much."""
        for expiry in self._expiries:
            expiry.tick(lane, now_ms)

    def own(self, open_: Open, exchange: Exchange | None, digest: bytes | None = None) -> list[Also]:
        """Of an item that was asked about.

        Args:
            open_: the item.
            exchange: the last call for it; None: there was none, or it isn't kept.
            digest: what is put into the cache, if that is.
        """
        if not self.keeps or exchange is None:
            return []
        event_id = open_.item.request.event_id

        def write(out: Outbox) -> None:
            _put(PROMPTS, open_, event_id.encode(), Prompted(out.now_ms, exchange), out)
            if digest is not None:
                _put(CALLS, open_, digest, Called(event_id), out)

        return [write]

    def of_other(self, open_: Open, event_id: str) -> list[Also]:
        """Of an item that waited for the call of another event, or was answered from the cache (empty: whose isn't known)."""
        if not self.keeps:
            return []

        def write(out: Outbox) -> None:
            _put(PROMPTS, open_, open_.item.request.event_id.encode(), Prompted(out.now_ms, None, event_id), out)

        return [write]

    def cached(self, open_: Open, view: View, digest: bytes) -> list[Also]:
        """Of an item that was answered from the cache."""
        if not self.keeps:
            return []
        called = view.get(CALLS, digest)
        return self.of_other(open_, "" if called is None else called.event_id)


def _put(
    into: PackedMap[Prompted] | PackedMap[Called], open_: Open, key: bytes, row: Prompted | Called, out: Outbox
) -> None:
    out.put_packed(into, out.now_ms, int.from_bytes(open_.key, "big"), [(key, _pack(row))])


def told(view: View, event_id: bytes) -> dict[str, Any]:
    """What is kept of an event, for `headrace trace` and the page Event: of its own call, or of the one that served it too."""
    kept = view.get(PROMPTS, event_id)
    if kept is None:
        return {}
    # Equal texts are in one partition.
    its = view.get(PROMPTS, kept.call_of.encode()) if kept.exchange is None and kept.call_of else kept
    exchange = None if its is None or its.exchange is None else msgspec.structs.asdict(its.exchange)
    return {"prompt": {"call_of": kept.call_of, "exchange": exchange}}
