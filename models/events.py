"""Shapes of the hot path: what a source makes of a record, and what is passed between stages (msgspec)."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

import msgspec

__all__ = ["Answer", "Bad", "Event", "Exchange", "Headers", "ModelRequest", "Origin", "Received", "Record"]

Headers = Sequence[tuple[str, bytes | None]]


class Record(Protocol):
    """What we need of a consumed Kafka record (`Received` and aiokafka's ConsumerRecord have it)."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


NO_FIELDS: Mapping[str, object] = MappingProxyType({})


class Received(msgspec.Struct, gc=False):
    """A consumed record as our own fetch makes it: a quarter of a ConsumerRecord's time."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    """Of its append or creation, as the topic has it; ms since the epoch."""
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class Event(msgspec.Struct, gc=False):
    """One valid event, as a source read it. The raw bytes stay with the record and are passed on unchanged."""

    event_id: str
    event_type: str
    event_time_ms: int
    """Event time in milliseconds since the epoch."""
    entity: str
    """The user, device or host: the record's key, else the mapped field, else the event id."""
    source_system: str = ""
    trace_id: str = ""
    text: str = ""
    """What a model is asked about; empty when no task needs it. Always valid Unicode (no lone surrogates)."""
    fields: Mapping[str, object] = NO_FIELDS
    """Values at the paths that rules ask for (see `app.logic.rules.Condition`)."""


class Bad(msgspec.Struct, gc=False, kw_only=True):
    """A record that is no valid event. It goes to the dead letter topic, byte for byte."""

    reason: str
    """One of `app.sources.reasons`: a stable word for headers, metrics and grouping."""
    message: str
    """For a person: what is wrong and what to do. Never holds payload text."""
    field: str = ""
    """The field at fault, as the source's mapping names it; empty when it is the whole record."""


class Origin(msgspec.Struct, array_like=True, gc=False):
    """Where an event came from."""

    topic: str
    partition: int
    offset: int


class ModelRequest(msgspec.Struct, kw_only=True):
    """One event on `model-requests`: no rule decided it. JSON, so that others can read it."""

    event_id: str
    event_type: str
    event_time_ms: int
    entity: str
    task: str
    text: str
    source: Origin
    trace_id: str = ""
    received_ms: int
    """When Kafka appended the raw record, ms since the epoch: results carry the latency from here."""
    skip_light: bool = False
    """A rule asked for the deep model."""
    hint: str = ""
    """The name of the rule that asked for it."""
    marks: list[str] = msgspec.field(default_factory=list)
    """Only providers that name all of them may see the event."""


class Exchange(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What was sent to a model for one event and what it said, where that is kept. Texts may be cut to a size."""

    provider: str
    model: str
    """As the server named it; as the settings do where it said nothing."""
    system: str
    """The system prompt."""
    message: str
    """The event's line of the user's prompt, as it was sent: masked where the rest was."""
    answer: str
    """All that the model said where the event was asked about alone; else what it said under the event's number."""
    finish_reason: str
    """As the server says; `refused`: it didn't take the prompt."""
    number: int
    """Of the event in the call, from 1."""
    items: int
    """Events in the call."""
    attempt: int
    """Which one it was for the event, from 1; earlier ones aren't kept."""
    cut: bool
    """A text was longer than is kept."""


class Answer(msgspec.Struct, kw_only=True, frozen=True):
    """What a tier decided for one event."""

    category: str
    fields: dict[str, object] | None = None
    """What the task extracts beside the category, checked; None where it extracts nothing, or another tier decided."""
    confidence: float
    """0 to 1. Rules give 1.0; the deep tier reports 1.0 for a checked answer unless the model gives its own."""
    provider: str = ""
    """The name of the model server that was asked; empty for other tiers."""
    model: str = ""
    model_version: str = ""
    """The light encoder's package version; empty for a model server, which tells only its model's name."""
    prompt_version: str = ""
    prompt_tokens: int = 0
    """This event's share of the call's prompt tokens; the shares of a call add up to what the server reported."""
    completion_tokens: int = 0
    cost_usd: float = 0.0
    latency_ms: int = 0
    """Time of the model call that gave the answer."""
    exchange: Exchange | None = None
    """What was sent and said, where classify.keep_prompts_s asks for it."""
