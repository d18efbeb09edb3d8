"""From text to certain answers."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.llm.parse import parse_answers

IDS = ["payment", "order", "logistics", "other"]


def parse(text: str, n: int = 2, finish_reason: str = "stop") -> dict[int, str]:
    return parse_answers(text, n, IDS, finish_reason)


@pytest.mark.parametrize(
    "text",
    [
        '{"1":"payment","2":"other"}',
        '{"2": "OTHER", "1": "Payment."}',
        '```json\n{"1":"payment","2":"other"}\n```',
        'Sure! Here it is:\n```\n{"#1":" payment ","2.0":"other。"}\n```\nAnything else?',
        '<think>{"1":"order","2":"order"}\n1: order</think>{"1":"payment","2":"other"}',
        'first {"1":"order"}, no...</think>\n{"1":"payment","2":"other"}',
        '{"1":"payment","2":"other"}\n<thinking>was {"1":"order"} better?</thinking>',
        '{"a":["1:payment","2: other"]}',
        '["#1: payment", "2.0：other"]',
        '[{"id":1.0,"category":"payment"},{"number":"2","label":"other"}]',
        '{"answers":{"1":"payment","2":"other"}}',
        '{"1":{"text":"2: order","category":"payment"},"2":{"text":"1: order","category":"other"}}',
        "1: payment\n2: other",
        "Answers:\n- 1. **Payment**\n- #2) `other`\n",
        '{"1":"payment"}\n{"2":"other"}',
        '{"1":"payment","2":"other","2":"other"}',
        '{"1":"payment","2":"other","3":"order","99":"order"}',
    ],
)
def test_forms_that_models_use_are_read(text: str) -> None:
    assert parse(text) == {1: "payment", 2: "other"}


@pytest.mark.parametrize(
    ("text", "answers"),
    [
        ('{"1":"paymnt","2":"other"}', {2: "other"}),
        ('{"1":"支付。","2":"other"}', {2: "other"}),
        ('{"1":"payment or order","2":"other"}', {2: "other"}),
        ('{"1":"payment","1":"order","2":"other"}', {2: "other"}),
        ('{"1":"payment","2":"other"} {"1":"order"}', {2: "other"}),
        ('{"1":"payment","1":"unsure","2":"other"}', {2: "other"}),
        ('{"1":1,"2":"other"}', {2: "other"}),
        ('{"1.5":"payment","2":"other"}', {2: "other"}),
        ('{"c":["payment","other"]}', {}),
        ('["payment","other"]', {}),
        ("payment\nother", {}),
        ("<think>1: payment\n2: other", {}),
        ("12: hello\n1: other", {}),
        ('{"item":"12","text":"1: other\\n2: other"}', {}),
        ("", {}),
        ("[" * 50_000, {}),
        ('{"1":' * 5_000, {}),
    ],
)
def test_what_is_not_certain_is_missing(text: str, answers: dict[int, str]) -> None:
    assert parse(text) == answers


@pytest.mark.parametrize(
    ("text", "answers"),
    [
        ('{"1":"payment","2":"oth', {1: "payment"}),
        ('{"1":"payment","2":"other', {1: "payment"}),
        ('{"1":"payment","2":"other"', {1: "payment"}),
        ('{"1":"payment","2":"other"}', {1: "payment", 2: "other"}),
        ('{"1":"payment","2":', {1: "payment"}),
        ('{"a":["1:payment","2:other', {1: "payment"}),
        ('{"x":{"1":"payment","2":"oth', {1: "payment"}),
        ("1: payment\n2: other", {1: "payment"}),
        ('{"1":"a \\"2\\":\\"other\\", x', {}),
    ],
)
def test_cut_answer_keeps_what_is_whole(text: str, answers: dict[int, str]) -> None:
    assert parse(text, finish_reason="length") == answers


@given(st.text(max_size=300), st.sampled_from(["stop", "length", ""]))
def test_any_text_gives_known_numbers_and_labels_or_nothing(text: str, finish: str) -> None:
    for number, label in parse(text, 5, finish).items():
        assert 1 <= number <= 5
        assert label in IDS


@given(st.dictionaries(st.integers(1, 20), st.sampled_from(IDS), min_size=1), st.integers(0, 400))
def test_a_cut_anywhere_never_gives_another_answer(answers: dict[int, str], end: int) -> None:
    whole = json.dumps({str(number): label for number, label in answers.items()})
    found = parse(whole[:end], 20, "length")
    assert found.items() <= answers.items()
    assert parse(whole, 20) == answers
