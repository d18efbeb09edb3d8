"""The statements of sinks. PostgreSQL and DuckDB take the same ones but for the names of types."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from app.sinks.tables import OFFSET, PARTITION, TIMESTAMP, Column, Kind, Table

__all__ = [
    "COLUMNS",
    "POSITIONS",
    "REJECTED",
    "Layout",
    "There",
    "Types",
    "create",
    "delete",
    "differences",
    "keep",
    "marks",
    "move",
    "place",
    "stand",
    "upsert",
]

Types = Mapping[Kind, str]
"""The names of types, as the database's information_schema tells them."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A table as it is made and looked at."""

    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]


class There(NamedTuple):
    """A column as the database tells it."""

    kind: str
    nullable: bool = True
    filled: bool = False
    """By itself, where a row doesn't name it."""


POSITIONS = Layout(
    "headrace_positions",
    (
        Column("sink", "text"), Column("topic", "text"), Column(PARTITION, "small"), Column("next_offset", "integer"),
        Column("last_offset", "integer", nullable=True), Column("last_timestamp_ms", "integer", nullable=True),
        Column("last_crc", "integer", nullable=True),
    ),
    ("sink", "topic", PARTITION),
)  # fmt: skip
REJECTED = Layout(
    "headrace_rejected",
    (
        Column("sink", "text"), Column("topic", "text"), Column(PARTITION, "small"), Column(OFFSET, "integer"),
        Column(TIMESTAMP, "integer"), Column("key", "bytes", nullable=True), Column("value", "bytes", nullable=True),
        Column("reason", "text"),
    ),
    ("sink", "topic", PARTITION, OFFSET),
)  # fmt: skip

COLUMNS = (
    "SELECT column_name, data_type, is_nullable = 'YES', "
    "column_default IS NOT NULL OR COALESCE(is_identity, 'NO') = 'YES' OR COALESCE(is_generated, 'NEVER') <> 'NEVER' "
    "FROM information_schema.columns "
    "WHERE table_catalog = current_database() AND table_schema = current_schema() AND table_name = %s"
)


def create(layout: Layout, types: Types) -> str:
    parts = [f'"{c.name}" {types[c.kind]}{"" if c.nullable else " NOT NULL"}' for c in layout.columns]
    return f'CREATE TABLE "{layout.name}" ({", ".join(parts)}, PRIMARY KEY ({_names(layout.key)}))'


def differences(layout: Layout, there: Mapping[str, There], types: Types) -> list[str]:
    """What stands between a table that is there and what is written into it, each with the statement that mends it.

    Args:
        layout: what is needed.
        there: the columns by name. Further ones are the user's own.
        types: of this database.
    """
    found, change = [], f'ALTER TABLE "{layout.name}"'
    for column in layout.columns:
        has, needs, where = there.get(column.name), types[column.kind], f"{layout.name}.{column.name}"
        if has is None:
            found.append(f'{where} is missing: {change} ADD COLUMN "{column.name}" {needs}')
        elif has.kind.lower() != needs.lower():
            found.append(
                f'{where} is {has.kind}, {needs} is needed: {change} ALTER COLUMN "{column.name}" TYPE {needs}'
            )
    ours = {column.name: column.nullable for column in layout.columns}
    for name, column_there in there.items():
        if not column_there.nullable and ours.get(name, not column_there.filled):
            found.append(
                f'{layout.name}.{name} is NOT NULL, and rows may leave it empty: {change} ALTER COLUMN "{name}" DROP NOT NULL'
            )
    return found


def upsert(table: Table, types: Types) -> str:
    """Takes a list of values for each column. A row that is there stays unless the new one is newer."""
    names = [column.name for column in table.columns]
    lists = ", ".join(f"unnest(%s::{types[column.kind]}[])" for column in table.columns)
    changes = ", ".join(f'"{name}" = excluded."{name}"' for name in names if name != table.key)
    new = {name: f"excluded.{name}" for name in (PARTITION, OFFSET, TIMESTAMP)}
    return (
        f'INSERT INTO "{table.name}" ({_names(names)}) SELECT {lists} '
        f'ON CONFLICT ("{table.key}") DO UPDATE SET {changes} WHERE {_older(table.name, new)}'
    )  # fmt: skip


def delete(table: Table, types: Types) -> str:
    """Takes lists of keys, partitions, offsets and times of tombstones."""
    new = {PARTITION: "gone.at_partition", OFFSET: "gone.at_offset", TIMESTAMP: "gone.at_ms"}
    return (
        f'DELETE FROM "{table.name}" USING (SELECT unnest(%s::{types["text"]}[]) AS gone_key, '
        f"unnest(%s::{types['small']}[]) AS at_partition, unnest(%s::{types['integer']}[]) AS at_offset, "
        f"unnest(%s::{types['integer']}[]) AS at_ms) AS gone "
        f'WHERE "{table.name}"."{table.key}" = gone.gone_key AND ({_older(table.name, new)})'
    )  # fmt: skip


def _older(table: str, new: Mapping[str, str]) -> str:
    """Whether the row that is there is older. Partitions differ only where some were added: then the append time decides."""
    same, other = f"{table}.{PARTITION} = {new[PARTITION]}", f"{table}.{PARTITION} <> {new[PARTITION]}"
    return (
        f"({same} AND {table}.{OFFSET} < {new[OFFSET]}) OR ({other} AND {table}.{TIMESTAMP} <= {new[TIMESTAMP]})"
    )  # fmt: skip


def place(types: Types) -> str:
    """Notes positions of partitions that have none yet: lists of sinks, topics, partitions and offsets."""
    columns = [column for column in POSITIONS.columns if not column.nullable]
    lists = ", ".join(f"unnest(%s::{types[column.kind]}[])" for column in columns)
    names = _names([column.name for column in columns])
    return f"INSERT INTO {POSITIONS.name} ({names}) SELECT {lists} ON CONFLICT DO NOTHING"


def stand() -> str:
    return f"SELECT topic, {PARTITION}, next_offset FROM {POSITIONS.name} WHERE sink = %s"


def marks() -> str:
    return (
        f"SELECT topic, {PARTITION}, last_offset, last_timestamp_ms, last_crc FROM {POSITIONS.name} "
        "WHERE sink = %s AND last_offset IS NOT NULL"
    )  # fmt: skip


def move() -> str:
    """Moves a position on if it stands where it is thought to: whoever comes second changes nothing.

    The mark of the last record stays where none is given: nothing but markers of transactions was passed.
    """
    return (
        f"UPDATE {POSITIONS.name} SET next_offset = %s, last_offset = COALESCE(%s, last_offset), "
        "last_timestamp_ms = COALESCE(%s, last_timestamp_ms), last_crc = COALESCE(%s, last_crc) "
        f"WHERE sink = %s AND topic = %s AND {PARTITION} = %s AND next_offset = %s"
    )  # fmt: skip


def keep() -> str:
    """One rejected record."""
    names = _names([column.name for column in REJECTED.columns])
    return f"INSERT INTO {REJECTED.name} ({names}) VALUES ({', '.join(['%s'] * len(REJECTED.columns))}) ON CONFLICT DO NOTHING"


def _names(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)
