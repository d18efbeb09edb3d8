"""A document (parsed JSON, a CloudEvent, the groups of a line) to an event, by a source's mapping."""

import hashlib
import json
from collections.abc import Callable

from app.errors import SettingsError
from app.settings import Settings, SourceSettings
from app.sources.document import clean, compact
from app.sources.paths import Getter, Texter, compile_path, compile_text
from app.sources.times import BadTime, compile_time
from models.events import Bad, Event, Headers, Record

__all__ = ["MAX_FALLBACK_CHARS", "Mapping", "entity_of", "identifier", "traceparent"]

MAX_FALLBACK_CHARS = 2000
"""A document that stands in for a text is cut to this: what the models read anyway (llm.max_item_tokens)."""

_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
"""ASCII, keys in order, no white space: one text for one value, whatever layout it came in."""

FINGERPRINT_CHARS = 32
"""128 bits of SHA-256 in hex: no collision among any number of events that fits a table."""


def identifier(value: object, field: str, max_bytes: int) -> str | Bad:
    """An id as text: text as it is, an integer with all its digits.

    The number 1 and the text "1" are one id. 1.0 and 1e3 are refused: a producer that writes ids as floats has lost
    digits of the long ones already.
    """
    if isinstance(value, str):
        text = value
    elif value is None:
        return Bad(reason="missing-field", field=field, message=f"{field} is absent or null; every event needs an id")
    elif isinstance(value, int) and not isinstance(value, bool):
        text = str(value)
    elif isinstance(value, list):
        return Bad(
            reason="bad-field",
            field=field,
            message=f"{field} gives a list of {len(value)}: one record is one event; have the sender split groups, or "
            "map one element (`alerts[0].fingerprint`)",
        )
    else:
        return Bad(reason="bad-field", field=field, message=f"{field} must be text or an integer (not 1.0 or 1e3)")
    if not text:
        return Bad(reason="bad-field", field=field, message=f"{field} is empty; every event needs an id of its own")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return Bad(
            reason="bad-field", field=field, message=f"{field} holds half of a surrogate pair; ids are whole text"
        )
    if size > max_bytes:
        message = f"{field} has {size} bytes, allowed are {max_bytes} (ingest.max_id_bytes)"
        return Bad(reason="bad-field", field=field, message=message)
    return text


def entity_of(key: bytes | None, mapped: str, event_id: str, *, rekeyed: bool = False) -> str:
    """The record's key; without one (an empty key is none) the mapped field; without it the event's id.

    Where the topic isn't keyed by the entity (`rekeyed`) the mapped field comes first.
    """
    if rekeyed and mapped:
        return mapped
    return key.decode("utf-8", "replace") if key else mapped or event_id


def traceparent(headers: Headers) -> str:
    """The trace id of a W3C `traceparent` header, or nothing."""
    for name, value in headers:
        if name == "traceparent" and value is not None and len(value) >= 55 and value[2:3] == b"-":
            return value[3:35].decode("ascii", "replace")
    return ""


class Mapping:
    """Reads an event from a document, by the paths of a source."""

    def __init__(self, source: SourceSettings, settings: Settings, fields: tuple[str, ...], with_text: bool) -> None:
        where = f"source {source.name}"
        self.max_id_bytes = settings.ingest.max_id_bytes
        self.id_path = source.event_id
        self.type_path, self.time_path, self.entity_path = source.event_type, source.event_time, source.entity
        self._id = compile_path(source.event_id, f"{where}, event_id") if source.event_id else None
        self._fingerprint = [compile_path(path, f"{where}, fingerprint") for path in source.fingerprint]
        self.fingerprint_paths = ", ".join(source.fingerprint)
        self._type = _constant_or_path(source.event_type, f"{where}, event_type", source.name)
        self._time = compile_path(source.event_time, f"{where}, event_time") if source.event_time else None
        self._read_time = compile_time(source, int(settings.ingest.max_future_s * 1000))
        self._entity = compile_path(source.entity, f"{where}, entity") if source.entity else None
        self._system = _constant_or_path(source.source_system, f"{where}, source_system", source.name)
        self._trace = compile_path(source.trace_id, f"{where}, trace_id") if source.trace_id else None
        self._text: Texter | None = compile_text(source.text, f"{where}, text") if source.text else None
        self._with_text, self._rekeyed = with_text, source.rekey
        self._fields = [(path, compile_path(path, f"condition on {path}")) for path in fields]
        if (self._id is None) == (not self._fingerprint):
            raise SettingsError(
                f"{where}, event_id: give either event_id (a path) or fingerprint (a list of paths whose values make "
                "the id), so that repeats can be told from new events"
            )

    def read(self, document: object, record: Record) -> Event | Bad:
        """The event, or the first thing that is wrong with it."""
        event_id = self._identify(document)
        if isinstance(event_id, Bad):
            return event_id
        event_type = self._scalar(self._type(document), self.type_path)
        if isinstance(event_type, Bad):
            return event_type
        at_ms = max(0, record.timestamp)
        if self._time is not None:
            value = self._time(document)
            if value is None or value == "":
                return _missing(self.time_path)
            try:
                at_ms = self._read_time(value, record.timestamp)
            except BadTime as error:
                return Bad(reason="bad-time", field=self.time_path, message=f"{self.time_path} {error}")
        entity = self._mapped_entity(document)
        if isinstance(entity, Bad):
            return entity
        return Event(
            event_id=event_id,
            event_type=event_type,
            event_time_ms=at_ms,
            entity=entity_of(record.key, entity, event_id, rekeyed=self._rekeyed),
            source_system=_plain_text(self._system(document)),
            trace_id=(_plain_text(self._trace(document)) if self._trace else "") or traceparent(record.headers),
            text=self._text_of(document, event_type) if self._with_text else "",
            fields={path: get(document) for path, get in self._fields},
        )

    def _identify(self, document: object) -> str | Bad:
        if self._id is not None:
            return identifier(self._id(document), self.id_path, self.max_id_bytes)
        values = [get(document) for get in self._fingerprint]
        if all(value is None for value in values):
            # All such records would share one id, and all but the first would vanish as its duplicates.
            return _missing(self.fingerprint_paths)
        return hashlib.sha256(_canonical(values).encode()).hexdigest()[:FINGERPRINT_CHARS]

    def _scalar(self, value: object, field: str) -> str | Bad:
        if value is None:
            return _missing(field)
        if isinstance(value, str) and value:
            return clean(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        return Bad(reason="bad-field", field=field, message=f"{field} must be text that isn't empty, or an integer")

    def _mapped_entity(self, document: object) -> str | Bad:
        value = self._entity(document) if self._entity is not None else None
        return "" if value is None or value == "" else self._scalar(value, self.entity_path)

    def _text_of(self, document: object, event_type: str) -> str:
        text = self._text(document) if self._text is not None else ""
        return text if text.strip() else f"{event_type} {compact(document)[:MAX_FALLBACK_CHARS]}"


def _constant_or_path(setting: str, where: str, otherwise: str) -> Callable[[object], object]:
    if not setting:
        return lambda _: otherwise
    if setting.startswith("="):
        constant = setting[1:]
        if not constant:
            raise SettingsError(f"{where}: a constant is written `=name`; given only `=`")
        return lambda _: constant
    get: Getter = compile_path(setting, where)
    return get


def _plain_text(value: object) -> str:
    return clean(value) if isinstance(value, str) else ""


def _missing(field: str) -> Bad:
    return Bad(reason="missing-field", field=field, message=f"{field} is absent or null; check the source's mapping")
