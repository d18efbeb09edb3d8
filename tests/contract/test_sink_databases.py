"""What a sink says of tables and servers that aren't as it needs them: of both kinds, and of each for itself."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import duckdb
import psycopg
import pytest

from app.errors import SinkError, SinkUnavailable
from app.settings_sinks import SinkSettings
from app.sinks import sql
from app.sinks.batch import Batch, Entry
from app.sinks.database import Fenced, Run
from app.sinks.duck import Duck
from app.sinks.postgres import LIMITS, Postgres
from app.sinks.tables import TABLES
from tests.helpers.postgres import PostgresServer
from tests.helpers.results import a_record, a_result
from tests.helpers.sinks import Store, write

pytestmark = pytest.mark.integration

PLACE = ("ai-results", 0)
IDLE = "idle_in_transaction_session_timeout = '300ms'"


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
    types = Postgres.types if store.kind == "postgres" else Duck.types
    made = sql.create(sql.Layout("ai_results", TABLES["ai-results"].columns, ("event_id",)), types)
    return made.replace('PRIMARY KEY ("event_id")', change)


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
    assert sink.positions({PLACE: 0}) == {PLACE: 0}


def test_a_rule_of_the_table_that_a_whole_batch_breaks_ends_the_sink_and_one_that_few_break_does_not(
    store: Store,
) -> None:
    store.rows(table_with(store, "CHECK (task <> 'no'), PRIMARY KEY (\"event_id\")"))
    sink = store.sink()
    few = [a_record(a_result(f"f{n}", task="no"), n) for n in range(3)]
    assert len(write(sink, *few).rejected) == 3
    with pytest.raises(SinkError, match=r"all of 10 rows are refused: .*change the table's rule"):
        write(sink, *[a_record(a_result(f"m{n}", task="no"), n) for n in range(3, 13)])
    assert sink.positions({PLACE: 0}) == {("ai-results", 0): 3}
    mixed = [a_record(a_result(f"x{n}", task="no" if n % 2 else "yes"), n) for n in range(3, 9)]
    assert write(sink, *mixed).rows == 3


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


def test_a_postgres_that_was_killed_is_retryable_and_then_goes_on(postgres: PostgresServer, in_postgres: Store) -> None:
    sink = in_postgres.sink()
    batch = Batch(TABLES, sink.positions({PLACE: 0}))
    batch.add(a_record(a_result("a"), 0))
    with stopped(postgres):
        for _ in range(2):
            with pytest.raises(SinkUnavailable):
                sink.write(batch)
    assert sink.write(batch).rows == 1


def test_a_process_that_stands_still_in_a_transaction_holds_up_nobody_and_is_fenced_when_it_goes_on(
    in_postgres: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "app.sinks.postgres.LIMITS", LIMITS.replace("idle_in_transaction_session_timeout = '30s'", IDLE)
    )
    still, quick = in_postgres.sink(), in_postgres.sink()
    batches = [Batch(TABLES, each.positions({PLACE: 0})) for each in (still, quick)]
    for category, batch in zip(("old", "new"), batches, strict=True):
        batch.add(a_record(a_result("a", category=category), 0))
    put = still._put

    def meanwhile(run: Run, entries: list[Entry]) -> tuple[int, int]:
        assert quick.write(batches[1]).rows == 1  # waits for the row of the position, until the server ends the other
        return put(run, entries)

    monkeypatch.setattr(still, "_put", meanwhile)
    with pytest.raises(SinkUnavailable, match="idle-in-transaction"):
        still.write(batches[0])
    with pytest.raises(Fenced):
        still.write(batches[0])
    assert in_postgres.rows("SELECT category FROM ai_results") == [("new",)]


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
    in_postgres: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for more, name in (("", "headrace-sink-s"), (" application_name=mine", "mine")):
        monkeypatch.setenv("SINK_TEST_DSN", in_postgres.dsn + more)
        sink = in_postgres.sink()
        found = in_postgres.rows(
            f"SELECT count(*) FROM pg_stat_activity WHERE application_name = '{name}' AND state = 'idle'"
        )
        assert found == [(1,)]
        sink.close()


@pytest.mark.parametrize(("encoding", "refused"), [("SQL_ASCII", 0), ("LATIN1", 1)])
def test_a_database_of_another_encoding_takes_what_it_can_hold(
    encoding: str, refused: int, postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store("postgres", tmp_path, postgres.database(encoding), monkeypatch)
    sink = store.sink()
    written = write(sink, a_record(a_result("ü"), 0), a_record(a_result("订单"), 1), a_record(a_result("a"), 2))
    assert (written.rows, len(written.rejected)) == (3 - refused, refused)
    assert sink.positions({PLACE: 0}) == {PLACE: 3}
    with psycopg.connect(store.dsn, client_encoding="UTF8") as connection:
        found = connection.execute("SELECT event_id FROM ai_results WHERE event_id = 'ü'").fetchall()
    assert found == [("ü",)]
    store.end()
