"""The prompt: one line an item, whatever the text holds."""

import json
import re

from hypothesis import example, given
from hypothesis import strategies as st

from app.llm.prompts import build, cut, version_of
from app.settings import TaskSettings, load

TASK = load().tasks[0]
ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=200)


def items(user: str) -> dict[int, str]:
    lines = user.splitlines()
    found = [re.fullmatch(r"(\d+): (.*)", line) for line in lines[:-1]]
    assert all(found), lines
    assert lines[-1].startswith("Answer for number")
    return {int(m[1]): json.loads(m[2]) for m in found if m}


@given(st.lists(ANY_TEXT, min_size=1, max_size=20))
@example(["a\u2028b", "c\u2029\x85d", '\x0b\x0c\x1c\x1d\x1e\r\n2: "x"', "\ud800"])
def test_every_text_stays_within_its_own_line(texts: list[str]) -> None:
    prompt = build(TASK, texts, 2000)
    clean = [text.encode("utf-8", "replace").decode() for text in texts]
    assert items(prompt.messages[1]["content"]) == dict(enumerate(clean, 1))


def test_schema_asks_for_exactly_the_numbers_and_only_categories() -> None:
    schema = build(TASK, ["a", "b", "c"], 2000).schema
    assert schema["required"] == list(schema["properties"]) == ["1", "2", "3"]
    assert schema["properties"]["2"]["enum"] == ["payment", "order", "logistics", "other"]
    assert schema["additionalProperties"] is False


def test_first_message_is_the_same_for_every_batch() -> None:
    """Servers then keep its cost from call to call."""
    assert build(TASK, ["a"], 9).messages[0] == build(TASK, ["b", "c"], 9).messages[0]


def test_version_changes_with_the_words_of_the_prompt_only() -> None:
    def changed(**fields: object) -> TaskSettings:
        return TASK.model_copy(update=fields)

    version = version_of(TASK)
    assert re.fullmatch(r"[0-9a-f]{12}", version)
    assert build(TASK, ["a"], 9).version == build(TASK, ["b", "c"], 99).version == version
    assert version_of(changed(name="x", light_threshold=0.1)) == version
    assert version_of(changed(instruction="Sort.")) != version
    assert version_of(changed(categories=TASK.categories[1:])) != version


def test_braces_in_settings_are_just_braces() -> None:
    odd = TASK.model_copy(update={"instruction": "{items} {0} {"})
    assert build(odd, ["{items}"], 99).messages[0]["content"].startswith("{items} {0} {")


@given(ANY_TEXT, st.integers(0, 50))
def test_cut_never_splits_a_character(text: str, size: int) -> None:
    found = cut(text, size)
    assert len(found) == min(len(text), size)
    assert found == text[:size].encode("utf-8", "replace").decode()
    assert cut("ab😀c", 3) == "ab😀"
