"""Our own envelope: event_id, event_type, event_time; source_system, trace_id, payload, summary, entity_id if wanted.

The hot path: one msgspec decode into a struct. Whatever the struct refuses is read again by the tolerant parser, which
alone decides what is wrong, so both ways agree on every record. Unknown fields are no error: the raw bytes pass on
unchanged.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec

from app.settings import Settings, SourceSettings
from app.sources.document import are_utf8, check_utf8, clean, compact, oversize, parse, too_deep
from app.sources.mapped import MAX_FALLBACK_CHARS, entity_of, identifier, traceparent
from app.sources.paths import compile_path, compile_text
from app.sources.times import BadTime, compile_time
from models.events import Bad, Event, Record

__all__ = ["EnvelopeReader"]


class Envelope(msgspec.Struct, gc=False):
    """Types as JSON has them; float stands beside int so that 1.0 isn't turned into 1 unseen."""

    event_id: int | float | str
    event_type: str
    event_time: int | float | str
    source_system: str | None = None
    trace_id: str | None = None
    payload: Any = None
    """Read whole: no slower than msgspec.Raw on usual payloads, and its strings are checked on the way."""
    summary: str | None = None
    entity_id: int | float | str | None = None


class Head(msgspec.Struct, gc=False):
    """An envelope whose payload nobody looks at: its JSON is checked and skipped, in a third of the time."""

    event_id: int | float | str
    event_type: str
    event_time: int | float | str
    source_system: str | None = None
    trace_id: str | None = None
    summary: str | None = None
    entity_id: int | float | str | None = None


class EnvelopeReader:
    """Reads envelopes. `read` is the public method; it never raises."""

    def __init__(self, source: SourceSettings, settings: Settings, fields: tuple[str, ...], with_text: bool) -> None:
        self.max_bytes, self.max_depth = settings.ingest.max_event_bytes, settings.ingest.max_depth
        self.max_id_bytes = settings.ingest.max_id_bytes
        self.max_future_ms = int(settings.ingest.max_future_s * 1000)
        self.plain_ms = source.time_unit in ("auto", "ms")
        self.with_text = with_text
        self._rekeyed = source.rekey
        self._looks = bool(fields) or with_text
        self._decode: Callable[[bytes], Envelope | Head] = (
            msgspec.json.Decoder(Envelope).decode if self._looks else msgspec.json.Decoder(Head).decode
        )
        self._read_time = compile_time(source, self.max_future_ms)
        where = f"source {source.name}"
        self._template = compile_text(source.text, f"{where}, text") if source.text and with_text else None
        self._fields = [(path, compile_path(path, f"condition on {path}")) for path in fields]
        # Paths into the payload need no second look at the whole document.
        self._payload_only = self._template is None and all(path.startswith("payload.") for path in fields)
        self._refuse: Callable[[bytes | None], Bad | None] = functools.partial(oversize, max_bytes=self.max_bytes)

    def read(self, record: Record) -> Event | Bad:
        """The event, or why it is none."""
        return self._read(record, utf8=False)

    def read_all(self, records: Sequence[Record]) -> list[Event | Bad]:
        """The same for many: their UTF-8 is checked in one go, in half the time."""
        texts = [value for record in records if (value := record.value) and not value.isascii()]
        utf8, read = are_utf8(texts), self._read
        return [read(record, utf8) for record in records]

    def _read(self, record: Record, utf8: bool) -> Event | Bad:
        """With `utf8` that is known to be right."""
        value = record.value
        if not value or len(value) > self.max_bytes:
            return cast(Bad, self._refuse(value))
        try:
            envelope = self._decode(value)
        except (msgspec.DecodeError, RecursionError):
            return self._read_tolerantly(value, record)
        if not utf8 and not value.isascii():
            bad = check_utf8(value)
            if bad is not None:
                return bad
        lists = value.count(b"[") if ord("[") in value else 0
        if value.count(b"{") + lists > self.max_depth:  # hardly ever; then it is looked at closely
            bad = too_deep(value, self.max_depth)
            if bad is not None:
                return bad
        return self._event(envelope, value, record)

    def _event(self, envelope: Envelope | Head, value: bytes, record: Record) -> Event | Bad:
        event_id = envelope.event_id
        if type(event_id) is not str or not 0 < len(event_id) <= self.max_id_bytes or not event_id.isascii():
            checked = identifier(event_id, "event_id", self.max_id_bytes)
            if isinstance(checked, Bad):
                return checked
            event_id = checked
        event_type = envelope.event_type
        if not event_type:
            return Bad(reason="bad-field", field="event_type", message="event_type is empty")
        at_ms = envelope.event_time
        if type(at_ms) is not int or not self.plain_ms or not 0 <= at_ms <= record.timestamp + self.max_future_ms:
            try:
                at_ms = self._read_time(at_ms, record.timestamp)
            except BadTime as error:
                return Bad(reason="bad-time", field="event_time", message=f"event_time {error}")
        entity_id = envelope.entity_id
        if type(entity_id) is float:
            return _wrong("entity_id", "text or an integer")
        mapped = "" if entity_id is None else str(entity_id)
        entity = entity_of(record.key, mapped, event_id, rekeyed=self._rekeyed)
        trace_id = envelope.trace_id or (traceparent(record.headers) if record.headers else "")
        event = Event(event_id, event_type, at_ms, entity, envelope.source_system or "", trace_id)
        if self._looks:
            self._fill(event, cast(Envelope, envelope), value)
        return event

    def _fill(self, event: Event, envelope: Envelope, value: bytes) -> None:
        """What rules and models look at."""
        payload = envelope.payload
        document: Any = {"payload": payload} if self._payload_only else parse(value, self.max_depth)
        if self._fields:
            event.fields = {path: get(document) for path, get in self._fields}
        if not self.with_text:
            return
        text: object = self._template(document) if self._template else envelope.summary
        if not text and type(payload) is dict:
            text = payload.get("message") or payload.get("text")
        if isinstance(text, str) and text:
            event.text = clean(text)
        else:
            event.text = (
                f"{event.event_type} {'' if payload is None else compact(payload)[:MAX_FALLBACK_CHARS]}".rstrip()
            )

    def _read_tolerantly(self, value: bytes, record: Record) -> Event | Bad:
        """The record again, slowly: finds the field at fault, or that only msgspec minded."""
        document = parse(value, self.max_depth)
        if isinstance(document, Bad):
            return document
        if type(document) is not dict:
            return Bad(reason="not-an-object", message=f"an envelope is a JSON object, this is {_kind(document)}")
        envelope = _checked(document)
        if isinstance(envelope, Bad):
            return envelope
        return self._event(envelope, value, record)


def _checked(document: dict[str, Any]) -> Envelope | Bad:
    for name in ("event_id", "event_type", "event_time"):
        if document.get(name) is None:
            return Bad(reason="missing-field", field=name, message=f"{name} is absent or null; an envelope needs it")
    event_id, event_time, entity_id = document["event_id"], document["event_time"], document.get("entity_id")
    if not _is(event_id, str, int, float):
        return _wrong("event_id", "text or an integer")
    if not _is(event_time, str, int, float):
        return _wrong("event_time", "milliseconds since 1970 or RFC 3339 text")
    if entity_id is not None and not _is(entity_id, str, int):
        return _wrong("entity_id", "text or an integer")
    texts: dict[str, Any] = {}
    for name in ("event_type", "source_system", "trace_id", "summary"):
        text = document.get(name)
        if text is not None and not isinstance(text, str):
            return _wrong(name, "text")
        texts[name] = text if text is None else clean(text)
    if isinstance(entity_id, str):
        entity_id = clean(entity_id)
    return Envelope(
        event_id=event_id, event_time=event_time, payload=document.get("payload"), entity_id=entity_id, **texts
    )


def _is(value: object, *types: type) -> bool:
    return isinstance(value, types) and not isinstance(value, bool)


def _kind(value: object) -> str:
    return {type(None): "null", list: "an array", str: "a string", bool: "true or false"}.get(type(value), "a number")


def _wrong(field: str, wanted: str) -> Bad:
    return Bad(reason="bad-field", field=field, message=f"{field} must be {wanted}")
