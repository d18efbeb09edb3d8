"""A worker's own pages: of what its State holds, and for questions that can't be right."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.structs import TopicPartition

from app.delivery.maps import Map
from app.delivery.outbox import Outbox
from app.web.worker_state import StatePages, read_key, show_key
from tables.open_work import OPEN
from tables.results import KEPT, Kept
from tables.reviews import WAITING, place
from tables.seen import SEEN
from tests.helpers.held import Held

WORDS: Map[str] = Map("words", b"w", str)


@pytest.mark.parametrize("query", [{"start": "abc"}, {"start": "zz"}, {"limit": "x"}, {"partition": "x"}])
async def test_a_page_that_can_not_be_is_refused(query: dict[str, str]) -> None:
    stage = SimpleNamespace(state=SimpleNamespace(name="s", maps={"m": SEEN}))
    app: Any = SimpleNamespace(delivery=SimpleNamespace(stages={"s": stage}, lanes={}))
    request: Any = SimpleNamespace(match_info={"state": "s", "map": "m"}, query=query)
    refused = await StatePages(app).rows(request)
    assert (refused.status, "whole numbers" in json.loads(str(refused.text))["error"]) == (400, True)  # type: ignore[attr-defined]


@pytest.mark.parametrize("text", ["²", "9" * 20, "-1", "", "x"])
def test_a_text_that_is_no_offset_is_the_key_of_nothing(text: str) -> None:
    assert read_key(OPEN, text) == text.encode()


def test_an_offset_is_read_as_it_is_shown() -> None:
    largest = (1 << 63) - 1
    assert read_key(OPEN, str(show_key(OPEN, largest.to_bytes(8, "big")))) == largest.to_bytes(8, "big")


def state_of(*lanes: tuple[int, list[bytes], bool]) -> StatePages:
    """Pages of a State whose partitions hold words, each the same as its key, and run or don't."""
    stage = SimpleNamespace(name="s", state=SimpleNamespace(name="s", maps={WORDS.name: WORDS}))
    found = {}
    for partition, words, ready in lanes:
        view, out = Held(), Outbox()
        for word in words:
            out.put(WORDS, word, word.decode())
        view.apply(out)
        found[partition] = SimpleNamespace(stage=stage, tp=TopicPartition("t", partition), view=view, ready=ready)
    return StatePages(SimpleNamespace(delivery=SimpleNamespace(stages={"s": stage}, lanes=found)))  # type: ignore[arg-type]  # what is read of an app


async def rows(pages: StatePages, **query: str) -> Any:
    request: Any = SimpleNamespace(match_info={"state": "s", "map": WORDS.name}, query=query)
    return json.loads(str((await pages.rows(request)).text))  # type: ignore[attr-defined]


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 6])
async def test_pages_one_after_the_other_hold_each_row_once(limit: int) -> None:
    pages = state_of((2, [b"e"], True), (0, [b"a", b"b", b"c"], True), (1, [], True), (3, [b"f"], True))
    found, query = [], {"limit": str(limit)}
    while True:
        page = await rows(pages, **query)
        assert len(page["rows"]) <= limit
        found += [(row["partition"], row["value"]) for row in page["rows"]]
        if page["next"] is None:
            break
        query |= {name: str(value) for name, value in page["next"].items()}
    assert found == [(0, "a"), (0, "b"), (0, "c"), (2, "e"), (3, "f")]


async def test_rows_of_a_partition_that_is_being_restored_are_not_shown() -> None:
    page = await rows(state_of((0, [b"half"], False), (1, [b"whole"], True)))
    assert ([row["value"] for row in page["rows"]], page["partitions"]) == (["whole"], [1])


def test_the_key_of_a_review_is_read_as_it_is_shown() -> None:
    key = place(1_796_000_000_000, b"e/1")
    assert show_key(WAITING, key) == "1796000000000/e/1"
    assert read_key(WAITING, "1796000000000/e/1") == key


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ({"event_id": "a", "partition": "0"}, (200, '{"id": "a"}')),
        ({"event_id": "b", "partition": "0"}, (404, "no result is kept")),
        ({"event_id": "a", "partition": "1"}, (503, "the partition is being restored")),
        ({"event_id": "a", "partition": "2"}, (421, "its disk is full")),
        ({"event_id": "a", "partition": "3"}, (421, "another worker has this partition")),
        ({}, (421, "another worker has this partition")),
    ],
)
async def test_a_result_is_given_as_it_stands_or_it_is_said_why_not(
    asked: dict[str, str], answer: tuple[int, str]
) -> None:
    stage, view, out = SimpleNamespace(name="results"), Held(), Outbox()
    out.put(KEPT, b"a", Kept(at_ms=1, result=b'{"id": "a"}'))
    view.apply(out)
    lanes = {
        n: SimpleNamespace(stage=stage, tp=TopicPartition("t", n), view=view, ready=n == 0, stopped=stopped)
        for n, stopped in enumerate(["", "", "its disk is full"])
    }
    request: Any = SimpleNamespace(query=asked)
    reply: Any = await StatePages(SimpleNamespace(delivery=SimpleNamespace(lanes=lanes))).result(request)  # type: ignore[arg-type]  # what is read of an app
    said = reply.body.decode() if reply.status == 200 else json.loads(reply.text)["error"]
    assert (reply.status, said) == answer
