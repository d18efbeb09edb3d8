"""Any bytes and any JSON through every kind of source."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.sources.document import compact
from app.sources.reasons import REASONS
from models.events import Bad, Event, Headers
from tests.helpers.records import NOW_MS, envelope, record, source

FIELDS = ("payload.a", "a.b", "unknown[0]", "length(payload)")
SOURCES = [
    source(*FIELDS),
    source(with_text=False),
    source(text="{payload.a} {unknown}"),
    source(*FIELDS, format="json", fingerprint=["@"], event_type="=x", event_time="event_time", entity="payload"),
    source(*FIELDS, format="json", event_id="event_id", event_type="event_type", text="{payload}"),
    source(*FIELDS, format="cloudevents"),
    source(format="text", pattern="combined", fingerprint=["line"], event_time="time"),
    source(format="text", pattern="syslog", fingerprint=["line"], event_time="time", timezone="Europe/Berlin"),
    source(format="text", pattern="line", event_id="line"),
]

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(), max_size=40)  # lone surrogates too
)
anything = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text(st.characters(), max_size=8), inner, max_size=5)
    ),
    max_leaves=20,
)
headers = st.lists(
    st.tuples(
        st.sampled_from(
            ["ce_id", "ce_specversion", "ce_type", "ce_source", "ce_time", "content-type", "traceparent", "x"]
        ),
        st.none() | st.binary(max_size=60) | st.sampled_from([b"1.0", b"application/json", b"application/cloudevents"]),
    ),
    max_size=8,
)


def check(outcome: object) -> None:
    """Whatever comes out, later stages can encode it."""
    if isinstance(outcome, Bad):
        assert outcome.reason in REASONS
        assert outcome.message
        return
    assert isinstance(outcome, Event)
    for text in (
        outcome.event_id,
        outcome.event_type,
        outcome.entity,
        outcome.text,
        outcome.trace_id,
        outcome.source_system,
    ):
        text.encode()
    assert outcome.event_id
    assert outcome.event_type
    assert outcome.entity
    assert outcome.event_time_ms >= 0


@pytest.mark.parametrize("reader", SOURCES, ids=range(len(SOURCES)))
@settings(max_examples=150, deadline=None)
@given(value=st.none() | st.binary(max_size=300), key=st.none() | st.binary(max_size=20), more=headers)
def test_read_never_raises_on_any_bytes(reader: Any, value: bytes | None, key: bytes | None, more: Headers) -> None:
    check(reader.read(record(value, key=key, headers=more)))


@pytest.mark.parametrize("reader", SOURCES, ids=range(len(SOURCES)))
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_read_never_raises_on_json_close_to_what_it_wants(reader: Any, data: st.DataObject) -> None:
    names = ["event_id", "event_type", "event_time", "payload", "summary", "entity_id", "trace_id", "source_system"]
    names += ["specversion", "id", "type", "source", "time", "data", "subject", "unknown"]
    likely = st.sampled_from(["1.0", "e1", NOW_MS, "2026-11-29T10:00:00Z"])
    document = data.draw(st.dictionaries(st.sampled_from(names), likely | anything, max_size=12))
    value = json.dumps(document, ensure_ascii=data.draw(st.booleans())).encode("utf-8", "surrogatepass")
    check(reader.read(record(value, key=data.draw(st.none() | st.binary(max_size=20)))))


@settings(max_examples=300, deadline=None)
@given(payload=anything)
def test_any_json_as_payload_is_accepted_and_reaches_rules_unchanged(payload: object) -> None:
    event = source("payload").read(record(envelope(payload=payload)))
    assert isinstance(event, Event)
    assert event.fields["payload"] == payload
    event.text.encode()


@settings(max_examples=300, deadline=None)
@given(payload=anything)
def test_compact_json_reads_back_but_for_halves_of_pairs(payload: object) -> None:
    text = json.dumps(payload, ensure_ascii=False)
    if text.encode("utf-8", "replace").decode() == text:
        assert json.loads(compact(payload)) == payload


@settings(max_examples=300, deadline=None)
@given(value=st.binary(max_size=60), at=st.integers(0, 200))
def test_the_fast_way_accepts_nothing_that_the_standard_library_refuses(value: bytes, at: int) -> None:
    good = envelope(payload={"a": [1, "x"]}, unknown="some text", other=[{}, 1.5e3, None])
    broken = good[: at % len(good)] + value + good[at % len(good) :]
    if isinstance(source().read(record(broken)), Event):
        json.loads(broken.decode("utf-8", "strict"), parse_constant=pytest.fail)


@settings(max_examples=200, deadline=None)
@given(depth=st.integers(0, 130), junk=st.text(st.sampled_from('[]{}"\\ a'), max_size=30))
def test_depth_is_counted_exactly(depth: int, junk: str) -> None:
    nested = b'{"k":' * depth + json.dumps(junk).encode() + b"}" * depth
    outcome = source().read(
        record(envelope()[:-1] + b',"junk":' + json.dumps([junk] * 20).encode() + b',"n":' + nested + b"}")
    )
    if depth < 100:
        assert isinstance(outcome, Event)
    else:
        assert isinstance(outcome, Bad)
        assert outcome.reason == "too-deep"


WHOLE = st.sampled_from(["plain", "文字", "\U0001f600"]).map(lambda text: envelope(payload={"message": text}))
CUT = WHOLE.flatmap(lambda value: st.integers(1, len(value)).map(lambda end: value[:end]))
NOT_UTF8 = envelope(payload={"message": "plain"}).replace(b"plain", b"\xe4")


@settings(max_examples=100, deadline=None)
@given(values=st.lists(WHOLE | CUT | st.just(NOT_UTF8) | st.none(), max_size=6))
def test_reading_many_gives_what_each_gives_alone(values: list[bytes | None]) -> None:
    records = [record(value) for value in values]
    for reader in SOURCES[:6]:
        assert reader.read_all(records) == [reader.read(each) for each in records]
