"""Windows in State: panes, the watermark, and how far windows are closed. In the State of the stage that makes them.

Keys of panes and fired rules begin with the aggregate (8 bytes, of its name and definition), then a time (8 bytes,
sorts as the time does), then the entity's bytes: what a closing window holds lies side by side.
"""

import re

import msgspec

from app.delivery.maps import COPY, Counted, Map
from app.logic.aggregates import Pane, pack_time, unpack_time

__all__ = ["CLOSING", "FIRED", "HINTS", "MAPS", "MARK", "PANES", "Closing", "Hint", "Mark", "read_place", "show_place"]

_PLACE = re.compile(r"([0-9a-f]{16})/(-?\d{1,18})/(.*)", re.DOTALL)


class Mark(msgspec.Struct, array_like=True, gc=False):
    """How far event time has come in a partition."""

    high_ms: int = -1
    """The highest event time that counts; -1: none yet. A watermark is this less an aggregate's grace."""
    offset: int = -1
    """The record that brought it there; -1: the clock did, while the partition was idle."""


class Closing(msgspec.Struct, array_like=True, gc=False):
    """How far the windows of one aggregate are closed."""

    id: bytes
    """Of the definition: panes of another one are removed."""
    next_ms: int | None = None
    """Start of the first window that isn't closed; None: none is."""
    after: bytes | None = None
    """The last entity whose window with that start is closed; None: none is."""
    panes: int = 0
    """Panes in State."""


class Hint(msgspec.Struct, array_like=True, gc=False):
    """What an intent rule said of an entity's next events."""

    until_ms: int
    """Event time."""
    rule: str
    offset: int = -1
    """Of the record that the rule fired on: the hint is for those behind it."""


ENTITY_AT = 16
"""Where the entity begins in a key of panes and of fired rules."""


def _entity(key: bytes) -> bytes:
    return key[ENTITY_AT:]


def _recounted(closing: Closing, counted: Counted) -> Closing:
    """The panes that are in a partition after others moved away."""
    return msgspec.structs.replace(closing, panes=counted(PANES, closing.id))


PANES: Map[Pane] = Map(
    "panes", b"p", Pane, help="aggregate, hop, entity -> counts and sequence of that hop", moves=_entity
)
CLOSING: Map[Closing] = Map(
    "closing",
    b"g",
    Closing,
    help="aggregate -> how far its windows are closed",
    moves=COPY,  # what is closed is closed for every entity, wherever it goes
    moved=_recounted,
    left=_recounted,
)
FIRED: Map[list[str]] = Map(
    "fired", b"f", list[str], help="aggregate, window, entity -> intent rules that fired", moves=_entity
)
HINTS: Map[Hint] = Map(
    "hints",
    b"h",
    Hint,
    help="entity -> until when the deep model is asked, and which rule says so",
    moves=lambda key: key,
    moved=lambda hint, _: msgspec.structs.replace(hint, offset=-1),  # the new partition's records are all behind it
)
MARK: Map[Mark] = Map(
    "watermark",
    b"m",
    Mark,
    help="nothing (ingest), or aggregate and definition -> highest event time",
    moves=COPY,
    moved=lambda mark, _: msgspec.structs.replace(mark, offset=-1),
)


def show_place(key: bytes) -> str:
    """A pane's key as text: the aggregate's definition in hex, the time in ms, the entity."""
    return f"{key[:8].hex()}/{unpack_time(key[8:16])}/{key[16:].decode('utf-8', 'replace')}"


def read_place(text: str) -> bytes:
    """The key that `show_place` shows; what can't be one is the key of nothing."""
    found = _PLACE.fullmatch(text)
    if found is None:
        return text.encode()
    return bytes.fromhex(found[1]) + pack_time(int(found[2])) + found[3].encode()


MAPS = (PANES, CLOSING, FIRED, HINTS, MARK)
