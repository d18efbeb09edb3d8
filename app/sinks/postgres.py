"""PostgreSQL. Any number of processes may write; a position's row keeps them apart."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from app.errors import SinkError, SinkUnavailable
from app.settings_sinks import SinkSettings
from app.sinks.database import Database, RowRefused, Run
from app.sinks.sql import Types
from app.sinks.tables import Table

try:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict
except ImportError as error:
    raise SinkError("PostgreSQL needs psycopg: pip install 'headrace[postgres]'") from error

__all__ = ["Postgres"]

DEFAULTS = {
    "connect_timeout": 10, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}  # fmt: skip
"""A server that vanished is noticed within half a minute. What the connection string says wins."""
FIXED = {"client_encoding": "UTF8"}
"""Text is Unicode here, whatever the database's encoding: it converts, and refuses only what it can't hold."""
LIMITS = (
    "SET LOCAL statement_timeout = '60s'; SET LOCAL lock_timeout = '20s'; "
    "SET LOCAL idle_in_transaction_session_timeout = '30s'"
)
"""A process that is stopped in a transaction must not hold up the one that took its partitions over."""
TABLES_LOCK = 7_311_042
"""Of an advisory lock: two processes that start at once must not make the same tables."""
TOO_COMPLEX = "54"
"""Class of SQLSTATEs for a value that is larger or deeper than the server takes (a key of more than 2,700 bytes)."""


class Postgres(Database):
    """Opens its connection when it is needed, and again after it broke."""

    types: ClassVar[Types] = {
        "text": "text", "integer": "bigint", "small": "integer", "number": "double precision", "boolean": "boolean",
        "json": "jsonb", "bytes": "bytea",
    }  # fmt: skip

    def __init__(self, sink: SinkSettings, tables: Iterable[Table]) -> None:
        super().__init__(sink.name, tables)
        given = os.environ.get(sink.dsn_env, "") if sink.dsn_env else ""
        if sink.dsn_env and not given:
            raise SinkError(f"sink {sink.name}: the environment variable {sink.dsn_env} (dsn_env) isn't set")
        try:
            self._where: dict[str, Any] = {
                **DEFAULTS, "fallback_application_name": f"headrace-sink-{sink.name}", **conninfo_to_dict(given), **FIXED,
            }  # fmt: skip
        except psycopg.ProgrammingError:  # its message may quote a password
            raise SinkError(f"sink {sink.name}: {sink.dsn_env} isn't a connection string that libpq can read") from None
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None

    @contextmanager
    def _transaction(self, *, keep: bool = True) -> Iterator[Run]:
        try:
            connection = self._connected()
            with connection.transaction(force_rollback=not keep):
                connection.execute(LIMITS.encode())
                yield _Run(connection)
        except psycopg.Error as error:
            raise self._as_ours(error) from error

    def _connected(self) -> "psycopg.Connection[tuple[Any, ...]]":
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(autocommit=True, prepare_threshold=None, **self._where)
            # no prepared statements: a pooler between would lose them
        return self._connection

    def _as_ours(self, error: "psycopg.Error") -> SinkError:
        lines = (error.diag.message_primary or str(error)).strip().splitlines()
        why = f"{type(error).__name__}: {lines[0] if lines else ''}"
        if isinstance(error, psycopg.DataError | psycopg.IntegrityError) or (error.sqlstate or "")[:2] == TOO_COMPLEX:
            return RowRefused(why, constraint=isinstance(error, psycopg.IntegrityError))
        self.close()
        if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | psycopg.InternalError):
            return SinkUnavailable(f"sink {self.sink}: PostgreSQL: {why}")
        return SinkError(f"sink {self.sink}: PostgreSQL refuses: {why}")

    def _only_one(self, run: Run) -> None:
        run.ask("SELECT pg_advisory_xact_lock(%s)", [TABLES_LOCK])

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class _Run:
    """Statements on a connection."""

    def __init__(self, connection: "psycopg.Connection[tuple[Any, ...]]") -> None:
        self._connection = connection

    def __call__(self, statement: str, values: Sequence[Any] = ()) -> int:
        return self._connection.execute(statement.encode(), values).rowcount

    def ask(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self._connection.execute(statement.encode(), values).fetchall()
