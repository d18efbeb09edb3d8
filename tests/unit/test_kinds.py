"""Types of maps, noted beside their rows (app.delivery.kinds)."""

import importlib
import pkgutil
from typing import Any

import msgspec
import pytest

import tables
from app.delivery.kinds import misfit, noted
from app.delivery.maps import Map
from tables.panes import PANES


class Old(msgspec.Struct, array_like=True):
    at: int
    name: str


class Longer(msgspec.Struct, array_like=True):
    at: int
    name: str
    more: int = 0


class Needs(msgspec.Struct, array_like=True):
    at: int
    name: str
    more: int


class Swapped(msgspec.Struct, array_like=True):
    name: str
    at: int


class Other(msgspec.Struct, array_like=True):
    at: float
    name: str


class Named(msgspec.Struct):
    at: int
    name: str


class NamedOtherOrder(msgspec.Struct):
    name: str
    at: int


class Outer(msgspec.Struct, array_like=True):
    inner: list[Old]


class OuterSwapped(msgspec.Struct, array_like=True):
    inner: list[Swapped]


def a_map(kind: Any, name: str = "m", prefix: bytes = b"m") -> Map[Any]:
    return Map(name, prefix, kind)


@pytest.mark.parametrize(
    ("old", "new"),
    [(Old, Old), (Old, Longer), (Named, NamedOtherOrder), (int, int), (dict[str, list[Old]], dict[str, list[Old]])],
)
def test_rows_that_can_still_be_read_are_let_through(old: Any, new: Any) -> None:
    assert misfit(noted([a_map(old)]), [a_map(new)]) == ""


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (Old, Needs, "more is new and has no default"),
        (Old, Swapped, "fields were at, name, now name, at"),
        (Old, Other, "field at"),
        (Old, Named, "were array, now object"),
        (Longer, Old, "fields were"),
        (Longer, Needs, "lost its default"),
        (Outer, OuterSwapped, "field inner"),
        (int, str, "were int, now str"),
    ],
)
def test_rows_of_another_layout_are_refused_with_the_reason(old: Any, new: Any, says: str) -> None:
    assert says in misfit(noted([a_map(old)]), [a_map(new)])


def test_an_added_map_is_fine() -> None:
    assert misfit(noted([a_map(Old)]), [a_map(Old), a_map(int, "new", b"n")]) == ""


def test_a_map_that_takes_the_prefix_of_a_removed_one_is_refused() -> None:
    assert "had its prefix" in misfit(noted([a_map(Old)]), [a_map(Old, "renamed")])


def test_a_map_that_moved_to_another_prefix_is_refused() -> None:
    assert "another prefix" in misfit(noted([a_map(Old)]), [a_map(Old, prefix=b"x")])


MAPS = [
    each
    for module in pkgutil.iter_modules(tables.__path__)
    for each in vars(importlib.import_module(f"tables.{module.name}")).values()
    if isinstance(each, Map)
]


@pytest.mark.parametrize("each", MAPS, ids=lambda each: each.name)
def test_every_map_of_ours_can_be_described_and_fits_itself(each: Map[Any]) -> None:
    assert misfit(noted([each]), [each]) == ""


def test_all_maps_are_looked_at() -> None:
    assert {"seen", "panes", "open", "answered", "accounts", "kept", "progress"} <= {each.name for each in MAPS}


class FormerPane(msgspec.Struct, array_like=True):
    """The fields of a pane before sequences were packed."""

    events: int = 0
    first_ms: int = 0
    last_ms: int = 0
    last_offset: int = -1
    last_append_ms: int = 0
    counts: dict[str, int] = {}
    other: int = 0
    sequence: list[tuple[int, int, str, str]] = []


def test_panes_of_a_former_layout_are_refused_by_name() -> None:
    former: Map[FormerPane] = Map("panes", PANES.prefix, FormerPane)
    assert misfit(noted([former]), [PANES]).startswith("map panes: its fields were events, first_ms")
    assert misfit(noted([PANES]), [PANES]) == ""
