"""Fields that a task extracts: asked for, checked, asked again when wrong, kept with equal texts."""

import asyncio
import json
import re
from collections.abc import Sequence
from typing import Any

import pytest

from agents.same_text import SameText
from app.llm.deep import DeepClassifier, Unanswerable
from app.llm.parse import Fields, parse_with_fields
from app.settings import ClassifySettings, LlmSettings, Settings, TaskSettings, load
from app.settings_extract import why_wrong
from models.events import Answer, ModelRequest, Origin
from tests.helpers import modelserver as ms

pytestmark = pytest.mark.timeout(30)

EXTRACT = {
    "properties": {
        "order": {"type": ["string", "null"], "pattern": "^A-[0-9]+$", "description": "Order number."},
        "urgent": {"type": "boolean"},
    }
}
IDS = ["payment", "order", "logistics", "other"]


def settings(base_url: str, extract: Any = EXTRACT, **llm: Any) -> Settings:
    shop = load().tasks[0]
    task = TaskSettings.model_validate({**shop.model_dump(), "extract": extract})
    given = LlmSettings(base_url=base_url, batch_wait_ms=20, retry_backoff_s=0.01, **llm)
    return load().model_copy(update={"tasks": [task], "llm": given})


def fields_of(text: str) -> dict[str, Any]:
    found = re.search(r"A-[0-9]+", text)
    return {"order": found[0] if found else None, "urgent": "!" in text}


def request(text: str) -> ModelRequest:
    return ModelRequest(
        event_id=text, event_type="m", event_time_ms=0, entity="u", task="shop", text=text,
        source=Origin("raw-events", 0, 0), received_ms=0,
    )  # fmt: skip


async def ask(given: Settings, texts: Sequence[str]) -> list[Answer | BaseException]:
    deep = DeepClassifier(given)
    answers = await asyncio.gather(*(deep.classify(request(text)) for text in texts), return_exceptions=True)
    await deep.close()
    return answers


TEXTS = [f"where is order A-{n}{'!' * (n % 2)}" for n in range(12)] + ["hello"]


async def test_each_event_gets_its_own_fields_beside_its_category() -> None:
    async with ms.ModelServer() as server:
        server.fields_of = fields_of
        answers = await ask(settings(server.base_url), TEXTS)
        assert [a.fields for a in answers if isinstance(a, Answer)] == [fields_of(text) for text in TEXTS]
        [call] = server.calls
        schema = call.body["response_format"]["json_schema"]["schema"]
        one = schema["$defs"]["answer"]
        assert one["required"] == list(one["properties"]) == ["category", "order", "urgent"]
        assert one["additionalProperties"] is False
        assert schema["properties"]["13"] == {"$ref": "#/$defs/answer"}
        assert '"pattern":"^A-[0-9]+$"' in call.body["messages"][0]["content"]


async def test_wrong_fields_are_asked_again_without_the_right_ones_and_never_guessed() -> None:
    async with ms.ModelServer() as server:
        seen: list[str] = []

        def at_times(text: str) -> dict[str, Any]:
            seen.append(text)
            wrong = "A-3" in text and seen.count(text) < 2
            return {**fields_of(text), "order": "three"} if wrong else fields_of(text)

        server.fields_of = at_times
        answers = await ask(settings(server.base_url), TEXTS)
        assert [a.fields for a in answers if isinstance(a, Answer)] == [fields_of(text) for text in TEXTS]
        assert [call.items for call in server.calls] == [TEXTS, [TEXTS[3]]]


async def test_fields_that_never_fit_send_the_event_to_a_person() -> None:
    async with ms.ModelServer() as server:
        server.fields_of = lambda text: {"order": "none", "urgent": "no"} if "A-3" in text else fields_of(text)
        answers = await ask(settings(server.base_url), TEXTS)
        assert isinstance(answers[3], Unanswerable)
        assert sum(isinstance(answer, Answer) for answer in answers) == len(TEXTS) - 1


async def test_what_was_masked_is_put_back_before_it_is_checked() -> None:
    extract = {"properties": {"mail": {"type": "string", "pattern": "^[a-z]+@example[.]com$"}}}
    async with ms.ModelServer() as server:
        server.fields_of = lambda text: {"mail": re.findall(r"\S+", text)[-1]}
        answers = await ask(
            settings(server.base_url, extract, mask="on"), ["write to ann@example.com", "to bob@example.com"]
        )
        assert [a.fields for a in answers if isinstance(a, Answer)] == [
            {"mail": "ann@example.com"}, {"mail": "bob@example.com"},
        ]  # fmt: skip
        assert "@example.com" not in json.dumps([call.body["messages"][1] for call in server.calls])


def parse(text: str, n: int = 2, finish_reason: str = "stop") -> dict[int, tuple[str, Fields]]:
    return parse_with_fields(text, n, IDS, lambda number, fields: fields if "k" in fields else None, finish_reason)


@pytest.mark.parametrize(
    "text",
    [
        '{"1":{"category":"payment","k":[1,{"a":2}]},"2":{"category":"Other.","k":null}}',
        '```json\n{"answers":{"1":{"k":[1,{"a":2}],"category":"payment"},"2":{"category":"other","k":null}}}\n```',
        '[{"id":1,"category":"payment","k":[1,{"a":2}]},{"id":2,"label":"other","k":null}]',
        '{"1":{"category":"payment","k":[1,{"a":2}]}} {"2":{"category":"other","k":null}} {"2":{"category":"other","k":null}}',
    ],
)
def test_forms_with_fields_are_read(text: str) -> None:
    assert parse(text) == {1: ("payment", {"k": [1, {"a": 2}]}), 2: ("other", {"k": None})}


@pytest.mark.parametrize(
    "text",
    [
        '{"1":"payment"}',
        '{"1":{"category":"payment"}}',
        '{"1":{"category":"paymnt","k":1}}',
        '{"1":{"category":"payment","k":1},"1":{"category":"payment","k":2}}',
        '{"1":{"category":"payment","k":1,"k":1}}',
        '{"1":{"category":"payment","k":{"a":1,"a":2}}}',
        "1: payment",
    ],
)
def test_what_lacks_fields_or_contradicts_itself_is_missing(text: str) -> None:
    assert parse(text) == {}


def test_whole_objects_of_a_cut_answer_stand() -> None:
    cut = '{"1":{"category":"payment","k":"a, }b"},"2":{"category":"other","k":"ab'
    assert parse(cut, finish_reason="length") == {1: ("payment", {"k": "a, }b"})}
    assert parse('{"a":' + cut, finish_reason="length") == {1: ("payment", {"k": "a, }b"})}


@pytest.mark.parametrize(
    ("extract", "says"),
    [
        ({"type": "array"}, "an object with properties is needed"),
        ({"properties": {"category": {}}}, "can't be called 'category'"),
        ({"properties": {"ID": {}}}, "can't be called 'ID'"),
        ({"properties": {"a": {"type": "txt"}}}, "no JSON Schema"),
        ({"properties": {"a": {"$ref": "#/x"}}}, r"\$ref isn't taken"),
    ],
)
def test_a_schema_that_cannot_be_asked_for_is_refused(extract: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        settings("http://127.0.0.1:1/v1", extract)


def test_examples_must_fit_the_schema() -> None:
    task = {**load().tasks[0].model_dump(), "extract": EXTRACT}
    example = {"text": "x", "category": "other", "fields": {"order": "A-1", "urgent": 3}}
    with pytest.raises(ValueError, match="urgent doesn't fit its type"):
        TaskSettings.model_validate({**task, "examples": [example]})
    fits = TaskSettings.model_validate({**task, "examples": [{**example, "fields": {"order": None, "urgent": True}}]})
    assert why_wrong(fits.extract, fits.examples[0].fields) == ""
    assert (
        why_wrong(fits.extract, {"order": None, "urgent": True, "more": 1})
        == "the object doesn't fit its additionalProperties"
    )


def test_texts_that_differ_in_case_have_different_fields_and_schemas_part_the_cache() -> None:
    deep = DeepClassifier(settings("http://127.0.0.1:1/v1"))
    plain = DeepClassifier(load())
    same = SameText(ClassifySettings())

    def digest(of: DeepClassifier, text: str) -> bytes:
        return same.question(request(text), of.prompts("shop"), ()).digest

    assert digest(plain, "Order A-1") == digest(plain, "order  a-1")
    assert digest(deep, "Order A-1") != digest(deep, "order a-1")
    other = DeepClassifier(settings("http://127.0.0.1:1/v1", {"properties": {"k": {"type": "integer"}}}))
    assert len({digest(each, "order a-1") for each in (plain, deep, other)}) == 3
