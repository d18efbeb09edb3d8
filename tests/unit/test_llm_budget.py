"""Accounts and purses: never above the limit, whatever comes in whatever order."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from app.llm.budget import Account, Request, day_of, grant, settle
from app.llm.deep import DeepClassifier, OverBudget
from app.llm.purse import Purse
from app.settings import BudgetSettings, LlmSettings, ProviderSettings, Settings, load
from models.events import Answer, ModelRequest, Origin
from tests.helpers import model_faults as mf
from tests.helpers import modelserver as ms

pytestmark = pytest.mark.timeout(30)

LIMIT = 1.0


class AccountMachine(RuleBasedStateMachine):
    """Requests repeated, late and in any order; workers spend at most what they were granted."""

    def __init__(self) -> None:
        super().__init__()
        self.account = Account()
        self.granted: dict[str, float] = {}
        self.used: dict[str, float] = {}

    @rule(lease=st.integers(0, 30), wanted=st.floats(0, 0.6))
    def ask(self, lease: int, wanted: float) -> None:
        name = str(lease)
        got = grant(self.account, name, wanted, LIMIT)
        assert got >= 0
        if name in self.granted and name not in self.used:
            assert got == self.granted[name]
        elif got > 0:
            assert name not in self.used
            assert got <= wanted
            self.granted[name] = got

    @rule(lease=st.integers(0, 30), share=st.floats(0, 1))
    def give_back(self, lease: int, share: float) -> None:
        name = str(lease)
        if name in self.granted:
            used = self.used.setdefault(name, self.granted[name] * share)
            settle(self.account, name, used)

    @invariant()
    def never_above(self) -> None:
        assert self.account.spent <= LIMIT + 1e-9
        open_ = sum(usd for name, usd in self.granted.items() if name not in self.used)
        assert self.account.spent == pytest.approx(open_ + sum(self.used.values()))


AccountMachine.TestCase.settings = hypothesis_settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAccountMachine = AccountMachine.TestCase


def test_a_day_begins_at_local_midnight_also_when_the_clocks_change() -> None:
    zone = ZoneInfo("Europe/Berlin")
    before = datetime(2026, 10, 25, 22, 30, tzinfo=UTC).timestamp()
    after = datetime(2026, 10, 25, 23, 30, tzinfo=UTC).timestamp()
    assert day_of(before, zone, 86_400).startswith("2026-10-25")
    assert day_of(after, zone, 86_400).startswith("2026-10-26")


class MemoryBank:
    """The stage in memory, shared by purses; loses and repeats nothing unless told."""

    def __init__(self, limit: float) -> None:
        self.limit, self.accounts = limit, dict[tuple[str, str], Account]()
        self.purses: dict[str, Purse] = {}
        self.asked = 0

    async def send(self, request: Request) -> None:
        await asyncio.sleep(0)
        account = self.accounts.setdefault((request.account, request.day), Account())
        if request.kind == "settle":
            settle(account, request.lease, request.amount)
            return
        self.asked += 1
        usd = grant(account, request.lease, request.amount, self.limit, request.least)
        final = self.limit - account.settled < request.least
        self.purses[request.worker].granted(request.lease, request.account, request.day, usd, final)

    def spent(self) -> float:
        return sum(account.spent for account in self.accounts.values())


def settings(limit: float | None, **budget: object) -> Settings:
    return load().model_copy(update={"budget": BudgetSettings.model_validate({"day_usd": limit, **budget})})


async def test_many_workers_spend_no_more_than_the_limit_together() -> None:
    bank, rnd = MemoryBank(1.0), random.Random(3)
    purses = [Purse(settings(1.0), bank) for _ in range(3)]
    bank.purses.update({purse.worker: purse for purse in purses})
    spent, refused = [0.0], [0]

    async def calls(purse: Purse) -> None:
        for _ in range(200):
            most = rnd.uniform(0.001, 0.01)
            reservation = await purse.reserve("shop", most)
            if reservation is None:
                refused[0] += 1
                continue
            await asyncio.sleep(0)
            used = most * rnd.uniform(0.1, 1.0)
            purse.settle(reservation, used)
            spent[0] += used
            await purse.tidy()
            assert spent[0] <= bank.spent() <= 1.0 + 1e-9

    await asyncio.gather(*(calls(purse) for purse in purses for _ in range(3)))
    assert refused[0] > 0
    assert spent[0] > 0.9  # and what was given back was used
    for purse in purses:
        await purse.tidy(everything=True)
    assert bank.spent() == pytest.approx(spent[0])


async def test_the_next_day_starts_anew_and_yesterdays_lease_goes_back() -> None:
    now = [86_400.0 * 10]
    bank = MemoryBank(0.01)
    purse = Purse(settings(0.01), bank, now=lambda: now[0])
    bank.purses[purse.worker] = purse
    first = await purse.reserve("shop", 0.01)
    assert first is not None
    assert await purse.reserve("shop", 0.001) is None
    now[0] += 86_400
    assert await purse.reserve("shop", 0.001) is not None
    purse.settle(first, 0.004)
    await purse.tidy()
    assert bank.accounts["shop", "1970-01-11T00:00:00"].settled == pytest.approx(0.004)


async def test_a_task_without_a_budget_asks_nobody() -> None:
    bank = MemoryBank(0.0)
    purse = Purse(settings(None), bank)
    assert await purse.reserve("shop", 5.0) is not None
    assert bank.asked == 0


@asynccontextmanager
async def servers() -> AsyncIterator[tuple[ms.ModelServer, ms.ModelServer]]:
    async with ms.ModelServer() as one, ms.ModelServer() as two:
        yield one, two


def request(text: str) -> ModelRequest:
    return ModelRequest(
        event_id=text, event_type="message", event_time_ms=0, entity="u", task="shop", text=text,
        source=Origin("raw-events", 0, 0), received_ms=0,
    )  # fmt: skip


async def test_at_the_limit_a_free_provider_goes_on_and_without_one_the_event_comes_back() -> None:
    async with servers() as (paid, free):
        for chain, budget in (([paid, free], 0.02), ([paid], 0.02)):
            first = LlmSettings(
                base_url=paid.base_url, price_prompt_usd=10.0, price_completion_usd=10.0, batch_wait_ms=0,
                providers=[ProviderSettings(name="free", base_url=free.base_url)] if len(chain) > 1 else [],
            )  # fmt: skip
            bank = MemoryBank(budget)
            given = settings(budget, lease_share=1.0).model_copy(update={"llm": first})
            purse = Purse(given, bank)
            bank.purses[purse.worker] = purse
            deep = DeepClassifier(given, purse=purse)
            answers: list[Answer | BaseException] = []
            for n in range(12):
                answers += await asyncio.gather(deep.classify(request(f"t{n}")), return_exceptions=True)
                await purse.tidy(everything=True)
            await deep.close()
            by = [a.provider if isinstance(a, Answer) else type(a).__name__ for a in answers]
            assert by[0] == "main"
            assert by[-1] == ("free" if len(chain) > 1 else OverBudget.__name__), by
            spent = sum(a.cost_usd for a in answers if isinstance(a, Answer))
            assert 0 < spent <= budget
            assert bank.spent() <= budget


async def test_a_call_that_breaks_off_counts_as_spent_and_one_that_was_refused_does_not() -> None:
    async with ms.ModelServer() as server:
        llm = LlmSettings(base_url=server.base_url, price_prompt_usd=1.0, batch_wait_ms=0, max_retries=0)
        given = settings(1.0).model_copy(update={"llm": llm})
        bank = MemoryBank(1.0)
        purse = Purse(given, bank)
        bank.purses[purse.worker] = purse
        deep = DeepClassifier(given, purse=purse)
        server.script(mf.status(503))
        await asyncio.gather(deep.classify(request("a")), return_exceptions=True)
        await purse.tidy(everything=True)
        assert bank.spent() == 0
        server.script(mf.reset())
        await asyncio.gather(deep.classify(request("b")), return_exceptions=True)
        await purse.tidy(everything=True)
        assert bank.spent() > 0
        await deep.close()
