"""State that an earlier release wrote is read, or refused with what to do: files of `tests.formats.write`, a folder a format.

A change that fails here can't be rolled out to workers with State. Make it readable (new fields at the end, with a
default), or give the maps that change other names and prefixes and say in docs/operations.md what becomes of the old rows.
"""

import json
from pathlib import Path

import msgspec
import pytest
from rocksdict import Options, Rdict

from app.delivery.changelog import Copy
from app.delivery.database import COPY_OF, Database
from app.delivery.kinds import KINDS, describe, misfit, noted
from app.delivery.maps import Map
from app.delivery.restore import check_kinds
from app.delivery.state import APPLIED, decode_applied
from app.errors import StateError
from tests.formats.read import HERE, changelog, kept_kinds, lines_of, maps_of, raw_of, rows_of, state_of

RELEASES = sorted(folder for folder in HERE.iterdir() if folder.is_dir() and folder.name.isdigit())
KEPT = [(folder, file.name.split(".")[0]) for folder in RELEASES for file in sorted(folder.glob("*.changelog.jsonl"))]

every_state = pytest.mark.parametrize(("folder", "name"), KEPT, ids=[f"{f.name}-{name}" for f, name in KEPT])


def test_every_state_of_a_worker_is_kept() -> None:
    assert RELEASES
    assert {name for folder, name in KEPT if folder == RELEASES[-1]} == {
        "ingest-raw", "ingest-other", "ingest-rekeyed", "windows", "classify", "budget", "review", "results",
    }  # fmt: skip


@every_state
def test_types_of_the_release_are_ones_that_this_version_reads(folder: Path, name: str) -> None:
    kinds = kept_kinds(folder, name)
    assert misfit(kinds, maps_of(kinds)) == ""


@every_state
def test_changelog_of_the_release_gives_the_same_rows(folder: Path, name: str, tmp_path: Path) -> None:
    state = state_of(folder, name, tmp_path)
    try:
        assert rows_of(state) == lines_of(folder / f"{name}.rows.jsonl")
        markers = [value for _, key, value in changelog(folder, name) if key == APPLIED]
        if markers:
            assert state.applied(0) == decode_applied(markers[-1] or b"")
    finally:
        state.store.close()


@every_state
def test_local_copy_of_the_release_knows_how_far_it_is_and_holds_the_same_rows(
    folder: Path, name: str, tmp_path: Path
) -> None:
    local = {raw_of(line["key"]): raw_of(line["value"]) or b"" for line in lines_of(folder / f"{name}.local.jsonl")}
    written = Rdict(str(tmp_path / f"{name}-0.db"), options=Options(raw_mode=True))
    for key, value in local.items():
        written[key] = value
    written.close()
    database = Database(tmp_path / f"{name}-0.db")
    try:
        assert database.get(COPY_OF) == f"headrace-{name}-changelog/0".encode()
        last = max(offset for offset, _, _ in changelog(folder, name))
        assert database.changelog_offset is not None
        assert database.changelog_offset >= last
        assert database.last_batch_start <= last
        assert (database.written_ms or 0) > 1_796_000_000_000
    finally:
        database.close()
    state = state_of(folder, name, tmp_path / "fresh")
    try:
        fresh = state.database(0)
        for of in state.maps.values():
            assert {k: v for k, v in local.items() if k and k.startswith(of.prefix)} == dict(fresh.scan(of.prefix))
    finally:
        state.store.close()


class Newer(msgspec.Struct, array_like=True):
    """As a later version may have it."""

    at: int
    more: str = ""


class Ours(msgspec.Struct, array_like=True):
    at: int


def test_state_of_a_newer_version_is_refused_with_what_to_do(tmp_path: Path) -> None:
    folder, name = KEPT[0]
    state = state_of(folder, name, tmp_path)
    try:
        first = next(iter(state.maps.values()))
        newer: Map[Newer] = Map(first.name, first.prefix, Newer)
        state.database(0).note(KINDS, noted([newer]))
        state.hold_maps([Map(first.name, first.prefix, Ours)])
        copy = Copy(state, None)  # type: ignore[arg-type]  # nothing of Kafka is asked
        copy.tp = type("TP", (), {"partition": 0})()  # type: ignore[assignment]
        with pytest.raises(
            StateError, match=r"can't be read: map .*now at\. Run the version that wrote it; or .*export"
        ):
            check_kinds(copy)
    finally:
        state.store.close()


def test_description_of_a_type_is_pinned() -> None:
    """It is stored: another way to describe the same type would have every State refused."""
    assert json.loads(json.dumps(describe(Newer))) == ["array", None, [["at", 1, ["int"]], ["more", 0, ["str"]]]]
