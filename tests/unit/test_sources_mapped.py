"""JSON by JMESPath, text lines, CloudEvents."""

import json
from typing import Any

import pytest

from app.errors import SettingsError
from models.events import Bad, Event, Headers
from tests.helpers.records import NOW_MS, record, source

JSON: dict[str, Any] = {"format": "json", "event_id": "id", "event_type": "kind"}


def read(reader: Any, value: object, **more: Any) -> Event | Bad:
    raw = value if isinstance(value, bytes) or value is None else json.dumps(value).encode()
    outcome = reader.read(record(raw, **more))
    assert isinstance(outcome, Event | Bad)
    return outcome


def test_json_is_mapped_by_paths() -> None:
    reader = source(
        "meta.level",
        **{**JSON, "event_id": "meta.id"},
        event_time="meta.at",
        time_unit="s",
        entity="user.name",
        text="{kind}: {body} ({meta.level})",
        source_system="meta.system",
        trace_id="meta.trace",
    )
    meta = {"id": 5, "at": 1_700_000_000, "level": 2, "system": "crm", "trace": "t"}
    document = {"kind": "note", "body": "hello", "user": {"name": "ann"}, "meta": meta}
    assert read(reader, document) == Event(
        event_id="5",
        event_type="note",
        event_time_ms=1_700_000_000_000,
        entity="ann",
        source_system="crm",
        trace_id="t",
        text="note: hello (2)",
        fields={"meta.level": 2},
    )


def test_json_without_a_time_takes_the_records() -> None:
    event = read(source(**{**JSON, "event_type": "=note"}), {"id": "a"})
    assert isinstance(event, Event)
    assert (event.event_time_ms, event.event_type, event.source_system) == (NOW_MS, "note", "src")
    assert event.text == 'note {"id":"a"}'


def test_four_kinds_of_nothing_are_told_apart_in_json_too() -> None:
    outcomes = [read(source(**JSON), value) for value in (None, b"", b"null", b"{}")]
    assert [(bad.reason, bad.field) for bad in outcomes if isinstance(bad, Bad)] == [
        ("null-value", ""),
        ("empty-value", ""),
        ("not-an-object", ""),
        ("missing-field", "id"),
    ]


def test_fingerprint_depends_on_values_and_not_on_layout() -> None:
    reader = source(format="json", fingerprint=["a", "b.c"], event_type="=x")
    ids = [
        event.event_id
        for value in (
            b'{"a":{"x":1,"y":2},"b":{"c":"\xc3\xa9"},"at":1}',
            b'{ "at":2, "b":{"c":"\\u00e9"}, "a":{"y":2,"x":1} }',
            b'{"a":{"x":1,"y":2},"b":{"c":"e"}}',
        )
        if isinstance(event := read(reader, value), Event)
    ]
    assert ids[0] == ids[1] != ids[2]
    assert all(len(i) == 32 and set(i) <= set("0123456789abcdef") for i in ids)
    bad = read(reader, {"other": 1})
    assert isinstance(bad, Bad)
    assert (bad.reason, bad.field) == ("missing-field", "a, b.c")


def test_a_group_of_alerts_is_refused_saying_how_and_year_one_is_no_time() -> None:
    group = {
        "status": "firing",
        "alerts": [
            {"fingerprint": "f1", "startsAt": "2026-11-28T10:00:00Z", "endsAt": "0001-01-01T00:00:00Z"},
            {"fingerprint": "f2"},
        ],
    }
    bad = read(source(format="json", event_id="alerts[].fingerprint", event_type="status"), group)
    assert isinstance(bad, Bad)
    assert bad.reason == "bad-field"
    assert "one record is one event" in bad.message
    one: dict[str, Any] = {
        "format": "json",
        "fingerprint": ["alerts[0].[fingerprint, startsAt]"],
        "event_type": "status",
    }
    first = read(source(**one, event_time="alerts[0].startsAt"), group)
    assert isinstance(first, Event)
    ended = read(source(**one, event_time="alerts[0].endsAt"), group)
    assert isinstance(ended, Bad)
    assert (ended.reason, ended.field) == ("bad-time", "alerts[0].endsAt")
    group["alerts"][0]["startsAt"] = "2026-11-28T18:00:00Z"  # type: ignore[index]
    again = read(source(**one, event_time="alerts[0].startsAt"), group)
    assert isinstance(again, Event)
    assert again.event_id != first.event_id


def test_a_jmespath_function_on_a_wrong_type_is_a_missing_value() -> None:
    bad = read(source(format="json", event_id="join('-', id)", event_type="=x"), {"id": 5})
    assert isinstance(bad, Bad)
    assert bad.reason == "missing-field"


@pytest.mark.parametrize(
    ("mapping", "names"),
    [
        ({"format": "json", "event_type": "=x"}, "event_id"),
        ({"format": "json", "event_type": "=x", "event_id": "a", "fingerprint": ["b"]}, "event_id"),
        ({"format": "json", "event_id": "a"}, "event_type"),
        ({**JSON, "event_type": "="}, "event_type"),
        ({**JSON, "event_id": "a["}, "event_id"),
        ({**JSON, "event_time": "a..b"}, "event_time"),
        ({**JSON, "text": "x {a[} y"}, "text"),
        ({**JSON, "fingerprint": ["]"], "event_id": ""}, "fingerprint"),
        ({**JSON, "pattern": "line"}, "pattern"),
        ({"event_id": "id"}, "event_id"),
        ({"format": "text", "fingerprint": ["line"]}, "pattern"),
        ({"format": "text", "pattern": "(?P<a", "fingerprint": ["line"]}, "pattern"),
        ({"format": "text", "pattern": "(?P<a>.)", "event_id": "b"}, "event_id"),
        ({"format": "text", "pattern": "(?P<a>.)", "event_id": "a", "text": "{a} {c}"}, "text"),
        ({"format": "text", "pattern": "(?P<a>.)", "fingerprint": ["a", "d"]}, "fingerprint"),
        ({"format": "text", "pattern": "combined", "fingerprint": ["line"], "entity": "ip"}, "entity"),
    ],
)
def test_a_wrong_mapping_is_refused_at_start_naming_source_and_field(mapping: dict[str, Any], names: str) -> None:
    with pytest.raises(SettingsError, match=f"source src, {names}"):
        source(**mapping)


def test_own_pattern_gives_groups() -> None:
    reader = source(
        "level", format="text", pattern=r"(?P<level>\w+) (?P<id>\d+)(?: (?P<rest>.*))?", event_id="id", event_type="level",
        text="rest",
    )  # fmt: skip
    event = read(reader, b"WARN 17 disk is full\r\n")
    assert isinstance(event, Event)
    assert (event.event_id, event.event_type, event.text) == ("17", "WARN", "disk is full")
    assert event.fields == {"level": "WARN"}
    for value, reason in ((b"nonsense", "no-match"), (b"\n", "empty-value"), (b"W 1 \xff", "not-utf8")):
        bad = read(reader, value)
        assert isinstance(bad, Bad)
        assert bad.reason == reason


def test_a_request_that_a_scanner_sent_is_still_an_access() -> None:
    reader = source("path", "status", format="text", pattern="combined", fingerprint=["line"], event_time="time")
    line = b'1.2.3.4 - bob smith [17/May/2015:10:05:03 +0200] "\\x16\\x03\\"junk" 400 - "-" "a \\"quoted\\" agent"'
    event = read(reader, line)
    assert isinstance(event, Event)
    assert event.fields == {"path": None, "status": "400"}
    assert event.event_time_ms == 1_431_849_903_000


CE: Headers = (("ce_specversion", b"1.0"), ("ce_id", b"7"), ("ce_source", b"/shop"), ("ce_type", b"order.placed"))


def test_binary_cloudevent_is_read_from_headers_with_null_ones_ignored() -> None:
    headers: Headers = (
        *CE,
        ("ce_time", b"2026-11-29T00:00:00Z"),
        ("ce_subject", None),
        ("note", None),
        *[("same", b"x")] * 500,
        ("content-type", b"application/json; charset=utf-8"),
    )
    event = read(source("data.total", format="cloudevents"), b'{"message":"hi","total":5}', headers=headers, key=b"k")
    assert isinstance(event, Event)
    assert (event.event_id, event.event_type, event.source_system) == ("7", "order.placed", "/shop")
    assert (event.text, event.entity, event.fields) == ("hi", "k", {"data.total": 5})
    assert event.event_time_ms == 1_795_910_400_000


def test_structured_cloudevent_is_the_same_event() -> None:
    document = {
        "specversion": "1.0",
        "id": "7",
        "source": "/shop",
        "type": "order.placed",
        "subject": "ann",
        "data": {},
    }
    for headers in ((), (("content-type", b"application/cloudevents+json; charset=UTF-8"),)):
        event = read(source(format="cloudevents"), document, headers=headers)
        assert isinstance(event, Event)
        assert (event.event_id, event.event_type, event.entity, event.event_time_ms) == (
            "7",
            "order.placed",
            "ann",
            NOW_MS,
        )


@pytest.mark.parametrize(
    ("value", "headers", "reason", "field"),
    [
        (b"{}", (), "bad-cloudevent", "specversion"),
        (b'{"specversion":"0.3"}', (), "bad-cloudevent", "specversion"),
        (b'{"specversion":"1.0"}', (), "missing-field", "id"),
        (b"[]", (("content-type", b"application/cloudevents-batch+json"),), "bad-cloudevent", "content-type"),
        (b"x", (("content-type", b"application/cloudevents+avro"),), "bad-cloudevent", "content-type"),
        (b"{}", (("ce_id", None), *CE[:1], *CE[2:]), "missing-field", "id"),
        (b"{}", (*CE[:1], ("ce_id", b"\xff"), *CE[2:]), "not-utf8", "ce_id"),
        (b"{", (*CE, ("content-type", b"application/json")), "invalid-json", ""),
        (None, CE, "null-value", ""),
        (b"", (), "empty-value", ""),
        (b"null", (), "not-an-object", ""),
        (b"[" * 9999, CE, "too-deep", ""),
    ],
)
def test_what_is_no_cloudevent_is_named(value: bytes | None, headers: Headers, reason: str, field: str) -> None:
    bad = read(source(format="cloudevents"), value, headers=headers)
    assert isinstance(bad, Bad)
    assert (bad.reason, bad.field) == (reason, field)


def test_binary_data_that_is_no_json_is_text_or_nothing() -> None:
    reader = source(format="cloudevents", text="data")
    texts = []
    for value, kind in (
        (b"plain", b"text/plain"),
        (b"plain", b""),
        (b"\x00\xff", b"application/octet-stream"),
        (b"", b""),
    ):
        event = read(reader, value, headers=(*CE, ("content-type", kind or None)))
        assert isinstance(event, Event)
        texts.append(event.text[:12])
    assert texts == ["plain", "plain", "order.placed", "order.placed"]
