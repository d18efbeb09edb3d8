"""`headrace tables export | import | reset`: State in and out of its changelog, without a worker."""

import base64
import json
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import click
import msgspec
from aiokafka.structs import TopicPartition
from tqdm import tqdm

from app import topics
from app.commands.fleet import run
from app.commands.tables import tables
from app.core import app
from app.delivery.maps import Map, PackedMap
from app.delivery.offline import keep_out, packed_rows, read_state, writer
from app.delivery.probe import probe, read_tail
from app.delivery.reseed import write_rows
from app.delivery.stage import Stage
from app.delivery.state import APPLIED, UNFINISHED
from app.errors import StateError

__all__ = ["line_of", "row_of"]

Line = dict[str, Any]
PACK_ROWS = 1000
"""Rows in a packed record that an import makes."""
IMPORTED = 127
"""The series of packed records that an import makes (see `PackedMap.record_of`)."""


def stage_named(name: str) -> Stage:
    """The stage whose State has this name.

    Raises:
        StateError: there is none; says which there are.
    """
    found = {stage.state.name: stage for stage in app.delivery.stages.values()}
    if name not in found:
        raise StateError(f"there is no State {name!r} with these settings; there are {', '.join(found)}")
    return found[name]


async def partitions_of(stage: Stage) -> int:
    """The partition count of a State's changelog.

    Raises:
        StateError: it isn't there.
    """
    count = (await topics.counts(app.settings, [stage.changelog])).get(stage.changelog)
    if count is None:
        raise StateError(f"{stage.changelog} isn't there: no worker of these settings has run yet")
    return count


def bar(what: str, unit: str) -> Any:
    """A progress bar on standard error, where that is a terminal."""
    return tqdm(desc=what, unit=unit, disable=None, leave=False, unit_scale=True)


# -- lines ---------------------------------------------------------------------------------------------------------


def show_bytes(raw: bytes) -> str | dict[str, str]:
    """Text as it is, anything else as base64."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(raw).decode()}


def read_bytes(shown: Any) -> bytes:
    return base64.b64decode(shown["base64"]) if isinstance(shown, dict) else str(shown).encode()


def line_of(of: Map[Any], partition: int, key: bytes, value: bytes, bucket: int | None = None) -> Line:
    """One row as a line of an export."""
    line = {
        "map": of.name,
        "partition": partition,
        "key": show_bytes(key),
        "value": msgspec.to_builtins(of.decode(value)),
    }
    return line if bucket is None else {**line, "bucket": bucket}


def row_of(of: Map[Any], line: Line) -> tuple[bytes, bytes]:
    """Key and encoded value of a line.

    Raises:
        msgspec.ValidationError: the value isn't one of this map.
    """
    return read_bytes(line["key"]), of.encode(msgspec.convert(line["value"], of.kind))


def export_lines(state: Any, of: Map[Any], partition: int) -> Iterator[Line]:
    database = state.database(partition)
    if isinstance(of, PackedMap):
        for record, rows in packed_rows(database, of):
            for key, value in rows:
                yield line_of(of, partition, key, value, of.bucket(record))
    else:
        for row, value in database.scan(of.prefix):
            yield line_of(of, partition, row[1:], value)


# -- commands ------------------------------------------------------------------------------------------------------


@tables.command("export", short_help="Write a State's rows to a file, one JSON object a line.")
@click.argument("state")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--map", "only", help="Only this map.")
def export(state: str, file: Path, only: str | None) -> None:
    """Write the rows of STATE (as `headrace tables` lists it) to FILE, from its changelog as it stands.

    Workers may run meanwhile. FILE must not be there yet.
    """
    run(lambda: _export(state, file, only))


async def _export(name: str, file: Path, only: str | None) -> None:
    stage = stage_named(name)
    maps = _chosen(stage, only)
    count, rows = await partitions_of(stage), 0
    with bar("reading", " records") as read:
        async with read_state(app.settings, stage, range(count), lambda records, _: read.update(records)) as state:
            with file.open("x", encoding="utf-8") as out, bar("writing", " rows") as written:
                for partition in range(count):
                    for of in maps:
                        for line in export_lines(state, of, partition):
                            out.write(json.dumps(line, ensure_ascii=False) + "\n")
                            rows += 1
                            written.update()
    click.echo(f"{rows} rows of {name} are in {file}")


def _chosen(stage: Stage, only: str | None) -> list[Map[Any]]:
    if only is not None and only not in stage.state.maps:
        raise StateError(f"{stage.state.name} has no map {only!r}; it has {', '.join(stage.state.maps)}")
    return [of for of in stage.state.maps.values() if only in (None, of.name)]


@tables.command("import", short_help="Put the rows of an export into a State; workers must be stopped.")
@click.argument("state")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def import_(state: str, file: Path) -> None:
    """Put the rows of FILE, as `headrace tables export` wrote it, into STATE. All workers must be stopped.

    Rows with the same key are replaced, others stay; where the input is read on doesn't change. A file may be imported
    again after it was cut off.
    """
    run(lambda: _import(state, file))


async def _import(name: str, file: Path) -> None:
    stage = stage_named(name)
    await keep_out(app.settings)
    count = await partitions_of(stage)
    total = sum(1 for _ in _checked(stage, file, count))  # all of it, before anything is written
    with bar("importing", " rows") as done:
        for partition in range(count):
            lines = (line for line in _checked(stage, file, count) if line["partition"] == partition)
            async with writer(app.settings, stage, partition) as producer:
                await write_rows(producer, stage.changelog, partition, _records(stage, lines, done.update))
    click.echo(f"{total} rows of {file} are in {name}")


def _checked(stage: Stage, file: Path, count: int) -> Iterator[Line]:
    with file.open(encoding="utf-8") as lines:
        for number, text in enumerate(lines, 1):
            try:
                line = json.loads(text)
                of = stage.state.maps[line["map"]]
                row_of(of, line)
                if not 0 <= line["partition"] < count or (isinstance(of, PackedMap) and "bucket" not in line):
                    raise ValueError(f"partition and bucket don't fit a State of {count} partitions")  # noqa: TRY301
            except (ValueError, KeyError, TypeError) as error:
                raise StateError(
                    f"{file}, line {number} isn't a row of {stage.state.name}: {error}; nothing of it was imported"
                ) from None
            yield line


def _records(
    stage: Stage, lines: Iterable[Line], told: Callable[[int], object]
) -> Iterator[tuple[bytes, bytes | None]]:
    """Changelog records; neighbours of a packed map that expire together share one."""
    number = 0
    for (name, bucket), group in groupby(lines, key=lambda line: (line["map"], line.get("bucket"))):
        of = stage.state.maps[name]
        while part := [row_of(of, line) for line in islice(group, PACK_ROWS)]:
            if isinstance(of, PackedMap):
                number += 1
                yield of.record_of(bucket, number, IMPORTED), msgspec.msgpack.encode(part)
            else:
                yield from ((of.row(key), value) for key, value in part)
            told(len(part))


@tables.command("reset", short_help="Empty a State; workers must be stopped.")
@click.argument("state")
@click.option("--map", "only", help="Only this map.")
@click.option("--yes", is_flag=True, help="Don't ask.")
def reset(state: str, only: str | None, yes: bool) -> None:
    """Empty STATE, or one map of it. All workers must be stopped.

    Ids that were seen are forgotten, so their duplicates pass; events that wait for a model are dropped without a result;
    open windows and what was collected for them are gone. Where the input is read on doesn't change.
    """
    run(lambda: _reset(state, only, yes))


async def _reset(name: str, only: str | None, yes: bool) -> None:
    stage = stage_named(name)
    maps = _chosen(stage, only)
    await keep_out(app.settings)
    count = await partitions_of(stage)
    for of in maps:
        click.echo(f"{name}/{of.name} is emptied: {of.help}", err=True)
    if not yes:
        click.confirm(
            "What it holds is lost, as `headrace tables reset --help` says; `headrace tables export` saves it. Go on?",
            abort=True,
            err=True,
        )
    prefixes = tuple(of.records if isinstance(of, PackedMap) else of.prefix for of in maps)
    gone = 0
    with bar("emptying", " records") as done:
        for partition in range(count):
            keys = await _keys(stage, partition, None if only is None else prefixes)
            async with writer(app.settings, stage, partition) as producer:
                await write_rows(producer, stage.changelog, partition, ((key, None) for key in keys))
            gone += len(keys)
            done.update(len(keys))
    click.echo(f"{gone} records of {name} are removed")


async def _keys(stage: Stage, partition: int, prefixes: tuple[bytes, ...] | None) -> list[bytes]:
    """Keys that a changelog partition holds; without prefixes all but the marker, those of removed maps as well."""
    tp, found = TopicPartition(stage.changelog, partition), dict[bytes, None]()
    async with probe(app.settings.kafka) as consumer:
        start, end = (await consumer.beginning_offsets([tp]))[tp], (await consumer.end_offsets([tp]))[tp]
        async for record in read_tail(consumer, tp, start, end):
            key = record.key or b""
            if key in (APPLIED, UNFINISHED) or (prefixes is not None and not key.startswith(prefixes)):
                continue
            if record.value is None:
                found.pop(key, None)
            else:
                found[key] = None
    return list(found)
