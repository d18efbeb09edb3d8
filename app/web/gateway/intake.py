"""What a request holds, read by the rules of its source: records to write, or the reasons why there are none.

The source's own reader looks at every event, the one that ingest uses. So what the gateway takes isn't refused later,
and the errors name the same fields and reasons as dead letters do.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote

import msgspec

from app.delivery.outbox import RECORD_OVERHEAD_BYTES
from app.settings import Settings, SourceSettings
from app.sources.cloudevents import read_cloudevent
from app.sources.inputs import ProbeRecord
from app.sources.source import compile_source
from app.web.gateway.bodies import split_lines, split_list
from app.web.problems import Problem
from app.web.writer import Item
from models.events import Bad, Headers

__all__ = ["Intake", "Parsed"]

JSON_TYPES = ("application/json", "text/json", "")
LINE_TYPES = ("application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines")
EVENT_TYPE, BATCH_TYPE = "application/cloudevents+json", "application/cloudevents-batch+json"
READ_TYPES = f"application/json, application/x-ndjson, {EVENT_TYPE}, {BATCH_TYPE}"
UTF8 = ("", "utf-8", "utf8", "us-ascii", "ascii")

RENAMED = {"id": "event_id", "type": "event_type", "time": "event_time", "source": "source_system", "data": "payload"}
"""CloudEvents attributes as our envelope calls them; the entity is `partitionkey`, else `subject`."""
NAMED_BACK = {new: old for old, new in RENAMED.items()} | {"entity_id": "subject"}

_json = msgspec.json.Encoder().encode
_attributes = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


@dataclass(slots=True)
class Parsed:
    """What a body holds, in its order."""

    found: list[Item | Bad]
    single: bool
    """One event, and so one answer; else a list of outcomes."""


class Intake:
    """Reads bodies for one source."""

    def __init__(self, source: SourceSettings, settings: Settings) -> None:
        self.source, self.topic = source, settings.source_topic(source)
        self.max_items, self.max_depth = settings.gateway.max_items, settings.ingest.max_depth
        self.max_record_bytes = settings.kafka.max_message_bytes - RECORD_OVERHEAD_BYTES
        self._read = compile_source(source, settings, with_text=False).read

    def parse(self, headers: Mapping[str, str], body: bytes, passed_on: Headers) -> Parsed:
        """Splits a body and reads each event.

        Args:
            headers: of the request, names in lower case.
            body: unpacked.
            passed_on: headers that each record gets.

        Raises:
            Problem: nothing of it can be read.
        """
        content_type, _, parameters = headers.get("content-type", "").lower().partition(";")
        content_type = content_type.strip()
        self._check_charset(parameters)
        now_ms = int(time.time() * 1000)
        if content_type == BATCH_TYPE:
            values = split_list(body, self.max_items, self.max_depth)
            return Parsed([self._structured(value, passed_on, now_ms) for value in values], single=False)
        if content_type == EVENT_TYPE:
            return Parsed([self._structured(body, passed_on, now_ms)], single=True)
        if any(name.startswith("ce-") for name in headers):
            return Parsed([self._binary(headers, body, passed_on, now_ms)], single=True)
        if self.source.format == "cloudevents":
            raise Problem(
                415, "bad-content-type", f"source {self.source.name} reads CloudEvents, structured, binary or batched",
                field="content-type",
            )  # fmt: skip
        if content_type in LINE_TYPES:
            values = split_lines(body, self.max_items)
            return Parsed([self._plain(value, passed_on, now_ms) for value in values], single=False)
        if content_type not in JSON_TYPES:
            raise Problem(
                415,
                "bad-content-type",
                f"events are read as {READ_TYPES}",
                field="content-type",
                headers={"Accept": READ_TYPES},
            )
        if body.lstrip(b" \t\r\n")[:1] == b"[":
            values = split_list(body, self.max_items, self.max_depth)
            return Parsed([self._plain(value, passed_on, now_ms) for value in values], single=False)
        return Parsed([self._plain(body, passed_on, now_ms)], single=True)

    @staticmethod
    def _check_charset(parameters: str) -> None:
        for parameter in parameters.split(";"):
            name, _, value = parameter.partition("=")
            if name.strip() == "charset" and value.strip().strip('"') not in UTF8:
                raise Problem(415, "bad-content-type", "text is read as UTF-8 only", field="content-type")

    # -- one event -------------------------------------------------------------------------------------------------

    def _plain(self, value: bytes, headers: Headers, now_ms: int) -> Item | Bad:
        event = self._read(ProbeRecord(value, now_ms, None, headers, self.topic))
        if isinstance(event, Bad):
            return event
        key = event.entity.encode("utf-8", "replace")
        if len(key) + len(value) > self.max_record_bytes:
            return Bad(reason="too-large", message=f"with its key it is larger than {self.max_record_bytes} bytes")
        return Item(event.event_id, key, value, headers)

    def _structured(self, value: bytes, headers: Headers, now_ms: int) -> Item | Bad:
        if self.source.format == "cloudevents":
            return self._plain(value, [*headers, ("content-type", EVENT_TYPE.encode())], now_ms)
        self._only_envelope()
        typed = ProbeRecord(value, now_ms, None, (("content-type", EVENT_TYPE.encode()),), self.topic)
        document = read_cloudevent(typed, value, self.max_depth)
        if isinstance(document, Bad):
            return document
        return self._as_envelope(_attributes(value), headers, now_ms)

    def _binary(self, given: Mapping[str, str], value: bytes, headers: Headers, now_ms: int) -> Item | Bad:
        found: list[tuple[str, bytes | None]] = []
        for name, text in given.items():
            if name.startswith("ce-"):
                found.append((f"ce_{name[3:]}", unquote(text, errors="replace").encode()))
        content_type = given.get("content-type", "")
        if content_type:
            found.append(("content-type", content_type.encode("latin-1", "replace")))
        if self.source.format == "cloudevents":
            return self._plain(value, [*headers, *found], now_ms)
        self._only_envelope()
        document = read_cloudevent(ProbeRecord(value, now_ms, None, found, self.topic), value, self.max_depth)
        if isinstance(document, Bad):
            return document
        raw = {name: msgspec.Raw(_json(content)) for name, content in document.items() if name != "data"}
        data = self._data(document["data"], value)
        return self._as_envelope({**raw, **data}, headers, now_ms)

    @staticmethod
    def _data(data: object, value: bytes) -> dict[str, msgspec.Raw]:
        """JSON as it stands, text as a string, other bytes as `data_base64`."""
        if not value:
            return {}
        if data is None:
            return (
                {"data_base64": msgspec.Raw(_json(value))}
                if value.strip() != b"null"
                else {"data": msgspec.Raw(b"null")}
            )
        is_text = isinstance(data, str) and value.lstrip(b" \t\r\n")[:1] != b'"'
        return {"data": msgspec.Raw(_json(data) if is_text else value)}

    def _as_envelope(self, attributes: dict[str, msgspec.Raw], headers: Headers, now_ms: int) -> Item | Bad:
        """The envelope of a CloudEvent: attributes without a place in it are kept under `cloudevent`."""
        envelope: dict[str, object] = {
            new: attributes[old] for old, new in RENAMED.items() if attributes.get(old) not in (None, b"null")
        }
        entity = attributes.get("partitionkey") or attributes.get("subject")
        if entity is not None:
            envelope["entity_id"] = entity
        envelope.setdefault("event_time", now_ms)
        if "data_base64" in attributes:
            envelope["payload_base64"] = attributes["data_base64"]
        rest = {n: v for n, v in attributes.items() if n not in RENAMED and n not in ("data_base64", "subject")}
        envelope["cloudevent"] = rest
        trace = [("traceparent", bytes(attributes["traceparent"]).strip(b'"'))] if "traceparent" in attributes else []
        item = self._plain(_json(envelope), [*headers, *trace], now_ms)
        if isinstance(item, Bad):
            name = NAMED_BACK.get(item.field, item.field)
            message = item.message.replace(item.field, name) if item.field else item.message
            item = Bad(reason=item.reason, message=message, field=name)
        return item

    def _only_envelope(self) -> None:
        if self.source.format != "envelope":
            raise Problem(
                415, "bad-content-type", f"source {self.source.name} reads {self.source.format}, not CloudEvents",
                field="content-type",
            )  # fmt: skip
