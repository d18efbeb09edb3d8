"""Values as the console shows them, and its words."""

import ast
import re
import string
from collections.abc import Iterator
from pathlib import Path

from app.web.console import parts, texts
from app.web.console.parts import decoded, printable
from tests.helpers.source import syntax_tree


def test_values_are_shown_as_they_are_written() -> None:
    assert decoded(None) == ("null", "")
    assert decoded(b"") == ("empty", "")
    assert decoded(b'{"id":9007199254740993,"x":1e3}') == ("json", '{\n  "id": 9007199254740993,\n  "x": 1e3\n}')
    assert decoded(b'{"a":1,"a":2}')[1].count('"a"') == 2
    assert decoded("a line, 中文".encode()) == ("text", "a line, 中文")
    assert decoded(b"{broken") == ("text", "{broken")
    assert decoded(b"\xff\x00\x01") == ("bytes", "ff 00 01")
    assert decoded(b"\x00text")[0] == "bytes"
    assert decoded(b"[" * 5000)[0] == "text"
    assert decoded(b"[" * 300_000)[1] == "[" * (256 << 10)
    assert len(decoded(b"[" + b"1," * 200_000 + b"1]")[1]) == 256 << 10
    assert decoded("中".encode() * 100_000)[0] == "text"


def test_keys_and_headers_that_are_no_text_stay_visible() -> None:
    assert printable(None) == "–"
    assert printable(b"\xff<script>") == "\\xff<script>"


def test_no_page_takes_a_value_for_markdown_or_html() -> None:
    for path in Path(parts.__file__).parent.rglob("*.py"):
        assert re.findall(r"\bui\.(?:code|markdown|html|restructured_text|mermaid)\b", path.read_text()) == [], path


def test_words_are_the_same_in_every_language_and_each_is_asked_for() -> None:
    english, chinese = texts.TEXTS["en"], texts.TEXTS["zh"]
    assert english.keys() == chinese.keys()
    pages = [path.read_text() for path in Path(parts.__file__).parent.rglob("*.py") if "texts_" not in path.name]
    asked = set(re.findall(r"""["'](\w+)["']""", "".join(pages)))
    made = re.compile("(col|did|from|left|live|origin|page|partial|read_partial|role|since|step|stopped|tier|would)_")
    """Begins names with a part that is put in."""
    assert [key for key in english if key not in asked and not made.match(key)] == []


def test_every_word_that_a_page_asks_for_is_there() -> None:
    sources = [path.read_text() for path in Path(parts.__file__).parent.rglob("*.py")]
    asked = {name for source in sources for name in re.findall(r"""\bt\(\s*["']([a-z_]+)["'](?! ?\+)""", source)}
    assert len(asked) > 50
    assert asked - texts.TEXTS["en"].keys() == set()


def calls_for_words(path: Path) -> Iterator[tuple[str, set[str]]]:
    """Keys that `t(...)` is called with, and the names of the values that are given."""
    for node in ast.walk(syntax_tree(path)):
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
        for key, given in calls_for_words(path):
            for language, words in texts.TEXTS.items():
                named = {name for _, name, _, _ in string.Formatter().parse(words[key]) if name}
                assert named == given, (path.name, key, language)
            seen += 1
    assert seen > 100
