"""A source: bytes of a record to an event, or to the reason why there is none.

    event = compile_source(settings.sources[0], settings).read(record)

Rules that hold for every format:

- The whole value is valid UTF-8; JSON is as RFC 8259 has it, not nested deeper than ingest.max_depth. A byte order
  mark, NaN and Infinity are invalid JSON. Numbers of any size and halves of surrogate pairs are valid; where such text
  is used each half becomes U+FFFD (in an id it is refused). Of a repeated key the last one counts, everywhere.
- Ids are text or integers, every digit kept: 1 and "1" are one id, 1.0 and 1e3 are refused.
- The entity is the record's key; without one (an empty key is none) the mapped field; without that the id.
  Of a source that says `rekey` the mapped field comes first: its topic isn't keyed by the entity.
- Raw bytes are never changed: what isn't read here is passed on all the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from app.errors import SettingsError
from app.settings import Settings, SourceSettings
from app.sources.cloudevents import read_cloudevent, with_defaults
from app.sources.document import oversize, parse
from app.sources.envelope import EnvelopeReader
from app.sources.lines import LineReader, named_pattern
from app.sources.mapped import Mapping
from models.events import Bad, Event, Record

__all__ = ["Source", "compile_source"]

Reader = Callable[[Record], Event | Bad]


@dataclass(frozen=True, slots=True)
class Source:
    """A compiled source. It never raises."""

    name: str
    types: frozenset[str]
    """Event types let through; empty: all."""
    rekey: bool
    read: Reader
    """The event, or Bad."""
    read_all: Callable[[Sequence[Record]], list[Event | Bad]]
    """Of many records, in their order."""


def compile_source(
    source: SourceSettings, settings: Settings, fields: tuple[str, ...] = (), *, with_text: bool = True
) -> Source:
    """Compiles a source's mapping.

    Args:
        source: the source.
        settings: for limits, and for noise rules that look at the text.
        fields: the paths whose values rules need in `Event.fields` (`app.logic.rules.condition_fields`).
        with_text: False where no model will be asked: `Event.text` then stays empty, unless a rule looks at it.

    Raises:
        SettingsError: names the source and the field that is wrong. Not retryable.
    """
    conditions = [condition for rule in settings.noise for condition in rule.when]
    conditions += [condition for task in settings.tasks for rule in task.rules for condition in rule.when]
    named = {condition.field for condition in conditions}
    for aggregate in settings.aggregates:
        named |= {condition.field for condition in aggregate.when} | {aggregate.label, aggregate.note}
        named |= {feature.field for feature in aggregate.features}
    with_text = with_text or "text" in named
    _check_settings(source)
    read: Reader
    if source.format == "envelope":
        reader = EnvelopeReader(source, settings, fields, with_text)
        return Source(source.name, frozenset(source.types), source.rekey, reader.read, reader.read_all)
    if source.format == "json":
        read = _json_reader(source, settings, fields, with_text)
    elif source.format == "cloudevents":
        read = _cloudevents_reader(with_defaults(source), settings, fields, with_text)
    else:
        read = _text_reader(named_pattern(source), settings, fields, with_text)
    return Source(source.name, frozenset(source.types), source.rekey, read, lambda records: [read(r) for r in records])


def _check_settings(source: SourceSettings) -> None:
    def refuse(name: str, why: str) -> None:
        raise SettingsError(f"source {source.name}, {name}: {why}")

    if source.format == "envelope":
        for name in ("event_id", "fingerprint", "event_type", "event_time", "entity", "source_system", "trace_id"):
            if getattr(source, name):
                refuse(name, "an envelope has its own; use format json to map other documents")
    if source.format == "json" and not source.event_type:
        refuse("event_type", "needed: a path, or a constant like `=order`")
    if source.pattern and source.format != "text":
        refuse("pattern", f"only format text has one, this is {source.format}")
    if source.format == "text" and not source.pattern:
        refuse("pattern", "needed: combined, syslog, line, or a regular expression with named groups")


def _json_reader(source: SourceSettings, settings: Settings, fields: tuple[str, ...], with_text: bool) -> Reader:
    mapping = Mapping(source, settings, fields, with_text)
    max_bytes, max_depth = settings.ingest.max_event_bytes, settings.ingest.max_depth

    def read(record: Record) -> Event | Bad:
        bad = oversize(record.value, max_bytes)
        if bad is not None:
            return bad
        document = parse(cast(bytes, record.value), max_depth)
        if isinstance(document, Bad):
            return document
        if not isinstance(document, dict | list):
            return Bad(reason="not-an-object", message="the value is neither an object nor an array")
        return mapping.read(document, record)

    return read


def _cloudevents_reader(source: SourceSettings, settings: Settings, fields: tuple[str, ...], with_text: bool) -> Reader:
    mapping = Mapping(source, settings, fields, with_text)
    # `time` is optional in a CloudEvent: without it the record's own timestamp counts.
    untimed = Mapping(source.model_copy(update={"event_time": ""}), settings, fields, with_text)
    max_bytes, max_depth = settings.ingest.max_event_bytes, settings.ingest.max_depth

    def read(record: Record) -> Event | Bad:
        bad = oversize(record.value, max_bytes)
        has_attributes = any(name.lower().startswith("ce_") for name, _ in record.headers)
        if bad is not None and not (bad.reason == "empty-value" and has_attributes):
            return bad
        document = read_cloudevent(record, cast(bytes, record.value), max_depth)
        if isinstance(document, Bad):
            return document
        timed = source.event_time != "time" or document.get("time") is not None
        return (mapping if timed else untimed).read(document, record)

    return read


def _text_reader(source: SourceSettings, settings: Settings, fields: tuple[str, ...], with_text: bool) -> Reader:
    lines = LineReader(source)
    text = source.text or "line"
    mapping = Mapping(source.model_copy(update={"text": text}), settings, fields, with_text)
    max_bytes = settings.ingest.max_event_bytes

    def read(record: Record) -> Event | Bad:
        bad = oversize(record.value, max_bytes)
        if bad is not None:
            return bad
        document = lines.read(cast(bytes, record.value))
        return document if isinstance(document, Bad) else mapping.read(document, record)

    return read
