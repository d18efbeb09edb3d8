"""What was spent and what it saves: the estimate is compared with what a server counts for the same events one by one."""

import asyncio

import pytest

from app import metrics
from app.llm.answer import Completion
from app.llm.deep import DeepClassifier
from app.llm.ledger import Ledger, Line
from app.llm.prompts import PromptBuilder
from app.settings import BudgetSettings, LlmSettings, Settings, load
from models.events import ModelRequest, Origin
from tests.helpers import modelserver as ms

pytestmark = pytest.mark.timeout(30)

PRICE_USD = 10.0


def settings(base_url: str, **llm: object) -> Settings:
    given = {"base_url": base_url, "price_prompt_usd": PRICE_USD, "price_completion_usd": PRICE_USD, **llm}
    return load().model_copy(update={"llm": LlmSettings.model_validate(given)})


def value(metric: object, **labels: str) -> float:
    """Of a counter or gauge; 0 where it has no such labels yet."""
    for family in metric.collect():  # type: ignore[attr-defined]
        for sample in family.samples:
            if sample.labels == labels and not sample.name.endswith("_created"):
                return float(sample.value)
    return 0.0


def texts(count: int) -> list[str]:
    return [f"{'where is my parcel, please? ' * (1 + n % 7)}({n})" for n in range(count)]


async def ask(given: Settings, said: list[str], ledger: Ledger | None = None) -> None:
    deep = DeepClassifier(given, ledger=ledger)
    requests = [
        ModelRequest(
            event_id=str(n), event_type="m", event_time_ms=0, entity="u", task="shop", text=text,
            source=Origin("raw-events", 0, n), received_ms=0,
        )
        for n, text in enumerate(said)
    ]  # fmt: skip
    await asyncio.gather(*(deep.classify(request) for request in requests))
    await deep.close()


async def test_estimate_of_all_deep_one_by_one_is_what_the_server_counts_for_it() -> None:
    said = texts(150)
    async with ms.ModelServer() as batched, ms.ModelServer() as single:
        given = settings(batched.base_url, batch_wait_ms=0, batch_items=9)
        ledger = Ledger(given)
        before = value(metrics.ALL_DEEP_TOKENS, task="shop"), value(metrics.SAVED_USD, task="shop")
        await ask(given, said, ledger)
        ledger.decided("shop", "deep", len(said), sum(map(len, said)))
        await ask(settings(single.base_url, batch_wait_ms=0, batch_items=1), said)
        assert [len(call.items) for call in single.calls] == [1] * 150
        estimate = value(metrics.ALL_DEEP_TOKENS, task="shop") - before[0]
        assert estimate == pytest.approx(single.tokens, rel=0.05)
        saved = value(metrics.SAVED_USD, task="shop") - before[1]
        assert saved == pytest.approx((single.tokens - batched.tokens) * PRICE_USD / 1e6, rel=0.07)


def test_line_finds_the_fixed_part_and_the_slope() -> None:
    line = Line(400)
    for n in range(30):
        line.add(100 + 37 * (n % 5), 90 + (100 + 37 * (n % 5)) // 5)
    assert line.sum(10, 1000) == pytest.approx(10 * 90 + 1000 / 5, rel=0.02)


def test_line_of_calls_that_are_all_alike_takes_the_mean() -> None:
    line = Line(300)
    assert line.sum(2, 200) == pytest.approx((2 * 300 + 200) / 4)
    for _ in range(30):
        line.add(100, 200)
    assert line.sum(1, 100) == pytest.approx(200)


def test_shares_count_every_outcome() -> None:
    ledger = Ledger(settings("http://127.0.0.1:1/v1"))
    for tier, events in (("rule", 3), ("light", 5), ("deep", 2)):
        ledger.decided("shop", tier, events, 10)
    assert [value(metrics.TIER_SHARE, tier=tier) for tier in ("rule", "light", "deep")] == [0.3, 0.5, 0.2]


def test_an_event_decided_by_a_rule_saves_a_whole_call() -> None:
    ledger = Ledger(settings("http://127.0.0.1:1/v1"))
    before = value(metrics.SAVED_TOKENS, task="shop")
    ledger.decided("shop", "rule", 1, 0)
    prompt = PromptBuilder(load().tasks[0], load().llm).build([""], masked=False)
    assert value(metrics.SAVED_TOKENS, task="shop") - before > prompt.system_chars / 4


def test_the_days_sums_begin_anew_at_the_zones_midnight() -> None:
    now = [1_790_000_000.0]
    given = settings("http://127.0.0.1:1/v1").model_copy(update={"budget": BudgetSettings(timezone="Asia/Shanghai")})
    ledger = Ledger(given, now=lambda: now[0])
    prompt = PromptBuilder(given.tasks[0], given.llm).build(["a", "b"], masked=False)
    said = Completion(text="", prompt_tokens=100, completion_tokens=10)

    def spend() -> float:
        ledger.spent("p", "shop", prompt, said, 0.5)
        return value(metrics.DAY_COST_USD, provider="p", task="shop")

    spend()
    assert spend() == 1.0
    assert value(metrics.DAY_TOKENS, provider="p", task="shop", kind="prompt") == 200
    now[0] += 86_400
    ledger.turn()
    assert value(metrics.DAY_COST_USD, provider="p", task="shop") == 0
    assert spend() == 0.5
