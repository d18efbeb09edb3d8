"""Sinks without a database: columns, batches, settings."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import SettingsError
from app.settings import load
from app.sinks import sql
from app.sinks.batch import Batch, Move
from app.sinks.tables import TABLES, Column, Unreadable
from models.results import Result
from tests.helpers.results import a_record, a_result

RESULTS = TABLES["ai-results"]


def test_a_table_has_a_column_for_each_field_of_its_model_and_for_the_place() -> None:
    names = [column.name for column in RESULTS.columns]
    parts = {
        "tokens": ["tokens_prompt", "tokens_completion"],
        "source": [f"source_{n}" for n in ("topic", "partition", "offset")],
    }
    expected = [name for field in Result.__struct_fields__ for name in parts.get(field, [field])]
    assert names == [*expected, "kafka_partition", "kafka_offset", "kafka_timestamp_ms"]
    kinds = {column.name: (column.kind, column.nullable) for column in RESULTS.columns}
    assert kinds["fields"] == ("json", True)
    assert (kinds["confidence"], kinds["created_ms"], kinds["tier"]) == (
        ("number", False),
        ("integer", False),
        ("text", False),
    )
    window = {column.name: (column.kind, column.nullable) for column in TABLES["agg-events"].columns}
    assert (window["sequence"], window["counts"], window["cut"]) == (
        ("json", False),
        ("json", False),
        ("integer", False),
    )


def test_fields_that_are_absent_have_the_models_defaults_and_unknown_ones_are_left_out() -> None:
    document = json.loads(a_record(a_result("e")).value or b"")
    for name in ("fields", "tokens", "cost_usd", "trace_id", "provider"):
        document.pop(name, None)
    row = dict(
        zip([c.name for c in RESULTS.columns], RESULTS.row(json.dumps({**document, "later": 1}).encode()), strict=False)
    )
    assert (row["fields"], row["tokens_prompt"], row["cost_usd"], row["trace_id"]) == (None, 0, 0.0, "")


@pytest.mark.parametrize("value", [b"", b"7", b"{", b"\xff", b'{"event_id": 5}', b'{"event_id": "\\ud800"}'])
def test_what_is_no_result_is_said_without_its_payload(value: bytes) -> None:
    with pytest.raises(Unreadable) as caught:
        RESULTS.row(value)
    assert "ud800" not in str(caught.value)


OPERATIONS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2), st.booleans()), max_size=60)


@given(OPERATIONS)
def test_of_each_key_a_batch_has_the_last_that_was_said_of_it(operations: list[tuple[int, int, bool]]) -> None:
    batch = Batch(TABLES, {("ai-results", p): 0 for p in range(3)})
    expected: dict[str, Any] = {}
    moves: dict[tuple[str, int], Move] = {}
    for offset, (number, partition, gone) in enumerate(operations):
        key = f"{partition}-{number}"  # a key is always in the same partition
        batch.add(a_record(None if gone else a_result(key, category=str(offset)), offset, partition, key=key.encode()))
        expected[key] = None if gone else str(offset)
        moves["ai-results", partition] = Move(0, offset + 1)
    column = [c.name for c in RESULTS.columns].index("category")
    assert {e.key: e.values and e.values[column] for e in batch.entries} == expected
    assert batch.moves == moves
    assert batch.records == len(operations)


def test_statements_name_what_differs_and_how_to_mend_it() -> None:
    layout = sql.Layout("t", (Column("a", "text"), Column("b", "integer", nullable=True)), ("a",))
    types: sql.Types = {"text": "text", "integer": "bigint"}
    there = {"a": sql.There("TEXT", nullable=False), "b": sql.There("bigint"), "mine": sql.There("date")}
    filled = sql.There("bigint", nullable=False, filled=True)
    assert sql.differences(layout, {**there, "serial": filled}, types) == []
    assert sql.differences(layout, {**there, "mine": sql.There("date", nullable=False), "b": filled}, types) == [
        't.b is NOT NULL, and rows may leave it empty: ALTER TABLE "t" ALTER COLUMN "b" DROP NOT NULL',
        't.mine is NOT NULL, and rows may leave it empty: ALTER TABLE "t" ALTER COLUMN "mine" DROP NOT NULL',
    ]
    assert sql.differences(layout, {"a": sql.There("date")}, types) == [
        't.a is date, text is needed: ALTER TABLE "t" ALTER COLUMN "a" TYPE text',
        't.b is missing: ALTER TABLE "t" ADD COLUMN "b" bigint',
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('name = "a"\nkind = "mysql"', "duckdb"),
        ('name = "a"\ndsn_env = "X"', "dsn_env is for kind postgres"),
        ('name = "a"\nkind = "postgres"\npath = "x"', "path is for kind duckdb"),
        ('name = "a"\nkind = "postgres"\ndsn_env = "HEADRACE_DSN"', "can't begin with HEADRACE_"),
        ('name = "a"\nkind = "postgres"\ndsn_env = "host=x password=y"', "pattern"),
        ('name = "a"\nkind = "postgres"\ndsn = "host=x"', "there is no such setting"),
        ('name = "a"\ntopics = []', "topics"),
        ('name = "a"\ntopics = ["ai-results", "ai-results"]', "must differ"),
        ('name = "a"\ntopics = ["raw-events"]', "ai-results"),
        ('name = "a"\n[[sinks]]\nname = "a"', "names must differ"),
        ('name = "a"\npath = "x.duckdb"\n[[sinks]]\nname = "b"\npath = "x.duckdb"', "must differ"),
    ],
)
def test_a_wrong_sink_is_refused_with_the_reason(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "headrace.toml"
    path.write_text(f"[[sinks]]\n{text}\n")
    with pytest.raises(SettingsError, match=said):
        load(path)
