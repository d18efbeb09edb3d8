"""Values as the console shows them, and its words."""

import ast
import re
import string
from collections.abc import Iterator
from pathlib import Path

from app.web.console import parts, texts, texts_work
from app.web.console.parts import pretty, printable


def test_values_are_shown_with_every_digit_and_bytes_that_are_no_text_stay_visible() -> None:
    assert pretty(b'{"a":9007199254740993,"a":1.10}') == '{\n  "a": 9007199254740993,\n  "a": 1.10\n}'
    assert pretty(None) == printable(None) == "–"
    assert pretty(b"") == ""
    assert pretty(b"\xff<script>") == printable(b"\xff<script>") == "\\xff<script>"
    assert pretty(b"[" * 100_000).startswith("[[[")
    assert len(pretty(b"x" * 1_000_000)) == 64 << 10


def test_no_page_takes_a_value_for_markdown_or_html() -> None:
    for path in Path(parts.__file__).parent.rglob("*.py"):
        assert re.findall(r"\bui\.(?:code|markdown|html|restructured_text|mermaid)\b", path.read_text()) == [], path


def test_words_of_both_files_do_not_meet() -> None:
    assert texts.EN.keys() & texts_work.EN.keys() == set()
    assert texts.ZH.keys() & texts_work.ZH.keys() == set()


def test_every_word_that_a_page_asks_for_is_there() -> None:
    sources = [path.read_text() for path in Path(parts.__file__).parent.rglob("*.py")]
    asked = {name for source in sources for name in re.findall(r"""\bt\(\s*["']([a-z_]+)["'](?! ?\+)""", source)}
    assert len(asked) > 50
    assert asked - texts.TEXTS["en"].keys() == set()


def calls_for_words(source: str) -> Iterator[tuple[str, set[str]]]:
    """Keys that `t(...)` is called with, and the names of the values that are given."""
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and node.args):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        first = node.args[0]
        keys = [first.body, first.orelse] if isinstance(first, ast.IfExp) else [first]
        if called == "t":
            for key in keys:
                if isinstance(key, ast.Constant):
                    yield str(key.value), {each.arg or "**" for each in node.keywords}


def test_every_word_gets_the_values_that_it_names_in_every_language() -> None:
    seen = 0
    for path in Path(parts.__file__).parent.rglob("*.py"):
        for key, given in calls_for_words(path.read_text()):
            for language, words in texts.TEXTS.items():
                named = {name for _, name, _, _ in string.Formatter().parse(words[key]) if name}
                assert named == given, (path.name, key, language)
            seen += 1
    assert seen > 100
