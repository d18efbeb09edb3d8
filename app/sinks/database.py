"""A database that rows go to: rows and positions change in one transaction, so nothing is written twice or left out.

A batch says where each partition's position stands and where it goes. Whoever finds it elsewhere (another process had the
partition meanwhile, or a commit whose answer was lost went through) writes nothing and asks anew where to go on.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, NamedTuple, Protocol

from app.errors import HeadraceError, SinkError, SinkUnavailable
from app.sinks import sql
from app.sinks.batch import Batch, Entry, Mark, Place, Rejected
from app.sinks.tables import Table

__all__ = ["Database", "Fenced", "RowRefused", "Run", "Written"]

MANY = 10
"""So many rows that all break one rule of their table: it isn't the rows."""


class Fenced(HeadraceError):
    """A position doesn't stand where the batch begins. Nothing was written; read positions and go on from there."""

    retryable = True


class RowRefused(SinkError):
    """The database doesn't take a row: not at this time, not later.

    Args:
        why: the database's words.
        constraint: it is a rule of the table that the row breaks, not a value that the type can't hold.
    """

    def __init__(self, why: str, *, constraint: bool = False) -> None:
        super().__init__(why)
        self.constraint = constraint


class Written(NamedTuple):
    """What a batch did."""

    rows: int
    """Inserted or replaced; a row that is newer than the batch stays, and doesn't count."""
    deleted: int
    rejected: list[Rejected]


class Run(Protocol):
    """Statements within a transaction."""

    def __call__(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Returns the number of rows that it changed."""
        ...

    def ask(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]: ...


class Database(ABC):
    """Blocking: called from one thread.

    Args:
        sink: whose positions are kept.
        tables: that it needs.
    """

    types: ClassVar[sql.Types]

    def __init__(self, sink: str, tables: Iterable[Table]) -> None:
        self.sink, self.tables = sink, list(tables)
        self._upserts = {table.name: sql.upsert(table, self.types) for table in self.tables}
        self._deletes = {table.name: sql.delete(table, self.types) for table in self.tables}

    @abstractmethod
    def _transaction(self, *, keep: bool = True) -> AbstractContextManager[Run]:
        """A transaction; at its end it is committed, or with `keep` False rolled back.

        Raises:
            SinkUnavailable: the database can't be reached, or gives up for now. Whether it was committed may be unknown.
            RowRefused: a value isn't taken.
            SinkError: it will never work like this.
        """

    @abstractmethod
    def close(self) -> None:
        """Lets go of what is held. It may be used again after."""

    @abstractmethod
    def _only_one(self, run: Run) -> None:
        """Keeps others from making the same tables at the same time."""

    def start(self) -> None:
        """Makes the tables that aren't there, and looks at those that are.

        Raises:
            SinkError: a table isn't as it must be; says what to do.
        """
        with self._transaction() as run:
            self._only_one(run)
            wrong = self._differences(run, make=True)
        self._say(wrong)
        for table in self.tables:
            self._rehearse(table)

    def _differences(self, run: Run, *, make: bool = False) -> list[str]:
        wrong: list[str] = []
        own = [sql.Layout(table.name, table.columns, (table.key,)) for table in self.tables]
        for layout in (*own, sql.POSITIONS, sql.REJECTED):
            there = {name: sql.There(*column) for name, *column in run.ask(sql.COLUMNS, [layout.name])}
            if there:
                wrong += sql.differences(layout, there, self.types)
            elif make:
                run(sql.create(layout, self.types))
        return wrong

    def _say(self, wrong: list[str]) -> None:
        if wrong:
            raise SinkError(f"sink {self.sink}: its tables don't fit this version:\n  " + "\n  ".join(wrong))

    def _rehearse(self, table: Table) -> None:
        """Writes no rows, as all writes will be."""
        try:
            with self._transaction(keep=False) as run:
                run(self._upserts[table.name], [[]] * len(table.columns))
                run(self._deletes[table.name], [[]] * 4)
        except SinkUnavailable:
            raise
        except SinkError as error:
            raise SinkError(
                f"sink {self.sink}: {table.name} can't be written: {error}. Its primary key must be {table.key}, and the user "
                "needs SELECT, INSERT, UPDATE and DELETE"
            ) from error

    def positions(self, starts: Mapping[Place, int]) -> dict[Place, int]:
        """Where partitions go on; those that weren't known begin at `starts`."""
        with self._transaction() as run:
            run(
                sql.place(self.types),
                [[self.sink] * len(starts), [t for t, _ in starts], [p for _, p in starts], list(starts.values())],
            )
            rows = run.ask(sql.stand(), [self.sink])
        return {(topic, partition): at for topic, partition, at in rows if (topic, partition) in starts}

    def marks(self) -> dict[Place, Mark]:
        """The last record that was written of each partition."""
        with self._transaction() as run:
            return {(topic, partition): Mark(*mark) for topic, partition, *mark in run.ask(sql.marks(), [self.sink])}

    def write(self, batch: Batch) -> Written:
        """Writes a batch whole. What the database refuses is put aside, the rest is written.

        Raises:
            Fenced: nothing was written.
            SinkError: it isn't the rows that are refused, the table doesn't fit (any more).
            SinkUnavailable: not known whether it was written. The same batch may be given again: it is then fenced.
        """
        entries = batch.entries
        try:
            return self._write(batch, entries, [])
        except RowRefused:
            with self._transaction() as run:
                wrong = self._differences(run)
            self._say(wrong)
            refused = self._refused(entries)
        reasons = {str(error) for _, error in refused if error.constraint}
        if len(refused) == len(entries) >= MANY and len(reasons) == 1:
            raise SinkError(
                f"sink {self.sink}: all of {len(entries)} rows are refused: {reasons.pop()}; change the table's rule"
            )
        bad = {id(entry) for entry, _ in refused}
        rejected = [Rejected(entry.record, str(error)) for entry, error in refused]
        return self._write(batch, [entry for entry in entries if id(entry) not in bad], rejected)

    def _write(self, batch: Batch, entries: list[Entry], refused: list[Rejected]) -> Written:
        rejected, marks = [*batch.rejected, *refused], batch.marks
        with self._transaction() as run:
            for (topic, partition), (expected, following) in sorted(batch.moves.items()):
                mark = marks.get((topic, partition), (None, None, None))
                if run(sql.move(), [following, *mark, self.sink, topic, partition, expected]) != 1:
                    raise Fenced(f"sink {self.sink}: {topic} partition {partition} doesn't stand at {expected}")
            rows, deleted = self._put(run, entries)
            for record, reason in rejected:
                values = [record.topic, record.partition, record.offset, record.timestamp, record.key, record.value]
                run(sql.keep(), [self.sink, *values, reason.replace("\0", " ")])
        return Written(rows, deleted, rejected)

    def _put(self, run: Run, entries: list[Entry]) -> tuple[int, int]:
        """Upserts and deletes; returns how many rows changed."""
        new: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
        gone: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
        for table, key, values, record in entries:
            if values is None:
                gone[table.name].append((key, record.partition, record.offset, record.timestamp))
            else:
                new[table.name].append(values)
        rows = sum(run(self._upserts[name], _columns(found)) for name, found in new.items())
        return rows, sum(run(self._deletes[name], _columns(found)) for name, found in gone.items())

    def _refused(self, entries: list[Entry]) -> list[tuple[Entry, RowRefused]]:
        """Finds what isn't taken by halves, in transactions that are rolled back."""
        try:
            with self._transaction(keep=False) as run:
                self._put(run, entries)
        except RowRefused as error:
            if len(entries) == 1:
                return [(entries[0], error)]
            half = len(entries) // 2
            return self._refused(entries[:half]) + self._refused(entries[half:])
        return []


def _columns(rows: list[tuple[Any, ...]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]
