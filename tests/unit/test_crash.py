"""Crash points: exact, repeatable, and off by default."""

import ast
from pathlib import Path

import pytest

from app import crash
from app.errors import SettingsError
from tests.helpers.source import syntax_tree

ROOT = Path(__file__).parents[2]


def passages(spec: str, points: list[str]) -> list[int]:
    """At which of the passages the process would have been killed."""
    killed: list[int] = []
    number = 0
    at = crash.armed(spec, lambda: killed.append(number))
    for number, point in enumerate(points):  # noqa: B007  # `die` sees it
        at(point)
    return killed


def test_nothing_dies_without_the_variable() -> None:
    assert passages("", list(crash.POINTS) * 100) == []


def test_the_named_point_dies_once_at_its_passage() -> None:
    assert passages("committed:2", ["committed", "sent", "sent", "committed", "committed"]) == [3]


def test_random_deaths_repeat_with_their_seed() -> None:
    points = list(crash.POINTS) * 200
    first = passages("random:7:50", points)
    assert first == passages("random:7:50", points) != passages("random:8:50", points)
    assert 10 < len(first) < 80


@pytest.mark.parametrize("spec", ["nowhere:1", "committed:x", "committed:0", "random:1", "random:a:b"])
def test_a_wrong_value_is_refused_with_the_points_there_are(spec: str) -> None:
    with pytest.raises(SettingsError, match="uncommitted"):
        passages(spec, [])


def test_every_point_is_passed_somewhere() -> None:
    passed = set()
    for path in [*ROOT.glob("app/**/*.py"), *ROOT.glob("agents/*.py")]:
        for node in ast.walk(syntax_tree(path)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "crash.at":
                passed.add(ast.literal_eval(node.args[0]))
    assert passed == set(crash.POINTS)
