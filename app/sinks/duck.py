"""DuckDB: a file on this machine. One process writes it; it is open only while a batch is written, so others can read it."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, ClassVar

from app.errors import SinkError, SinkUnavailable
from app.folder_lock import FolderInUse, lock_folder
from app.sinks.database import Database, RowRefused, Run
from app.sinks.sql import Types
from app.sinks.tables import Table

try:
    import duckdb
except ImportError as error:
    raise SinkError("DuckDB isn't installed: pip install 'headrace[duckdb]'") from error

__all__ = ["Duck"]

LIMITS: dict[str, str | bool | int | float | list[str]] = {"threads": 2, "memory_limit": "512MB"}
"""It shares the machine with workers; a batch of 5,000 rows needs a tenth of that."""


class Duck(Database):
    """A lock file beside the database keeps a second sink away.

    Args:
        sink: its name.
        tables: that it needs.
        path: the file; its folder is made if need be.
    """

    types: ClassVar[Types] = {
        "text": "VARCHAR", "integer": "BIGINT", "small": "INTEGER", "number": "DOUBLE", "boolean": "BOOLEAN",
        "json": "JSON", "bytes": "BLOB",
    }  # fmt: skip

    def __init__(self, sink: str, tables: Iterable[Table], path: Path) -> None:
        super().__init__(sink, tables)
        self._path = path
        self._lock: IO[str] | None = None

    def start(self) -> None:
        if self._lock is None:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._lock = lock_folder(self._path.with_name(self._path.name + ".lock"))
            except FolderInUse as error:
                raise SinkError(
                    f"sink {self.sink}: process {error.holder} writes {self._path} already; one process writes a DuckDB file. "
                    "Where several are needed use PostgreSQL"
                ) from None
            except OSError as error:
                raise SinkError(f"sink {self.sink}: {self._path} can't be made ({error.strerror})") from error
        super().start()

    @contextmanager
    def _transaction(self, *, keep: bool = True) -> Iterator[Run]:
        try:
            with duckdb.connect(str(self._path), config=LIMITS) as connection:
                connection.begin()
                yield _Run(connection)
                if keep:
                    connection.commit()
                else:
                    connection.rollback()
        except duckdb.Error as error:
            raise self._as_ours(error) from error

    def _as_ours(self, error: "duckdb.Error") -> SinkError:
        why = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
        if isinstance(error, duckdb.DataError | duckdb.IntegrityError | duckdb.InvalidInputException):
            return RowRefused(why, constraint=isinstance(error, duckdb.IntegrityError))
        if isinstance(error, duckdb.OperationalError | duckdb.InternalError):
            return SinkUnavailable(f"sink {self.sink}: {self._path} can't be opened or written: {why}")
        return SinkError(f"sink {self.sink}: {self._path}: {why}")

    def _only_one(self, run: Run) -> None:
        """The lock file has seen to it."""

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None


class _Run:
    """Statements on a connection."""

    def __init__(self, connection: "duckdb.DuckDBPyConnection") -> None:
        self._connection = connection

    def __call__(self, statement: str, values: Sequence[Any] = ()) -> int:
        found = self._connection.execute(statement.replace("%s", "?"), list(values)).fetchone()
        return int(found[0]) if found else 0

    def ask(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self._connection.execute(statement.replace("%s", "?"), list(values)).fetchall()
