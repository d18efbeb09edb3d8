"""Reads what `tests.formats.write` kept, as a worker of this version would."""

import base64
import importlib
import json
import pkgutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from rocksdict import Options, Rdict

import tables
from app.commands.tables_state import export_lines
from app.delivery.kinds import KINDS, misfit
from app.delivery.maps import Map
from app.delivery.offline import OfflineState

__all__ = [
    "HERE", "changelog", "kept_kinds", "lines_of", "local_rows", "maps_of", "raw_of", "rows_of", "state_of", "states",
]  # fmt: skip

HERE = Path(__file__).parent


def maps_of(kinds: bytes) -> list[Map[Any]]:
    """The maps that a release noted, as this version declares them.

    Raises:
        LookupError: one isn't declared any more.
    """
    modules = [importlib.import_module(f"tables.{each.name}") for each in pkgutil.iter_modules(tables.__path__)]
    declared = [of for module in modules for of in vars(module).values() if isinstance(of, Map)]
    return [_named(declared, name, prefix, kind) for name, (prefix, kind) in msgspec.msgpack.decode(kinds).items()]


def _named(declared: list[Map[Any]], name: str, prefix: bytes, kind: Any) -> Map[Any]:
    """Names are unique within a State alone: of two the one that reads the rows."""
    found = [of for of in declared if (of.name, of.prefix) == (name, prefix)]
    if not found:
        raise LookupError(f"map {name} with prefix {prefix!r} isn't declared any more")
    noted = msgspec.msgpack.encode({name: [prefix, kind]})
    return next((of for of in found if not misfit(noted, [of])), found[0])


def lines_of(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def raw_of(shown: str | None) -> bytes | None:
    return None if shown is None else base64.b64decode(shown)


def changelog(folder: Path, name: str) -> list[tuple[int, bytes, bytes | None]]:
    return [
        (r["offset"], raw_of(r["key"]) or b"", raw_of(r["value"])) for r in lines_of(folder / f"{name}.changelog.jsonl")
    ]


def kept_kinds(folder: Path, name: str) -> bytes:
    """The types that the release noted."""
    return next(value for _, key, value in changelog(folder, name) if key == KINDS and value is not None)


def state_of(folder: Path, name: str, root: Path) -> OfflineState:
    """A State with the maps that the release had, as this version declares them, filled from the changelog."""
    state = OfflineState(root, name, f"headrace-{name}-changelog", maps_of(kept_kinds(folder, name)))
    records = changelog(folder, name)
    state.apply(0, [(key, value) for _, key, value in records], records[-1][0])
    return state


def states(folder: Path) -> Iterator[tuple[str, OfflineState]]:
    with tempfile.TemporaryDirectory() as root:
        for file in sorted(folder.glob("*.changelog.jsonl")):
            name = file.name.removesuffix(".changelog.jsonl")
            state = state_of(folder, name, Path(root))
            yield name, state
            state.store.close()


def rows_of(state: OfflineState) -> list[dict[str, Any]]:
    """All rows, decoded as an export shows them."""
    return [
        json.loads(json.dumps(line, ensure_ascii=False))
        for of in state.maps.values()
        for line in export_lines(state, of, 0)
    ]


def local_rows(folder: Path) -> list[tuple[bytes, bytes]]:
    """Everything in a local copy, its notes about itself too."""
    database = Rdict(str(folder), options=Options(raw_mode=True))
    try:
        return [(bytes(key), bytes(value)) for key, value in database.items()]
    finally:
        database.close()
