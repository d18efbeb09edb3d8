"""What a sink's database must do with rows and positions: one suite for PostgreSQL (a real server) and DuckDB."""

import json

import pytest

from app.sinks.batch import Batch, Move, mark_of
from app.sinks.database import Fenced
from app.sinks.tables import TABLES
from models.results import Review, Source
from models.windows import Incident, Step, Window
from tests.helpers.results import a_record, a_result
from tests.helpers.sinks import Store, write

pytestmark = pytest.mark.integration


def test_every_field_of_a_result_has_its_column_with_every_digit(store: Store) -> None:
    fields = '{"n":12345678901234567890123,"x":1.50,"t":"\\u00fc \\ud83d\\ude00","l":[1,null]}'
    raw = json.dumps({**json.loads(a_record(a_result("e/1 😀'\"")).value or b""), "new": 1})
    raw = raw.replace('"fields": null', f'"fields": {fields}')
    assert write(store.sink(), a_record(raw.encode(), 17, 2)).rows == 1
    (row,) = store.rows(
        "SELECT event_id, event_type, task, category, confidence, tier, why, provider, model, model_version, "
        "prompt_version, tokens_prompt, tokens_completion, cost_usd, latency_ms, created_ms, source_topic, "
        "source_partition, source_offset, entity, trace_id, kafka_partition, kafka_offset, kafka_timestamp_ms FROM ai_results"
    )
    assert row == (
        "e/1 😀'\"", "order.created", "shop", "order", 0.75, "deep", "no rule", "", "", "", "", 120, 7, 0.0000125, 12,
        1_796_000_000_000, "raw-events", 3, 99, "u1", "", 2, 17, 1_796_000_000_000,
    )  # fmt: skip
    ((kept,),) = store.rows("SELECT CAST(fields AS TEXT) FROM ai_results")
    assert "12345678901234567890123" in kept
    assert json.loads(kept) == json.loads(fields)


def test_all_topics_have_a_table(store: Store) -> None:
    source = Source("raw-events", 0, 5)
    review = Review(
        event_id="r1", event_type="t", event_time_ms=1, entity="u", task="shop", text="héllo", categories=["a", "b"],
        cause="cut", attempts=2, created_ms=9, source=source,
    )  # fmt: skip
    window = Window(
        "u@m@0", "m", "u", 0, 60_000, 3, 1, 2, {"x": 3}, 0, {"amount": 1.5}, [], [Step(1, "x")], 0, ["rule"], source, 9
    )
    incident = Incident(
        id="u@m@0@rule", kind="k", severity="high", rule="rule", aggregate="m", entity="u", start_ms=0, end_ms=60_000,
        open=True, events=3, counts={"x": 3}, features={"amount": None}, sequence=[Step(1, "x")], source=source,
        created_ms=9,
    )  # fmt: skip
    sink = store.sink(*TABLES)
    written = write(
        sink,
        a_record(review, topic="manual-review"),
        a_record(window, topic="agg-events"),
        a_record(incident, topic="agent-trigger"),
    )
    assert (written.rows, written.rejected) == (3, [])
    assert store.rows("SELECT event_id, text, CAST(categories AS TEXT) FROM manual_review")[0][:2] == ("r1", "héllo")
    assert store.rows("SELECT id, events, cut, source_offset FROM agg_events") == [("u@m@0", 3, 0, 5)]
    assert store.rows('SELECT id, "open", severity FROM agent_trigger') == [("u@m@0@rule", True, "high")]


def test_the_latest_result_of_an_event_stands_and_a_tombstone_takes_it_away(store: Store) -> None:
    sink = store.sink()
    first = [
        a_record(a_result("a", category="x"), 0),
        a_record(a_result("b"), 1),
        a_record(a_result("a", category="y"), 2),
    ]
    assert write(sink, *first).rows == 2
    assert store.rows("SELECT event_id, category, kafka_offset FROM ai_results ORDER BY 1") == [
        ("a", "y", 2),
        ("b", "order", 1),
    ]
    assert write(sink, a_record(None, 3, key=b"b"), a_record(a_result("a", category="z"), 4)) == (1, 1, [])
    assert (
        write(sink, a_record(None, 5, key=b"never"), a_record(None, 6, key=b"a"), a_record(a_result("a"), 7)).deleted
        == 0
    )
    assert store.rows("SELECT event_id, kafka_offset FROM ai_results") == [("a", 7)]


def test_a_batch_that_was_written_already_is_fenced_and_changes_nothing(store: Store) -> None:
    sink = store.sink()
    batch = Batch(TABLES, sink.positions({("ai-results", 0): 5}))
    batch.add(a_record(a_result("a"), 5))
    sink.write(batch)
    with pytest.raises(Fenced):
        sink.write(batch)
    assert sink.positions({("ai-results", 0): 0, ("ai-results", 1): 3}) == {("ai-results", 0): 6, ("ai-results", 1): 3}
    assert store.rows("SELECT count(*) FROM ai_results") == [(1,)]


def test_a_fenced_batch_of_several_partitions_is_written_to_none(store: Store) -> None:
    sink = store.sink()
    at = sink.positions({("ai-results", 0): 0, ("ai-results", 1): 0})
    write(sink, a_record(a_result("theirs"), 0, 1))
    batch = Batch(TABLES, at)
    batch.add(a_record(a_result("mine"), 0, 0))
    batch.add(a_record(a_result("theirs", category="old"), 0, 1))
    with pytest.raises(Fenced):
        sink.write(batch)
    assert store.rows("SELECT event_id, category FROM ai_results") == [("theirs", "order")]
    assert sink.positions(at) == {("ai-results", 0): 0, ("ai-results", 1): 1}


def test_an_older_write_never_replaces_a_newer_one_wherever_positions_stand(store: Store) -> None:
    sink = store.sink()
    write(sink, a_record(a_result("a", category="new"), 9))
    at = sink.positions({("ai-results", 0): 0})
    for offset, value in ((8, a_result("a", category="old")), (9, a_result("a", category="same")), (3, None)):
        batch = Batch(TABLES, at)
        batch.add(a_record(value, offset, key=b"a"))
        batch.moves = {("ai-results", 0): Move(10, 10)}  # as after somebody set the position back
        assert sink.write(batch)[:2] == (0, 0)
    assert store.rows("SELECT category, kafka_offset FROM ai_results") == [("new", 9)]


def test_where_partitions_were_added_the_time_decides(store: Store) -> None:
    sink = store.sink()
    write(sink, a_record(a_result("a", category="first"), 900, 0, timestamp=1000))
    write(sink, a_record(a_result("a", category="later"), 2, 7, timestamp=2000))
    write(sink, a_record(a_result("a", category="older"), 901, 0, timestamp=1500))
    assert store.rows("SELECT category, kafka_partition FROM ai_results") == [("later", 7)]


BAD = [
    b"not json", b"[]", b'{"event_id":"x"}', b"", b"\xff\xfe", b"[" * 100_000,
    json.dumps({**json.loads(a_record(a_result("n")).value or b""), "confidence": "high"}).encode(),
    (a_record(a_result("m")).value or b"").replace(b'"latency_ms":12', b'"latency_ms":99999999999999999999'),
]  # fmt: skip


def test_what_is_no_row_is_kept_byte_for_byte_and_the_rest_goes_on(store: Store) -> None:
    sink = store.sink()
    records = [a_record(a_result(f"e{n}"), n) for n in range(20)]
    for n, value in enumerate(BAD):
        records.insert(n * 2, a_record(value, 0, key=b"k\0"))
    records = [a_record(record.value, offset, key=record.key) for offset, record in enumerate(records)]
    records.append(a_record(None, len(records), key=b"\xff"))
    written = write(sink, *records)
    assert (written.rows, len(written.rejected)) == (20, len(BAD) + 1)
    kept = store.rows("SELECT kafka_offset, key, value, reason FROM headrace_rejected ORDER BY kafka_offset")
    assert [None if value is None else bytes(value) for _, _, value, _ in kept] == [*BAD, None]
    assert bytes(kept[0][1]) == b"k\0"
    assert all(reason for *_, reason in kept)
    assert sink.positions({("ai-results", 0): 0}) == {("ai-results", 0): len(records)}


def test_a_character_that_postgres_has_not_costs_only_its_own_record(store: Store) -> None:
    sink = store.sink()
    odd = [a_result("nul\0id"), a_result("n1", why="a\0b"), a_result("n2", fields={"k": "\0"})]
    records = [a_record(a_result(f"e{n}"), n) for n in range(500)]
    records[100:100] = [a_record(each) for each in odd]
    records = [a_record(record.value, offset, key=record.key) for offset, record in enumerate(records)]
    written = write(sink, *records)
    refused = 3 if store.kind == "postgres" else 0
    assert (written.rows, len(written.rejected)) == (503 - refused, refused)
    kept = store.rows("SELECT value FROM headrace_rejected ORDER BY kafka_offset")
    assert [bytes(value) for (value,) in kept] == [a_record(each).value for each in odd][:refused]
    if not refused:
        assert store.rows("SELECT count(*) FROM ai_results WHERE why = 'a' || chr(0) || 'b'") == [(1,)]


def test_an_id_of_any_length_is_a_row_or_kept(store: Store) -> None:
    sink = store.sink()
    long = "".join(chr(0x4E00 + n * 7919 % 20000) for n in range(4000))  # doesn't pack into an index page
    written = write(sink, a_record(a_result(long), 0), a_record(a_result("short"), 1))
    assert (written.rows + len(written.rejected), written.rows) == (2, 2 if store.kind == "duckdb" else 1)


def test_the_last_record_of_each_partition_is_remembered_until_another_is_written(store: Store) -> None:
    sink = store.sink()
    first, place = a_record(a_result("a"), 0), ("ai-results", 0)
    write(sink, first)
    assert sink.marks() == {place: mark_of(first)}
    passed = Batch(TABLES, sink.positions({place: 0}))
    passed.reach(place, 9)
    assert sink.write(passed) == (0, 0, [])
    assert (sink.positions({place: 0}), sink.marks()) == ({place: 9}, {place: mark_of(first)})
    broken = a_record(b"{", 9, timestamp=5)
    write(sink, broken)
    assert sink.marks() == {place: mark_of(broken)}


def test_another_sink_has_positions_of_its_own(store: Store) -> None:
    first = store.sink(name="one")
    write(first, a_record(a_result("a"), 0))
    first.close()
    second = store.sink(name="two")
    assert second.positions({("ai-results", 0): 0}) == {("ai-results", 0): 0}
    assert write(second, a_record(a_result("a"), 0)).rows == 0
