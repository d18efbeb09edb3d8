"""Files and standard input to records: what `headrace produce` sends.

Bytes are kept: a JSONL or text line goes out as it stands, without its line end (LF or CRLF) and nothing else changed;
a `.json` file is one record, all its bytes. Only a CSV row is turned into something else: a JSON object of strings.
"""

import csv
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec

from app.settings import Settings, SourceSettings
from app.sources.document import parse
from app.sources.paths import as_text, compile_path
from app.sources.source import Source, compile_source
from models.events import Bad, Headers

__all__ = ["Format", "Item", "Keyer", "ProbeRecord", "Unusable", "format_of", "keyer", "read_items"]

Format = Literal["jsonl", "csv", "text", "file"]
SUFFIXES: dict[str, Format] = {".csv": "csv", ".json": "file", ".log": "text", ".txt": "text"}

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Item:
    """One record to send."""

    where: str
    """For messages: the file, and the line where there are lines."""
    value: bytes


@dataclass(frozen=True, slots=True)
class Unusable:
    """A row that makes no record."""

    where: str
    why: str


@dataclass(slots=True)
class ProbeRecord:
    """A record as a source sees it, before it is one."""

    value: bytes | None
    timestamp: int
    key: bytes | None = None
    headers: Headers = ()
    topic: str = ""
    partition: int = 0
    offset: int = 0


Keyer = Callable[[Item, int], bytes | None]
"""Takes an item and the time (ms), gives its key or None."""


def format_of(path: Path | None) -> Format:
    """By the file's name; JSONL where that says nothing. A folder stands for the `.json` files in it."""
    if path is None:
        return "jsonl"
    return "file" if path.is_dir() else SUFFIXES.get(path.suffix.lower(), "jsonl")


def read_items(
    path: Path | None, chosen: Format | None = None, stream: BinaryIO | None = None
) -> Iterator[Item | Unusable]:
    """The records of a file, of a folder, or (no path) of an open stream.

    Raises:
        OSError: the file can't be read.
    """
    how = chosen or format_of(path)
    if path is None:
        yield from _read_stream(stream or io.BytesIO(), "line", how)
    elif path.is_dir():
        for file in sorted(path.rglob("*.json")):
            yield Item(str(file), file.read_bytes())
    elif how == "file":
        yield Item(str(path), path.read_bytes())
    else:
        with path.open("rb") as file_stream:
            yield from _read_stream(file_stream, f"{path} line", how)


def _read_stream(stream: BinaryIO, where: str, how: Format) -> Iterator[Item | Unusable]:
    if how == "file":
        yield Item("standard input", stream.read())
    elif how == "csv":
        yield from _read_csv(stream, where)
    else:
        for number, line in enumerate(stream, 1):
            value = line.removesuffix(b"\n").removesuffix(b"\r")
            if value:  # an empty line between records is layout, not a record
                yield Item(f"{where} {number}", value)


def _read_csv(stream: BinaryIO, where: str) -> Iterator[Item | Unusable]:
    csv.field_size_limit(1 << 30)  # Python's 128 KiB would stop a whole file for one long cell
    reader = csv.reader(io.TextIOWrapper(stream, encoding="utf-8-sig", errors="strict", newline=""))
    try:
        header = next(reader, None)
        for row in reader:
            place = f"{where} {reader.line_num}"
            if not row:
                continue
            if header is None or len(row) != len(header):
                yield Unusable(place, f"{len(row)} columns where the header has {len(header or ())}")
                continue
            yield Item(place, _encode(dict(zip(header, row, strict=True))))
    except (UnicodeDecodeError, csv.Error) as error:
        reason = "not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        yield Unusable(f"{where} {reader.line_num + 1}", f"{reason}; what follows it in this file isn't read")


def keyer(path: str, source: SourceSettings | None, settings: Settings) -> Keyer:
    """How records get their keys.

    Args:
        path: what the user asked for: a JMESPath, a CSV column, or a group of a text source's pattern; empty: the
            entity as the topic's source reads it.
        source: the topic's source, if it has one.
        settings: for limits.

    Raises:
        SettingsError: no such path can be. Not retryable.
    """
    if path and (source is None or source.format != "text"):
        get = compile_path(path, "--key")

        def by_path(item: Item, now_ms: int) -> bytes | None:
            document = parse(item.value, settings.ingest.max_depth)
            value = None if isinstance(document, Bad) else get(document)
            return as_text(value).encode() or None

        return by_path
    if source is None:
        return lambda item, now_ms: None
    if path:
        source = source.model_copy(update={"entity": path})
    compiled: Source = compile_source(source, settings, with_text=False)

    def by_entity(item: Item, now_ms: int) -> bytes | None:
        event = compiled.read(ProbeRecord(item.value, now_ms))
        return None if isinstance(event, Bad) else event.entity.encode() or None

    return by_entity
