"""Our own envelope: what is an event, and what each broken record is called."""

import pytest

from app.sources.document import parse
from app.sources.reasons import REASONS
from models.events import Bad, Event
from tests.helpers.records import NOW_MS, envelope, record, source

SOURCE = source()


def read(value: bytes | None, **more: object) -> Event:
    event = SOURCE.read(record(value, **more))  # type: ignore[arg-type]
    assert isinstance(event, Event), event
    return event


def refuse(value: bytes | None) -> tuple[str, str]:
    bad = SOURCE.read(record(value))
    assert isinstance(bad, Bad), bad
    assert bad.reason in REASONS
    assert bad.message
    return bad.reason, bad.field


def test_all_fields_arrive() -> None:
    value = envelope(source_system="shop", trace_id="t1", payload={"message": "hi"}, entity_id="u7", extra=[1])
    assert read(value, key=b"user-1") == Event(
        event_id="e1",
        event_type="order.created",
        event_time_ms=NOW_MS - 1000,
        entity="user-1",
        source_system="shop",
        trace_id="t1",
        text="hi",
    )


def test_null_zero_bytes_json_null_and_empty_object_are_four_different_dead_letters() -> None:
    outcomes = [refuse(value) for value in (None, b"", b"null", b"{}")]
    assert outcomes == [("null-value", ""), ("empty-value", ""), ("not-an-object", ""), ("missing-field", "event_id")]


@pytest.mark.parametrize(
    ("value", "reason", "field"),
    [
        (envelope(event_type=...), "missing-field", "event_type"),
        (envelope(event_time=None), "missing-field", "event_time"),
        (envelope(event_id=""), "bad-field", "event_id"),
        (envelope(event_id=True), "bad-field", "event_id"),
        (envelope(event_id=["a"]), "bad-field", "event_id"),
        (envelope(event_id=1.0), "bad-field", "event_id"),
        (envelope(event_id="x" * 513), "bad-field", "event_id"),
        (envelope(event_id="é" * 257), "bad-field", "event_id"),
        (b'{"event_id":1e3,"event_type":"a","event_time":1}', "bad-field", "event_id"),
        (b'{"event_id":' + b"1" * 5000 + b',"event_type":"a","event_time":1}', "bad-field", "event_id"),
        (b'{"event_id":"\\ud83d","event_type":"a","event_time":1}', "bad-field", "event_id"),
        (envelope(event_type=""), "bad-field", "event_type"),
        (envelope(event_type=5), "bad-field", "event_type"),
        (envelope(event_time=[]), "bad-field", "event_time"),
        (envelope(event_time=True), "bad-field", "event_time"),
        (envelope(summary=5), "bad-field", "summary"),
        (envelope(trace_id={}), "bad-field", "trace_id"),
        (envelope(entity_id=1.5), "bad-field", "entity_id"),
        (b"[]", "not-an-object", ""),
        (b'"text"', "not-an-object", ""),
        (b"   ", "invalid-json", ""),
        (b"\xef\xbb\xbf" + envelope(), "invalid-json", ""),
        (envelope().replace(b"e1", b"caf\xe9"), "not-utf8", ""),
        (envelope(extra="caf").replace(b"caf", b"caf\xe9"), "not-utf8", ""),
        (envelope(extra="caf").replace(b"caf", b"\xed\xa0\x80"), "not-utf8", ""),
        ("{}".encode("utf-16"), "not-utf8", ""),
        (envelope().replace(b"e1", b"e\\x1"), "invalid-json", ""),
        (envelope(extra=1).replace(b" 1}", b" 01}"), "invalid-json", ""),
        (envelope(extra=1).replace(b" 1}", b" NaN}"), "invalid-json", ""),
        (envelope(payload=1).replace(b" 1}", b" -Infinity}"), "invalid-json", ""),
        (envelope() + b"x", "invalid-json", ""),
        (envelope(payload="x" * 1_000_000), "too-large", ""),
    ],
)
def test_what_is_wrong_is_named(value: bytes, reason: str, field: str) -> None:
    assert refuse(value) == (reason, field)


@pytest.mark.parametrize("brackets", [101, 10_000, 100_000])
@pytest.mark.parametrize("where", [b'"payload":', b'"unknown":'])
def test_deep_nesting_is_refused_wherever_it_is(brackets: int, where: bytes) -> None:
    value = envelope()[:-1] + b"," + where + b"[" * brackets + b"]" * brackets + b"}"
    assert refuse(value)[0] == "too-deep"
    assert refuse(b"[" * brackets)[0] == "too-deep"


def test_depth_counts_nesting_and_not_brackets_in_text() -> None:
    wide = envelope(payload={"message": "]" * 500 + '\\"' + "[{" * 500, "list": [[], {}] * 300})
    assert read(wide).text.startswith("]]]")
    assert read(envelope()[:-1] + b',"payload":' + b"[" * 99 + b"]" * 99 + b"}").event_id == "e1"
    hidden = b'"' + b"]" * 300 + b'",' + b"[" * 150 + b"]" * 150
    assert refuse(envelope()[:-1] + b',"payload":[' + hidden + b"]}")[0] == "too-deep"


def test_integer_ids_keep_every_digit_and_equal_their_text() -> None:
    ids = [read(envelope(event_id=i)).event_id for i in (9007199254740993, 9007199254740992, 1000, "1000", 2**64 + 1)]
    assert ids == ["9007199254740993", "9007199254740992", "1000", "1000", "18446744073709551617"]


def test_the_last_of_repeated_keys_counts_on_both_ways_of_reading() -> None:
    value = b'{"event_id":"a","event_id":"b","event_type":"heartbeat","event_type":"order","event_time":1}'
    odd = value.replace(b'"event_id":"a"', b'"event_id":[]')  # only the tolerant parser takes this one
    for one in (value, odd):
        event = read(one)
        assert (event.event_id, event.event_type) == ("b", "order")


def test_half_an_emoji_passes_and_becomes_a_replacement_character() -> None:
    value = b'{"event_id":"s1","event_type":"m","event_time":1,"trace_id":"\\udead","payload":{"message":"hi \\ud83d"}}'
    event = read(value)
    assert event.text == "hi \ufffd"
    assert event.trace_id == "\ufffd"
    assert read(value.replace(b"ud83d", b"ud83d\\ude00")).text == "hi \U0001f600"


@pytest.mark.parametrize("number", [b"1e999", b"-1E+9999", b"123456789012345678901234567890", b"9" * 5000])
def test_huge_numbers_are_no_broken_json(number: bytes) -> None:
    event = read(b'{"event_id":"n","event_type":"m","event_time":1,"payload":{"x":' + number + b"}}")
    assert event.text.startswith('m {"x":')


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"summary": "short", "payload": {"message": "long"}}, "short"),
        ({"summary": "", "payload": {"message": "long"}}, "long"),
        ({"payload": {"message": "", "text": "second"}}, "second"),
        ({"payload": {"message": 5, "a": [1, 2]}}, 'order.created {"message":5,"a":[1,2]}'),
        ({"payload": "just text"}, 'order.created "just text"'),
        ({}, "order.created"),
        ({"payload": {"message": "退款"}}, "退款"),
    ],
)
def test_the_text_to_classify(fields: dict[str, object], text: str) -> None:
    assert read(envelope(**fields)).text == text


def test_a_payload_that_stands_in_for_text_is_cut() -> None:
    assert len(read(envelope(payload={"x": "😀" * 5000})).text) == len("order.created ") + 2000


@pytest.mark.parametrize(
    ("key", "entity_id", "entity"),
    [
        (b"user-1", "field", "user-1"),
        (None, "field", "field"),
        (b"", "field", "field"),
        (None, 17, "17"),
        (None, ..., "e1"),
        (b"\xff", "field", "\ufffd"),
    ],
)
def test_the_entity_is_the_key_then_the_field_then_the_id(key: bytes | None, entity_id: object, entity: str) -> None:
    assert read(envelope(entity_id=entity_id), key=key).entity == entity


def test_trace_id_comes_from_traceparent_where_the_envelope_has_none() -> None:
    headers = (("note", None), ("traceparent", b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01"))
    assert read(envelope(), headers=headers).trace_id == "a" * 32
    assert read(envelope(trace_id="own"), headers=headers).trace_id == "own"
    assert read(envelope(), headers=(("traceparent", None),)).trace_id == ""


def test_fields_for_rules_come_from_payload_and_document() -> None:
    wanted = source("payload.level", "region", "payload.tags[0]", "payload.none.deeper")
    event = wanted.read(record(envelope(region="eu", payload={"level": 3, "tags": ["a"], "none": None})))
    assert isinstance(event, Event)
    assert event.fields == {"payload.level": 3, "region": "eu", "payload.tags[0]": "a", "payload.none.deeper": None}


def test_text_is_left_out_where_nobody_asks() -> None:
    event = source(with_text=False).read(record(envelope(summary="short")))
    assert isinstance(event, Event)
    assert event.text == ""


def test_no_message_holds_payload_text() -> None:
    for value in (
        envelope(event_time="SECRET"),
        envelope(event_id=["SECRET"]),
        b'{"SECRET',
        envelope(event_type=["SECRET"]),
    ):
        bad = SOURCE.read(record(value))
        assert isinstance(bad, Bad)
        assert "SECRET" not in bad.message


def test_a_value_cut_short_says_so_and_half_a_pair_at_its_end_is_still_valid() -> None:
    cut = parse(b'{"event_id": "e1", "payl', 64)
    assert isinstance(cut, Bad)
    assert (cut.reason, cut.message) == ("invalid-json", "the value ends in the middle, after 24 bytes")
    assert parse(b'{"a":"\\ud800"}', 64) == {"a": "\ud800"}
