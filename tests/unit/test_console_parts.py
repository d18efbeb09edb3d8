"""Values as the console shows them, and its words."""

from app.web.console import texts, texts_work
from app.web.console.parts import pretty, printable


def test_values_are_shown_with_every_digit_and_bytes_that_are_no_text_stay_visible() -> None:
    assert pretty(b'{"a":9007199254740993,"a":1.10}') == '{\n  "a": 9007199254740993,\n  "a": 1.10\n}'
    assert pretty(None) == printable(None) == "–"
    assert pretty(b"") == ""
    assert pretty(b"\xff<script>") == printable(b"\xff<script>") == "\\xff<script>"
    assert pretty(b"[" * 100_000).startswith("[[[")
    assert len(pretty(b"x" * 1_000_000)) == 64 << 10


def test_words_of_both_files_do_not_meet() -> None:
    assert texts.EN.keys() & texts_work.EN.keys() == set()
    assert texts.ZH.keys() & texts_work.ZH.keys() == set()
