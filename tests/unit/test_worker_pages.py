"""A worker's own pages, for questions that can't be right."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from app.web.worker import Pages, read_key, show_key
from tables.open_work import OPEN
from tables.seen import SEEN


@pytest.mark.parametrize("query", [{"start": "abc"}, {"start": "zz"}, {"limit": "x"}, {"partition": "x"}])
async def test_a_page_that_can_not_be_is_refused(query: dict[str, str]) -> None:
    stage = SimpleNamespace(state=SimpleNamespace(name="s", maps={"m": SEEN}))
    app: Any = SimpleNamespace(delivery=SimpleNamespace(stages={"s": stage}, lanes={}))
    request: Any = SimpleNamespace(match_info={"state": "s", "map": "m"}, query=query)
    refused = await Pages(app).rows(request)
    assert (refused.status, "whole numbers" in json.loads(str(refused.text))["error"]) == (400, True)  # type: ignore[attr-defined]


@pytest.mark.parametrize("text", ["²", "9" * 20, "-1", "", "x"])
def test_a_text_that_is_no_offset_is_the_key_of_nothing(text: str) -> None:
    assert read_key(OPEN, text) == text.encode()


def test_an_offset_is_read_as_it_is_shown() -> None:
    largest = (1 << 63) - 1
    assert read_key(OPEN, str(show_key(OPEN, largest.to_bytes(8, "big")))) == largest.to_bytes(8, "big")
