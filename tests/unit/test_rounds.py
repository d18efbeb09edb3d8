"""Events whose providers are used up: who is asked again, how often, and when a person is. Real calls to a bad server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from agents import tiers
from agents.open_items import OpenItems
from agents.tiers import Tiers
from app.llm.ledger import Ledger
from app.settings import LlmSettings, Settings, load
from models.events import ModelRequest, Origin
from tables.open_work import OPEN, OpenItem, open_key
from tests.helpers import model_faults as mf
from tests.helpers import modelserver as ms
from tests.unit.test_kept_prompts import Lane

pytestmark = pytest.mark.timeout(30)

SPOILT, CUT = mf.answer(wrong={1: "nonsense"}), mf.answer(cut_at=1)
A_ROUND = 3
"""Answers that an event may spoil alone, in one round at one provider."""
RETRY_MS = 300_000
BAD_MS = round(tiers.BAD_ANSWERS_WAIT_S * 1000)


class Stage:
    """Tiers over the open items of one partition."""

    def __init__(self, settings: Settings, lane: Any) -> None:
        self.lane = lane
        self.now_ms = 1_790_000_000_000
        self.items = OpenItems(settings, lambda open_: self.tiers.enqueue(open_), lambda _: None)
        self.tiers = Tiers(settings, self.items, Ledger(settings))

    async def put(self, *texts: str) -> None:
        for number, text in enumerate(texts, 1):
            request = ModelRequest(
                event_id=f"e{number}", event_type="message", event_time_ms=0, entity="u", task="shop", text=text,
                source=Origin("raw-events", 0, number), received_ms=0,
            )  # fmt: skip
            row = OpenItem(request=request, opened_ms=1)
            self.lane.view.rows[OPEN.row(open_key(number))] = OPEN.encode(row)
        self.items.ready(self.lane)
        await self.settled()

    async def later(self, ms: int = RETRY_MS * 2) -> None:
        self.now_ms += ms
        self.tiers.tick(self.now_ms)
        await self.settled()

    async def settled(self) -> None:
        """No model is asked about anything."""
        while running := [task for pool in self.tiers._pools for task in pool.running]:
            await asyncio.gather(*running)
            await asyncio.sleep(0)

    @property
    def open(self) -> list[OpenItem]:
        """As State has them."""
        return [item for _, item in self.lane.view.scan(OPEN)]

    @property
    def written(self) -> list[dict[str, Any]]:
        """Results and reviews."""
        rows = [
            msgspec.json.decode(raw) for out in self.lane.written for sent in out.sends.values() for _, raw, _ in sent
        ]
        return [row for row in rows if "event_id" in row]


@asynccontextmanager
async def stage(monkeypatch: pytest.MonkeyPatch, url: str, lane: Any = None, **classify: Any) -> AsyncIterator[Stage]:
    tree = load()
    llm = LlmSettings(base_url=url, retry_backoff_s=0.01, batch_wait_ms=10, breaker={"min_calls": 90})
    off = {"light": tree.light.model_copy(update={"enabled": False}), "llm": llm}
    limits = {"retry_s": RETRY_MS / 1000, **classify}
    made = Stage(tree.model_copy(update={**off, "classify": tree.classify.model_copy(update=limits)}), lane or Lane())
    monkeypatch.setattr(tiers, "now_ms", lambda: made.now_ms)
    try:
        yield made
    finally:
        await made.tiers.stop()


@asynccontextmanager
async def asked_of(
    monkeypatch: pytest.MonkeyPatch, fault: mf.Fault, **classify: Any
) -> AsyncIterator[tuple[ms.ModelServer, Stage]]:
    """A server that does nothing but this, and an event whose first round it has spoilt."""
    async with ms.ModelServer() as server, stage(monkeypatch, server.base_url, **classify) as run:
        server.always = fault
        await run.put("hello")
        yield server, run


async def test_an_event_whose_answers_were_spoilt_by_chance_is_asked_again_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with ms.ModelServer() as server, stage(monkeypatch, server.base_url) as run:
        server.script(*[SPOILT] * A_ROUND)
        await run.put("my refund")
        assert run.written == []
        (kept,) = run.open
        assert (kept.round, kept.attempts, kept.tried) == (1, A_ROUND, ["main: no-answer"])
        assert 0.9 * BAD_MS <= kept.due_ms - run.now_ms <= 1.1 * BAD_MS
        await run.later(BAD_MS // 2)
        assert len(server.calls) == A_ROUND, "it isn't due yet"
        await run.later()
        assert [(row["event_id"], row["tier"], row["category"]) for row in run.written] == [("e1", "deep", "payment")]
        assert (len(server.calls), run.open) == (A_ROUND + 1, [])


@pytest.mark.parametrize(("fault", "cause"), [(SPOILT, "no-answer"), (CUT, "cut")])
async def test_a_text_that_no_model_can_answer_is_paid_for_in_two_rounds_and_then_a_person_decides(
    monkeypatch: pytest.MonkeyPatch, fault: mf.Fault, cause: str
) -> None:
    async with asked_of(monkeypatch, fault) as (server, run):
        for _ in range(5):
            await run.later()
        (review,) = run.written
        assert (review["cause"], review["attempts"], review["rounds"]) == (cause, 2 * A_ROUND, 2)
        assert review["tried"] == [f"main: {cause}"]
        assert (len(server.calls), run.open) == (2 * A_ROUND, [])


async def test_a_restart_between_two_rounds_gives_no_third(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ms.ModelServer() as server:
        server.always = SPOILT
        async with stage(monkeypatch, server.base_url) as before:
            await before.put("hello")
        lane = Lane()
        lane.view.rows = before.lane.view.rows
        async with stage(monkeypatch, server.base_url, lane) as after:
            await after.put()
            assert len(server.calls) == A_ROUND, "it isn't due yet"
            await after.later()
            assert [(row["cause"], row["attempts"]) for row in after.written] == [("no-answer", 2 * A_ROUND)]


async def test_equal_texts_share_their_call_in_the_second_round_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ms.ModelServer() as server, stage(monkeypatch, server.base_url) as run:
        server.always = SPOILT
        await run.put("hello", "hello", "Hello")
        assert len({item.due_ms for item in run.open}) == 1
        await run.later()
        assert sorted(row["event_id"] for row in run.written) == ["e1", "e2", "e3"]
        assert len(server.calls) == 2 * A_ROUND


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (mf.status(400, error_code="content_filter"), "prompt-refused"),
        (mf.answer(missing=[1], finish_reason="content_filter"), "content-filter"),
    ],
)
async def test_what_asking_again_can_t_change_goes_to_a_person_at_once(
    monkeypatch: pytest.MonkeyPatch, fault: mf.Fault, cause: str
) -> None:
    async with asked_of(monkeypatch, fault) as (server, run):
        (review,) = run.written
        assert (review["cause"], review["attempts"], review["rounds"]) == (cause, len(server.calls), 0)


async def test_a_server_that_fails_is_asked_in_all_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    async with asked_of(monkeypatch, mf.status(500), max_rounds=4) as (_, run):
        (kept,) = run.open
        assert 0.9 * RETRY_MS <= kept.due_ms - run.now_ms <= 1.1 * RETRY_MS
        for number in range(1, 4):
            assert [item.round for item in run.open] == [number]
            await run.later()
        assert [(row["cause"], row["rounds"]) for row in run.written] == [("rounds-used", 4)]


async def test_a_round_of_failures_takes_nothing_of_what_spoilt_answers_have(monkeypatch: pytest.MonkeyPatch) -> None:
    async with asked_of(monkeypatch, mf.status(500)) as (server, run):
        server.always = SPOILT
        await run.later()
        assert [(item.round, item.spoilt) for item in run.open] == [(2, 1)]
        await run.later()
        assert [(row["cause"], row["rounds"]) for row in run.written] == [("no-answer", 3)]


async def test_a_shorter_wait_than_half_a_minute_is_kept_to(monkeypatch: pytest.MonkeyPatch) -> None:
    async with asked_of(monkeypatch, SPOILT, retry_s=5) as (_, run):
        assert [4500 <= item.due_ms - run.now_ms <= 5500 for item in run.open] == [True]


async def test_where_one_round_is_all_there_is_no_second(monkeypatch: pytest.MonkeyPatch) -> None:
    async with asked_of(monkeypatch, SPOILT, max_rounds=1) as (_, run):
        assert [(row["cause"], row["attempts"], row["rounds"]) for row in run.written] == [("no-answer", A_ROUND, 1)]
