"""Cutting: within the tokens, and never inside what is seen as one character."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.llm.cut import cut, tokens_of

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=200)
CHARACTERS = st.text(
    st.sampled_from("ae\u0301😀👍\U0001f3fd👨\u200d👩👧🇩🇪🇫한\u1112\u1161\u11ab中क\u093f\r\n\ufe0f"), max_size=80
)


@given(ANY_TEXT, st.integers(0, 70))
def test_a_cut_text_is_a_begin_within_the_tokens_and_the_rest_is_counted(text: str, tokens: int) -> None:
    found, left_out = cut(text, tokens)
    assert tokens_of(found) <= tokens or found == ""
    assert found == text[: len(text) - left_out].encode("utf-8", "replace").decode()
    if tokens_of(text) <= tokens:
        assert left_out == 0


@given(CHARACTERS, st.integers(1, 60))
def test_little_is_lost_at_the_edge(text: str, tokens: int) -> None:
    """No more than the character that didn't fit, unless it is a heap of marks."""
    found, left_out = cut(text, tokens)
    if left_out:
        assert len(found) >= min(tokens * 3 // 4, len(text)) - 32


@pytest.mark.parametrize(
    "whole",
    ["e\u0301", "👍\U0001f3fd", "👨\u200d👩\u200d👧\u200d👦", "🇩🇪", "\u1112\u1161\u11ab", "कि", "\r\n", "☀\ufe0f"],
    ids=["accent", "skin", "family", "flag", "hangul", "vowel", "line", "variant"],
)
def test_what_is_seen_as_one_character_stays_or_goes(whole: str) -> None:
    text = "ab" + whole + whole + "cd"
    edges = {text[: 2 + n * len(whole)] for n in range(3)} | {"a", "ab", "", text[:-1], text}
    # A pair of flags is two flags, so an edge between them is right.
    for tokens in range(len(text.encode())):
        assert cut(text, tokens)[0] in edges, (tokens, cut(text, tokens))


def test_three_flags_are_cut_between_flags() -> None:
    flags = "🇩🇪🇫🇷🇮🇹"
    assert {cut(flags, tokens)[0] for tokens in range(9)} == {"", "🇩🇪", "🇩🇪🇫🇷", flags}


def test_a_heap_of_marks_is_cut_somewhere() -> None:
    found, left_out = cut("a" + "\u0301" * 1000, 100)
    assert len(found) + left_out == 1001
    assert len(found) > 100


def test_a_very_long_text_costs_no_more_than_its_begin() -> None:
    found, left_out = cut("中" * 1_000_000, 10)
    assert (found, left_out) == ("中" * 10, 999_990)
