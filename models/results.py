"""What leaves the application: results and reviews (JSON on `ai-results` and `manual-review`)."""

from typing import Literal

import msgspec

from models.events import Origin

__all__ = ["Result", "Review", "Reviewed", "Source", "Tier", "Tokens"]

Tier = Literal["rule", "light", "deep", "review"]


class Source(msgspec.Struct, gc=False):
    """Where the event came from."""

    topic: str
    partition: int
    offset: int

    @classmethod
    def of(cls, origin: Origin) -> "Source":
        return cls(origin.topic, origin.partition, origin.offset)


class Tokens(msgspec.Struct, gc=False):
    """This event's share of the tokens of the calls that decided it."""

    prompt: int = 0
    completion: int = 0


class Result(msgspec.Struct, kw_only=True, gc=False):
    """One per event_id on `ai-results`. Consumers upsert by `event_id`."""

    event_id: str
    event_type: str
    task: str
    category: str
    confidence: float
    fields: dict[str, object] | None = None
    """What the task extracts, found by the deep model; null elsewhere."""
    tier: Tier
    why: str
    """The rule's name, or what the model tier saw, in a few words."""
    provider: str = ""
    """The model server that was asked, as the settings name it."""
    model: str = ""
    model_version: str = ""
    prompt_version: str = ""
    tokens: Tokens = msgspec.field(default_factory=Tokens)
    cost_usd: float = 0.0
    latency_ms: int
    """From the raw record's append to this result, ms."""
    created_ms: int
    source: Source
    entity: str
    trace_id: str = ""


class Reviewed(Result, kw_only=True, gc=False):
    """A result that a person decided: of tier `review`."""

    reviewer: str
    note: str = ""


class Review(msgspec.Struct, kw_only=True, gc=False):
    """An event that no model could decide, on `manual-review`, with what a person needs."""

    event_id: str
    event_type: str
    event_time_ms: int
    entity: str
    task: str
    text: str
    categories: list[str]
    cause: str
    """Why no tier decided it: a stable word, then details."""
    light_category: str = ""
    light_confidence: float = 0.0
    attempts: int
    """Answers that were asked for, all rounds together."""
    rounds: int = 0
    """How often every provider allowed had failed."""
    tried: list[str] = msgspec.field(default_factory=list)
    """`provider: what came of it`, of the last round."""
    received_ms: int = 0
    """When Kafka appended the raw record, ms since the epoch."""
    created_ms: int
    source: Source
    trace_id: str = ""
