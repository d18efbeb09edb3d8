"""Events that wait for a model, what was answered, and answers to give again. One State, as model-requests is split."""

import msgspec

from app.delivery.maps import STAY, Map, PackedMap
from models.events import Exchange, ModelRequest

__all__ = [
    "ANSWERED",
    "CACHE",
    "CALLS",
    "OPEN",
    "PROMPTS",
    "Answered",
    "Cached",
    "Called",
    "OpenItem",
    "Prompted",
    "open_key",
]


class OpenItem(msgspec.Struct, kw_only=True):
    """One event that no tier has decided yet."""

    request: ModelRequest
    opened_ms: int
    light_category: str = ""
    """What the light model said, when its confidence was too low; the deep model decides."""
    light_confidence: float = 0.0
    light_done: bool = False
    round: int = 0
    """How often the whole provider chain was used up on it."""
    spoilt: int = 0
    """In how many of these rounds providers answered, and none validly."""
    due_ms: int = 0
    """Not asked before; 0: at once."""
    attempts: int = 0
    """Answers that were asked for in the rounds before."""
    tried: list[str] = msgspec.field(default_factory=list)
    """What came of each provider in the last round."""


class Answered(msgspec.Struct, array_like=True, gc=False):
    """A decided event, for `headrace trace`."""

    at_ms: int
    """The timestamp of its result: the record is found by it."""
    tier: str
    category: str
    why: str


class Cached(msgspec.Struct, array_like=True, gc=False):
    """A deep answer that stands for later events of the same text."""

    at_ms: int
    category: str
    provider: str
    asked_model: str
    """The model as our settings named it."""
    model: str
    """The model as the server named it."""
    fields: dict[str, object] | None = None
    """What the task extracts."""


class Prompted(msgspec.Struct, array_like=True, gc=False):
    """What a deep model was asked about an event, where classify.keep_prompts_s asks to keep it."""

    at_ms: int
    exchange: Exchange | None
    """None: it has no call of its own."""
    call_of: str = ""
    """The event whose call gave the answer: their texts are the same. Empty without `exchange`: an answer from the cache whose
    call isn't known."""


class Called(msgspec.Struct, array_like=True, gc=False):
    """Whose call gave an answer that stands in the cache."""

    event_id: str


OPEN: Map[OpenItem] = Map(
    "open", b"o", OpenItem, help="offset -> event that waits for a model; removed with its result", moves=STAY
)
ANSWERED: PackedMap[Answered] = PackedMap(
    "answered",
    b"a",
    b"A",
    Answered,
    help="event_id -> tier and answer; expires after classify.trace_horizon_s",
    moves=STAY,
)
CACHE: PackedMap[Cached] = PackedMap(
    "cache",
    b"c",
    b"C",
    Cached,
    help="task, prompt version and text -> deep answer; expires after classify.cache_age_s",
    moves=STAY,  # a text that now goes elsewhere is asked once more
)
PROMPTS: PackedMap[Prompted] = PackedMap(
    "prompts",
    b"p",
    b"P",
    Prompted,
    bucket_s=60,
    help="event_id -> prompt and raw answer; kept for classify.keep_prompts_s",
    moves=STAY,
)
CALLS: PackedMap[Called] = PackedMap(
    "calls",
    b"q",
    b"Q",
    Called,
    bucket_s=60,
    help="as in cache -> event whose call gave the answer; kept as prompts are",
    moves=STAY,
)


def open_key(offset: int) -> bytes:
    """Sorts as the offset does."""
    return offset.to_bytes(8, "big")
