"""CloudEvents over HTTP, as the SDK makes them, become envelopes or stay as they are, by the source."""

import base64
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from cloudevents.core.bindings.http import to_binary_event, to_structured_event
from cloudevents.core.v1.event import CloudEvent

from app.settings import SourceSettings, load
from app.sources.inputs import ProbeRecord
from app.sources.source import compile_source
from app.web.gateway.intake import Intake
from app.web.writer import Item
from models.events import Bad, Event

AT = datetime(2026, 11, 29, 10, 0, tzinfo=UTC)
BATCH = {"content-type": "application/cloudevents-batch+json"}


def an_event(data: Any, **more: Any) -> CloudEvent:
    attributes = {"id": "c/1 é", "source": "/shop", "type": "order.created", "specversion": "1.0", "time": AT, **more}
    return CloudEvent(attributes, data)


def sent(message: Any, format_: str = "envelope", **headers: str) -> Item | Bad:
    source = SourceSettings(name="src", topic="events", format=format_)  # type: ignore[arg-type]  # a Literal
    settings = load().model_copy(update={"sources": [source]})
    given = {name.lower(): value for name, value in message.headers.items()} | headers
    (found,) = Intake(source, settings).parse(given, message.body, []).found
    return found


def read(item: Item | Bad, format_: str = "envelope") -> Event:
    """What ingest makes of it."""
    assert isinstance(item, Item), item
    source = SourceSettings(name="src", topic="events", format=format_)  # type: ignore[arg-type]  # a Literal
    event = compile_source(source, load()).read(ProbeRecord(item.value, 1_796_000_000_000, item.key, item.headers))
    assert isinstance(event, Event), event
    return event


@pytest.mark.parametrize("make", [to_structured_event, to_binary_event])
@pytest.mark.parametrize("format_", ["envelope", "cloudevents"])
def test_an_event_of_the_sdk_is_accepted_unchanged(make: Any, format_: str) -> None:
    event = an_event({"message": "deliver after six"}, subject="user-7", datacontenttype="application/json")
    item = sent(make(event), format_)
    found = read(item, format_)
    assert (found.event_id, found.event_type, found.entity) == ("c/1 é", "order.created", "user-7")
    assert (found.source_system, found.text) == ("/shop", "deliver after six")
    assert found.event_time_ms == int(AT.timestamp() * 1000)
    assert item.key == b"user-7"  # type: ignore[union-attr]  # read has looked


@pytest.mark.parametrize("make", [to_structured_event, to_binary_event])
def test_attributes_without_a_place_in_the_envelope_are_kept(make: Any) -> None:
    item = sent(make(an_event({"n": 1}, datacontenttype="application/json", region="eu", partitionkey="p1")))
    assert isinstance(item, Item)
    document = json.loads(item.value)
    assert document["cloudevent"]["region"] == "eu"
    assert document["cloudevent"]["specversion"] == "1.0"
    assert (document["payload"], item.key) == ({"n": 1}, b"p1")


def test_digits_of_data_are_kept() -> None:
    body = b'{"specversion":"1.0","id":"1","source":"s","type":"t","data":{"n":12345678901234567890123,"x":1.50}}'
    given = {"content-type": "application/cloudevents+json; charset=utf-8"}
    source = load().sources[0]
    (item,) = Intake(source, load()).parse(given, body, []).found
    assert isinstance(item, Item)
    assert b'{"n":12345678901234567890123,"x":1.50}' in item.value
    binary = {
        "ce-specversion": "1.0",
        "ce-id": "1",
        "ce-source": "s",
        "ce-type": "t",
        "content-type": "application/json",
    }
    (item,) = Intake(source, load()).parse(binary, b'{"n":1.50}', []).found
    assert isinstance(item, Item)
    assert b'"payload":{"n":1.50}' in item.value


def test_bytes_travel_as_base64_in_both_modes() -> None:
    octets = bytes(range(256))
    event = an_event(octets, datacontenttype="application/octet-stream")
    for make in (to_structured_event, to_binary_event):
        item = sent(make(event))
        assert isinstance(item, Item)
        assert base64.b64decode(json.loads(item.value)["payload_base64"]) == octets


def test_text_is_a_string_and_without_data_there_is_no_payload() -> None:
    item = sent(to_binary_event(an_event("hello", datacontenttype="text/plain")))
    assert isinstance(item, Item)
    assert json.loads(item.value)["payload"] == "hello"
    item = sent(to_binary_event(an_event(None)))
    assert isinstance(item, Item)
    assert "payload" not in json.loads(item.value)


def test_the_time_of_arrival_stands_in_for_none() -> None:
    event = CloudEvent({"id": "1", "source": "s", "type": "t", "specversion": "1.0", "time": AT}, {"n": 1})
    body = json.loads(to_structured_event(event).body)
    del body["time"]
    given = {"content-type": "application/cloudevents+json"}
    (item,) = Intake(load().sources[0], load()).parse(given, json.dumps(body).encode(), []).found
    assert isinstance(item, Item)
    assert json.loads(item.value)["event_time"] > 1_700_000_000_000


def test_a_batch_names_what_is_wrong_by_the_attribute() -> None:
    good = {"specversion": "1.0", "id": "1", "source": "s", "type": "t", "data": {"n": 1}}
    bodies = [
        good,
        {**good, "id": None},
        {**good, "specversion": "0.3"},
        {**good, "time": "soon"},
        7,
        {**good, "id": ["x"]},
    ]
    found = Intake(load().sources[0], load()).parse(BATCH, json.dumps(bodies).encode(), []).found
    assert isinstance(found[0], Item)
    refused = [(bad.reason, bad.field) for bad in found[1:] if isinstance(bad, Bad)]
    assert refused == [
        ("missing-field", "id"), ("bad-cloudevent", "specversion"), ("bad-time", "time"), ("not-an-object", ""),
        ("bad-field", "id"),
    ]  # fmt: skip


def test_binary_data_that_is_no_json_is_refused() -> None:
    event = to_binary_event(an_event({"n": 1}, datacontenttype="application/json"))
    found = sent(type(event)(event.headers, b'{"n": '))
    assert isinstance(found, Bad)
    assert found.reason == "invalid-json"


def test_a_trace_parent_of_the_event_becomes_the_trace() -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    found = read(sent(to_structured_event(an_event({"n": 1}, traceparent=trace))))
    assert found.trace_id == "0af7651916cd43dd8448eb211c80319c"
