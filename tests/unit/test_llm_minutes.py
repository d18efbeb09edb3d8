"""Calls and tokens a minute of a whole deployment: no minute, wherever it begins, has more than the limit."""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agents.budget import answer
from app import metrics
from app.llm.budget import Account, Request, Terms, free_in_ms, grant, minute_account, settle, terms_of, turn
from app.llm.deep import DeepClassifier
from app.llm.purse import Purse
from app.settings import BudgetSettings, LlmSettings, ProviderSettings, Settings, load
from models.events import Answer, ModelRequest, Origin
from tests.helpers import model_faults as mf
from tests.helpers import modelserver as ms

pytestmark = pytest.mark.timeout(60)

LIMIT, MINUTE_MS = 10.0, 60_000
TERMS = Terms(limit=LIMIT, share=0.1, minute_s=60.0)


def most_in_a_minute(uses: Sequence[tuple[float, float]], minute: float) -> float:
    """The most that was used in any stretch of that length; of times and amounts."""
    return max((sum(n for at, n in uses if begin <= at < begin + minute) for begin, _ in uses), default=0.0)


class MinuteMachine(RuleBasedStateMachine):
    """Leases are used at any time before they end, and settled, settled late, twice, or never."""

    def __init__(self) -> None:
        super().__init__()
        self.account, self.now = Account(), 1_000_000
        self.open: dict[str, tuple[float, int]] = {}
        self.used: dict[str, float] = {}
        self.uses: list[tuple[float, float]] = []
        self.number = 0

    @rule(ms=st.integers(1, 25_000))
    def wait(self, ms: int) -> None:
        self.now += ms

    @rule(wanted=st.floats(0.5, 8), least=st.floats(0, 4))
    def ask(self, wanted: float, least: float) -> None:
        turn(self.account, TERMS, self.now)
        name, end = str(self.number), self.now + round(TERMS.lease_s * 1000)
        self.number += 1
        before = free_in_ms(self.account, TERMS, min(least, wanted), self.now)
        got = grant(self.account, name, wanted, LIMIT, least, end)
        assert (got > 0) == (before == 0) or got == 0 == least or wanted < least
        if got:
            self.open[name], self.used[name] = (got, end), 0.0

    @precondition(lambda self: self.open)
    @rule(data=st.data(), share=st.floats(0, 1))
    def use(self, data: st.DataObject, share: float) -> None:
        name = data.draw(st.sampled_from(sorted(self.open)))
        amount, end = self.open[name]
        if self.now < end:
            n = (amount - self.used[name]) * share
            self.used[name] += n
            self.uses.append((self.now, n))

    @precondition(lambda self: self.open)
    @rule(data=st.data(), again=st.booleans())
    def give_back(self, data: st.DataObject, again: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.open)))
        turn(self.account, TERMS, self.now)
        settle(self.account, name, self.used[name], self.now + MINUTE_MS)
        if again:
            settle(self.account, name, self.used[name], self.now + MINUTE_MS)
        amount, _ = self.open[name]
        self.open[name] = (amount, 0)  # no more use

    @invariant()
    def no_minute_has_more(self) -> None:
        assert self.account.spent <= LIMIT + 1e-9
        assert most_in_a_minute(self.uses, MINUTE_MS) <= LIMIT + 1e-9

    def teardown(self) -> None:
        turn(self.account, TERMS, self.now + 2 * MINUTE_MS)
        assert self.account.spent == 0
        assert (self.account.ends_ms, self.account.recent) == ({}, {})


MinuteMachine.TestCase.settings = hypothesis_settings(max_examples=80, stateful_step_count=40, deadline=None)
TestMinuteMachine = MinuteMachine.TestCase


class MinuteBank:
    """The stage in memory, by its own rules; a worker may die with what it holds."""

    def __init__(self, settings: Settings, now: Callable[[], float]) -> None:
        self.terms, self.now, self.accounts = terms_of(settings), now, dict[str, Account]()
        self.purses: dict[str, Purse] = {}
        self.asked = 0

    async def send(self, request: Request) -> None:
        await asyncio.sleep(0)
        account, terms = self.accounts.setdefault(request.account, Account()), self.terms[request.account]
        now_ms = round(self.now() * 1000)
        turn(account, terms, now_ms)
        if request.kind == "settle":
            settle(account, request.lease, request.amount, now_ms + round(terms.minute_s * 1000))
            return
        self.asked += 1
        given = answer(request, account, terms, now_ms)
        if (purse := self.purses.get(request.worker)) is not None:
            purse.granted(given.lease, given.account, given.day, given.amount, given.final, given.wait_s)

    def purse(self, settings: Settings, **more: Any) -> Purse:
        purse = Purse(settings, self, **more)
        self.purses[purse.worker] = purse
        return purse


def settings(url: str = "http://127.0.0.1:1/v1", minute_s: float = 60.0, **llm: Any) -> Settings:
    given = LlmSettings(**{"base_url": url, "batch_wait_ms": 0, "batch_items": 1, **llm})
    return load().model_copy(update={"llm": given, "budget": BudgetSettings(minute_s=minute_s)})


async def test_three_workers_of_which_one_dies_share_a_minute_and_use_most_of_it() -> None:
    now, rnd, limit = [1_000.0], random.Random(5), 120
    given = settings(requests_per_minute=limit)
    bank, name = MinuteBank(given, lambda: now[0]), minute_account("main", "requests")
    purses = [bank.purse(given, now=lambda: now[0], clock=lambda: now[0]) for _ in range(3)]
    uses: list[tuple[float, float]] = []
    for tick in range(4 * 60 * 5):
        now[0] += 0.2
        if tick == 600:
            del bank.purses[purses.pop().worker]  # with its lease
            purses.append(bank.purse(given, now=lambda: now[0], clock=lambda: now[0]))
        for purse in purses:
            for _ in range(rnd.randint(0, 3)):
                if (taken := await purse.reserve(name, 1)) is not None:
                    uses.append((now[0], 1))
                    purse.settle(taken, 1)
            await purse.tidy()
    assert most_in_a_minute(uses, 60) <= limit
    assert len(uses) > 0.8 * 4 * limit
    assert bank.asked < len(uses)  # a lease serves several calls


async def test_what_is_larger_than_the_limit_goes_when_all_of_the_minute_is_free() -> None:
    now = [1_000.0]
    given = settings(tokens_per_minute=100)
    bank, name = MinuteBank(given, lambda: now[0]), minute_account("main", "tokens")
    purse = bank.purse(given, now=lambda: now[0], clock=lambda: now[0])
    first = await purse.reserve(name, 60)
    assert first is not None
    purse.settle(first, 30)
    assert await purse.reserve(name, 500) is None
    assert 60 < purse.wait_s(name) <= 71  # a lease may still be used, and then counts for a minute
    await purse.tidy(everything=True)
    now[0] += 61
    whole = await purse.reserve(name, 500)
    assert whole is not None
    assert whole.amount == 100


def request(text: str) -> ModelRequest:
    return ModelRequest(
        event_id=text, event_type="message", event_time_ms=0, entity="u", task="shop", text=text,
        source=Origin("raw-events", 0, 0), received_ms=0,
    )  # fmt: skip


async def ask(given: Settings, count: int) -> list[Answer | BaseException]:
    import time

    bank = MinuteBank(given, time.time)
    deep = DeepClassifier(given, purse=bank.purse(given))
    tidying = asyncio.ensure_future(_tidy(bank))
    answers = await asyncio.gather(*(deep.classify(request(f"text {n}")) for n in range(count)), return_exceptions=True)
    tidying.cancel()
    await deep.close()
    return answers


async def _tidy(bank: MinuteBank) -> None:
    while True:
        await asyncio.sleep(0.05)  # as the worker does, every half a second
        for purse in bank.purses.values():
            await purse.tidy()


async def test_calls_wait_for_their_minute_and_every_event_is_answered() -> None:
    async with ms.ModelServer() as server:
        answers = await ask(settings(server.base_url, 1.0, requests_per_minute=6, json_schema=False), 16)
        assert [type(each) for each in answers] == [Answer] * 16
        assert most_in_a_minute([(call.at, 1) for call in server.calls], 0.6) <= 6


async def test_tokens_a_minute_bound_what_the_server_counts() -> None:
    waits = metrics.QUOTA_WAITS.labels("main")._value.get()
    async with ms.ModelServer() as server:
        answers = await ask(settings(server.base_url, 1.0, tokens_per_minute=1300), 5)
        assert [type(each) for each in answers] == [Answer] * 5
        per_call = server.tokens / len(server.calls)
        assert most_in_a_minute([(call.at, per_call) for call in server.calls], 0.6) <= 1300
        assert metrics.QUOTA_WAITS.labels("main")._value.get() > waits


async def test_a_long_wait_sends_events_to_the_next_provider() -> None:
    async with ms.ModelServer() as one, ms.ModelServer() as two:
        given = settings(
            one.base_url, 60.0, requests_per_minute=2, json_schema=False,
            providers=[ProviderSettings(name="next", base_url=two.base_url)],
        )  # fmt: skip
        answers = await ask(given, 5)
        by = sorted(each.provider for each in answers if isinstance(each, Answer))
        assert by == ["main", "main", "next", "next", "next"]
        assert len(one.calls) == 2


async def test_a_server_without_structured_output_is_counted_for_both_calls() -> None:
    async with ms.ModelServer() as server:
        server.script(mf.raw('{"error":{"message":"response_format json_schema is not supported"}}', 400))
        given = settings(server.base_url, 60.0, requests_per_minute=3)
        deep = DeepClassifier(given, purse=MinuteBank(given, lambda: 1000.0).purse(given, now=lambda: 1000.0))
        answers = [(await asyncio.gather(deep.classify(request(str(n))), return_exceptions=True))[0] for n in range(3)]
        await deep.close()
        assert [isinstance(each, Answer) for each in answers] == [True, True, False]
        assert len(server.calls) == 3
