"""CloudEvents 1.x in Kafka, structured and binary, to one document: the attributes, extensions and `data`.

Binary: attributes are `ce_*` headers, the value is the data (CloudEvents Kafka binding 1.0.2, section 3.2). A header
without a value counts as absent. Of repeated headers the last one counts, as of repeated keys.
"""

from typing import Any

from app.settings import SourceSettings
from app.sources.document import parse
from models.events import Bad, Record

__all__ = ["DEFAULTS", "read_cloudevent", "with_defaults"]

DEFAULTS = {
    "event_type": "type",
    "event_time": "time",
    "source_system": "source",
    "entity": "subject",
    "text": "data.message || data.text",
}
"""What a mapping that leaves these empty gets. The id is `id`, unless a fingerprint is given: where several producers
share a topic, `fingerprint = ["source", "id"]` is what the specification calls unique."""

REQUIRED = ("id", "source", "type")


def with_defaults(source: SourceSettings) -> SourceSettings:
    """The source with the paths that every CloudEvent has."""
    update = {name: path for name, path in DEFAULTS.items() if not getattr(source, name)}
    if not source.event_id and not source.fingerprint:
        update["event_id"] = "id"
    return source.model_copy(update=update)


def read_cloudevent(record: Record, value: bytes, max_depth: int) -> dict[str, Any] | Bad:
    """The event's document, whichever mode it came in."""
    headers = {name.lower(): text for name, text in record.headers if text is not None}
    content_type = headers.get("content-type", b"").decode("utf-8", "replace").lower().split(";")[0].strip()
    if content_type.startswith("application/cloudevents-batch"):
        return _refuse("a batch of CloudEvents; a record is one event", "content-type")
    if content_type.startswith("application/cloudevents"):
        if content_type not in ("application/cloudevents", "application/cloudevents+json"):
            return _refuse("only the JSON event format is read", "content-type")
        return _structured(value, max_depth)
    if any(name.startswith("ce_") for name in headers):
        return _binary(headers, content_type, value, max_depth)
    return _structured(value, max_depth)


def _structured(value: bytes, max_depth: int) -> dict[str, Any] | Bad:
    document = parse(value, max_depth)
    if isinstance(document, Bad):
        return document
    if type(document) is not dict:
        return Bad(reason="not-an-object", message="a structured CloudEvent is a JSON object")
    return _complete(document)


def _binary(headers: dict[str, bytes], content_type: str, value: bytes, max_depth: int) -> dict[str, Any] | Bad:
    document: dict[str, Any] = {}
    for name, text in headers.items():
        if name.startswith("ce_"):
            try:
                document[name[3:]] = text.decode()
            except UnicodeDecodeError:
                return Bad(reason="not-utf8", field=name, message=f"the header {name} isn't UTF-8")
    if content_type:
        document["datacontenttype"] = content_type
    data = _data(content_type, value, max_depth)
    if isinstance(data, Bad):
        return data
    document["data"] = data
    return _complete(document)


def _data(content_type: str, value: bytes, max_depth: int) -> object | Bad:
    if not value:
        return None
    if not content_type:
        # The binding leaves this open: JSON if it is, else whatever it is.
        data = parse(value, max_depth)
        return data if not isinstance(data, Bad) or data.reason == "too-deep" else value.decode("utf-8", "replace")
    if content_type.endswith(("/json", "+json")):
        return parse(value, max_depth)
    return value.decode("utf-8", "replace") if content_type.startswith("text/") else None


def _complete(document: dict[str, Any]) -> dict[str, Any] | Bad:
    version = document.get("specversion")
    if version is None:
        return _refuse("specversion is absent: neither ce_* headers nor a structured CloudEvent", "specversion")
    if not isinstance(version, str) or not version.startswith("1."):
        return _refuse("only version 1.x is read", "specversion")
    for name in REQUIRED:
        if document.get(name) is None:
            return Bad(reason="missing-field", field=name, message=f"{name} is absent or null; a CloudEvent needs it")
        if not isinstance(document[name], str) or not document[name]:
            return Bad(reason="bad-field", field=name, message=f"{name} must be text that isn't empty")
    return document


def _refuse(message: str, field: str) -> Bad:
    return Bad(reason="bad-cloudevent", field=field, message=message)
