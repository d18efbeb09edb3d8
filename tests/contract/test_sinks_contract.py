"""What a sink's database must do, whichever it is: one suite for PostgreSQL (a real server) and DuckDB."""

import contextlib
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pytest

from app.errors import SinkError, SinkUnavailable
from app.settings_sinks import SinkSettings
from app.sinks import sql
from app.sinks.batch import Batch, Move, mark_of
from app.sinks.database import Database, Fenced, Written
from app.sinks.duck import Duck
from app.sinks.postgres import Postgres
from app.sinks.tables import TABLES
from models.results import Review, Source
from models.windows import Incident, Step, Window
from tests.helpers.postgres import PostgresServer
from tests.helpers.results import a_record, a_result

pytestmark = pytest.mark.integration

NUMBERS = itertools.count()


class Store:
    """A database of one kind with a way to look into it that isn't the product's."""

    def __init__(self, kind: str, folder: Path, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kind, self._path, self._dsn = kind, folder / "s.duckdb", dsn
        monkeypatch.setenv("SINK_TEST_DSN", dsn)
        self._opened: list[Database] = []

    def sink(self, *topics: str, name: str = "s") -> Database:
        """A sink that has started."""
        tables = [TABLES[topic] for topic in topics or ("ai-results",)]
        if self.kind == "postgres":
            made: Database = Postgres(SinkSettings(name=name, kind="postgres", dsn_env="SINK_TEST_DSN"), tables)
        else:
            made = Duck(name, tables, self._path)
        self._opened.append(made)
        made.start()
        return made

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        if self.kind == "postgres":
            with psycopg.connect(self._dsn, autocommit=True) as connection:
                cursor = connection.execute(statement.encode())
                return cursor.fetchall() if cursor.description else []
        with duckdb.connect(str(self._path)) as file:
            return file.execute(statement).fetchall()

    def end(self) -> None:
        for each in self._opened:
            each.close()


@pytest.fixture(params=["duckdb", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    dsn = ""
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres")
        dsn = server.database(f"t{next(NUMBERS)}")
    made = Store(request.param, tmp_path, dsn, monkeypatch)
    yield made
    made.end()


def write(sink: Database, *records: Any) -> Written:
    """Writes records in one batch, from where the sink stands."""
    places = {(record.topic, record.partition): 0 for record in records}
    batch = Batch({topic: TABLES[topic] for topic in TABLES}, sink.positions(places))
    for record in records:
        batch.add(record)
    return sink.write(batch)


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


def test_tables_that_do_not_fit_are_named_with_what_to_do(store: Store) -> None:
    store.sink().close()
    for change, said in (
        (
            "ALTER TABLE ai_results DROP COLUMN why",
            r'ai_results.why is missing: ALTER TABLE "ai_results" ADD COLUMN "why"',
        ),
        ("ALTER TABLE ai_results ADD COLUMN why TEXT", None),
        ("ALTER TABLE ai_results ADD COLUMN mine INTEGER", None),
        (
            "ALTER TABLE ai_results ALTER COLUMN latency_ms TYPE INTEGER",
            r"latency_ms is (?i:integer), (?i:bigint) is needed",
        ),
    ):
        store.rows(change)
        if said is None:
            store.sink().close()
            continue
        with pytest.raises(SinkError, match=said) as caught:
            store.sink()
        assert not caught.value.retryable
        store.end()


def table_with(store: Store, change: str) -> str:
    """What makes the table of results with something of it changed."""
    columns = sql.create(sql.Layout("ai_results", TABLES["ai-results"].columns, ("event_id",)), Duck.types)
    if store.kind == "postgres":
        columns = sql.create(sql.Layout("ai_results", TABLES["ai-results"].columns, ("event_id",)), Postgres.types)
    return columns.replace('PRIMARY KEY ("event_id")', change)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ('mine INTEGER NOT NULL, PRIMARY KEY ("event_id")', 'mine is NOT NULL.* ALTER COLUMN "mine" DROP NOT NULL'),
        ('PRIMARY KEY ("event_id", "task")', "ai_results can't be written: .*Its primary key must be event_id"),
    ],
)
def test_a_table_that_takes_no_row_ends_the_sink_at_its_start(store: Store, change: str, said: str) -> None:
    store.rows(table_with(store, change))
    with pytest.raises(SinkError, match=said):
        store.sink()


def test_a_column_of_ones_own_that_has_a_default_does_no_harm(store: Store) -> None:
    store.rows(table_with(store, 'mine INTEGER NOT NULL DEFAULT 7, PRIMARY KEY ("event_id")'))
    assert write(store.sink(), a_record(a_result("a"), 0)).rows == 1
    assert store.rows("SELECT event_id, mine FROM ai_results") == [("a", 7)]


def test_a_table_that_takes_no_row_any_more_ends_the_sink_and_nothing_is_put_aside(store: Store) -> None:
    sink = store.sink()
    store.rows("ALTER TABLE ai_results ADD COLUMN mine INTEGER")
    store.rows("ALTER TABLE ai_results ALTER COLUMN mine SET NOT NULL")
    with pytest.raises(SinkError, match="mine is NOT NULL"):
        write(sink, a_record(a_result("a"), 0))
    assert store.rows("SELECT count(*) FROM headrace_rejected") == [(0,)]
    assert sink.positions({("ai-results", 0): 0}) == {("ai-results", 0): 0}


def test_a_rule_of_the_table_that_a_whole_batch_breaks_ends_the_sink_and_one_that_few_break_does_not(
    store: Store,
) -> None:
    store.rows(table_with(store, "CHECK (task <> 'no'), PRIMARY KEY (\"event_id\")"))
    sink = store.sink()
    few = [a_record(a_result(f"f{n}", task="no"), n) for n in range(3)]
    assert len(write(sink, *few).rejected) == 3
    with pytest.raises(SinkError, match=r"all of 12 rows are refused: .*change the table's rule"):
        write(sink, *[a_record(a_result(f"m{n}", task="no"), n) for n in range(3, 15)])
    assert sink.positions({("ai-results", 0): 0}) == {("ai-results", 0): 3}
    mixed = [a_record(a_result(f"x{n}", task="no" if n % 2 else "yes"), n) for n in range(3, 23)]
    assert write(sink, *mixed).rows == 10


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


def test_a_table_that_somebody_drops_ends_the_sink_with_the_reason(store: Store) -> None:
    sink = store.sink()
    store.rows("DROP TABLE ai_results")
    with pytest.raises(SinkError, match="ai_results") as caught:
        write(sink, a_record(a_result("a"), 0))
    assert not caught.value.retryable


# -- each for itself ---------------------------------------------------------------------------------------------------


def test_one_process_writes_a_duckdb_file_and_others_may_read_it(tmp_path: Path) -> None:
    sink = Duck("a", [TABLES["ai-results"]], tmp_path / "f.duckdb")
    sink.start()
    with pytest.raises(SinkError, match=r"writes .*f.duckdb already") as caught:
        Duck("b", [TABLES["ai-results"]], tmp_path / "f.duckdb").start()
    assert not caught.value.retryable
    write(sink, a_record(a_result("a"), 0))
    with duckdb.connect(str(tmp_path / "f.duckdb"), read_only=True) as reader:
        assert reader.execute("SELECT event_id FROM ai_results").fetchall() == [("a",)]
    sink.close()


def test_a_file_that_cannot_be_opened_is_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "f.duckdb"
    path.write_bytes(b"not a database" * 1000)
    sink = Duck("a", [TABLES["ai-results"]], path)
    with pytest.raises(SinkUnavailable, match="can't be opened"):
        sink.start()
    sink.close()


@contextlib.contextmanager
def stopped(server: PostgresServer) -> Iterator[None]:
    server.kill()
    try:
        yield
    finally:
        server.start()


def test_a_postgres_that_was_killed_is_retryable_and_then_goes_on(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store("postgres", tmp_path, postgres.database(f"t{next(NUMBERS)}"), monkeypatch)
    sink = store.sink()
    batch = Batch(TABLES, sink.positions({("ai-results", 0): 0}))
    batch.add(a_record(a_result("a"), 0))
    with stopped(postgres):
        for _ in range(2):
            with pytest.raises(SinkUnavailable):
                sink.write(batch)
    assert sink.write(batch).rows == 1
    store.end()


def test_a_process_that_is_stopped_in_a_transaction_is_fenced_when_it_goes_on(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store("postgres", tmp_path, postgres.database(f"t{next(NUMBERS)}"), monkeypatch)
    slow, quick = store.sink(), store.sink()
    place = {("ai-results", 0): 0}
    old, new = Batch(TABLES, slow.positions(place)), Batch(TABLES, quick.positions(place))
    old.add(a_record(a_result("a", category="old"), 0))
    for offset in range(3):
        new.add(a_record(a_result("a", category=f"new{offset}"), offset))
    quick.write(new)
    with pytest.raises(Fenced):
        slow.write(old)
    assert store.rows("SELECT category, kafka_offset FROM ai_results") == [("new2", 2)]
    store.end()


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ("", "isn't set"),
        ("postgresql://u:secret@[::1", "can't|isn't"),
        ("host=/nowhere password=secret dbname", "libpq can read"),
    ],
)
def test_a_wrong_connection_string_is_refused_without_showing_it(
    env: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SINK_TEST_DSN", env)
    with pytest.raises(SinkError, match=said) as caught:
        Postgres(SinkSettings(name="s", kind="postgres", dsn_env="SINK_TEST_DSN"), [])
    assert "secret" not in str(caught.value)


def test_a_connection_string_with_an_application_name_of_its_own_is_taken(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dsn = postgres.database(f"t{next(NUMBERS)}")
    for given, name in ((dsn, "headrace-sink-s"), (f"{dsn} application_name=mine", "mine")):
        store = Store("postgres", tmp_path, given, monkeypatch)
        store.sink()
        found = store.rows(
            f"SELECT count(*) FROM pg_stat_activity WHERE application_name = '{name}' AND state = 'idle'"
        )
        assert found == [(1,)]
        store.end()


@pytest.mark.parametrize(("encoding", "refused"), [("SQL_ASCII", 0), ("LATIN1", 1)])
def test_a_database_of_another_encoding_takes_what_it_can_hold(
    encoding: str, refused: int, postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dsn = postgres.database(f"t{next(NUMBERS)}", encoding)
    store = Store("postgres", tmp_path, dsn, monkeypatch)
    sink = store.sink()
    written = write(sink, a_record(a_result("ü"), 0), a_record(a_result("订单"), 1), a_record(a_result("a"), 2))
    assert (written.rows, len(written.rejected)) == (3 - refused, refused)
    assert sink.positions({("ai-results", 0): 0}) == {("ai-results", 0): 3}
    with psycopg.connect(dsn, client_encoding="UTF8") as connection:
        found = connection.execute("SELECT event_id FROM ai_results WHERE event_id = 'ü'").fetchall()
    assert found == [("ü",)]
    store.end()
