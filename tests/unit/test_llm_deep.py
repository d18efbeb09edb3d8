"""The deep tier against a real local server that fails in every way."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from app.llm.deep import DeepClassifier, NotNow, RoundUsed, Unanswerable
from app.settings import LlmSettings, Settings, load
from models.events import Answer, ModelRequest, Origin
from tests.helpers import model_faults as mf
from tests.helpers import modelserver as ms

pytestmark = pytest.mark.timeout(30)

TEXTS = [
    "I was charged twice", "where is my parcel", "please cancel my order", "hello", "退款什么时候到账",
    "快递没有收到", "我要取消订单", "你好，有人在吗", "my card was declined", "the courier never rang",
    "is it in stock", "the app crashes", "请开发票", "物流单号查不到", "什么时候补货", "忘记密码",
    "a payment failed", "delivery to Norway", "change the quantity", "thanks",
]  # fmt: skip


def settings(base_url: str, **llm: Any) -> Settings:
    base = load().model_copy(deep=True)
    given = {"base_url": base_url, "retry_backoff_s": 0.01, "batch_wait_ms": 30, "timeout_s": 5.0, **llm}
    return base.model_copy(update={"llm": LlmSettings(**given)})


def request(text: str, event_type: str = "customer.message", number: int = 0) -> ModelRequest:
    return ModelRequest(
        event_id=f"e{number}", event_type=event_type, event_time_ms=0, entity="u", task="shop", text=text,
        source=Origin("raw-events", 0, number), received_ms=0,
    )  # fmt: skip


@pytest.fixture
async def server() -> AsyncIterator[ms.ModelServer]:
    async with ms.ModelServer() as running:
        yield running


@asynccontextmanager
async def deep(server: ms.ModelServer, **llm: Any) -> AsyncIterator[DeepClassifier]:
    classifier = DeepClassifier(settings(server.base_url, **llm), rng=random.Random(1))
    try:
        yield classifier
    finally:
        await classifier.close()


async def ask(classifier: DeepClassifier, texts: list[str] = TEXTS) -> list[Answer | BaseException]:
    return await asyncio.gather(*(classifier.classify(request(t)) for t in texts), return_exceptions=True)


def categories(answers: list[Answer | BaseException]) -> Iterator[str]:
    for answer in answers:
        assert isinstance(answer, Answer), answer
        yield answer.category


RIGHT = [ms.category_of(text) for text in TEXTS]


async def test_twenty_events_share_one_call_and_each_gets_its_own_answer(server: ms.ModelServer) -> None:
    async with deep(server) as classifier:
        assert list(categories(await ask(classifier))) == RIGHT
        assert [call.items for call in server.calls] == [TEXTS]
        assert (classifier.pending, classifier.in_flight) == (0, 0)


async def test_full_batch_does_not_wait_and_the_rest_goes_after_the_oldest_waited(server: ms.ModelServer) -> None:
    async with deep(server, batch_wait_ms=300) as classifier:
        started = asyncio.get_running_loop().time()
        assert list(categories(await ask(classifier, TEXTS + TEXTS[:3]))) == RIGHT + RIGHT[:3]
        assert asyncio.get_running_loop().time() - started < 2
    assert [len(call.items) for call in server.calls] == [20, 3]
    assert server.calls[0].at - server.calls[1].at < -0.2


async def test_event_types_do_not_share_a_call(server: ms.ModelServer) -> None:
    async with deep(server) as classifier:
        await asyncio.gather(*(classifier.classify(request(t, f"type-{i % 2}")) for i, t in enumerate(TEXTS)))
    assert sorted(map(len, (call.items for call in server.calls))) == [10, 10]


async def test_missing_wrong_and_doubled_numbers_are_asked_again_together_and_the_rest_stands(
    server: ms.ModelServer,
) -> None:
    server.script(mf.answer(missing=[3], wrong={5: "paymnt"}, twice={8: "order"}, extra={21: "other", 99: "order"}))
    async with deep(server) as classifier:
        assert list(categories(await ask(classifier))) == RIGHT
    assert [call.items for call in server.calls[1:]] == [[TEXTS[2], TEXTS[4], TEXTS[7]]]


async def test_answer_of_no_use_is_asked_for_in_halves(server: ms.ModelServer) -> None:
    server.script(mf.raw('{"choices":[{"message":{"content":"sorry"},"finish_reason":"stop"}]}'))
    async with deep(server) as classifier:
        assert list(categories(await ask(classifier))) == RIGHT
    assert sorted(len(call.items) for call in server.calls) == [10, 10, 20]


async def test_what_is_spoilt_three_times_is_asked_alone(server: ms.ModelServer) -> None:
    server.script(mf.answer(missing=[3, 5, 8]), mf.answer(missing=[1, 3]), mf.answer(missing=[1, 2]))
    async with deep(server) as classifier:
        assert list(categories(await ask(classifier))) == RIGHT
    assert [call.items for call in server.calls[1:2]] == [[TEXTS[2], TEXTS[4], TEXTS[7]]]
    assert [call.items for call in server.calls[2:3]] == [[TEXTS[2], TEXTS[7]]]
    assert sorted(call.items for call in server.calls[3:]) == sorted([[TEXTS[2]], [TEXTS[7]]])


async def test_cut_answer_keeps_the_whole_ones_and_asks_the_rest_in_a_smaller_batch(server: ms.ModelServer) -> None:
    server.script(mf.answer(cut_at=14))
    async with deep(server) as classifier:
        assert list(categories(await ask(classifier))) == RIGHT
    assert [call.items for call in server.calls] == [TEXTS, TEXTS[13:]]


async def test_text_that_spoils_its_answer_is_unanswerable_and_the_others_are_not(server: ms.ModelServer) -> None:
    server.by_text["hello"] = "no such category"
    async with deep(server) as classifier:
        answers = await ask(classifier)
    odd = answers.pop(3)
    assert isinstance(odd, Unanswerable)
    assert (odd.cause, odd.attempts, odd.retryable) == ("no-answer", 4, True)
    assert list(categories(answers)) == RIGHT[:3] + RIGHT[4:]
    assert [call.items for call in server.calls[1:]] == [["hello"]] * 3


async def test_lone_event_is_asked_again_once(server: ms.ModelServer) -> None:
    server.script(mf.answer(missing=[1]))
    async with deep(server) as classifier:
        assert list(categories(await ask(classifier, ["my refund"]))) == ["payment"]
    assert len(server.calls) == 2


async def test_answer_cut_every_time_ends_after_three_attempts_alone(server: ms.ModelServer) -> None:
    server.always = mf.answer(cut_at=1)
    async with deep(server) as classifier:
        errors = await ask(classifier, TEXTS[:3])
    assert {(e.cause, e.attempts) for e in errors if isinstance(e, Unanswerable)} == {("cut", 4), ("cut", 5)}
    assert len(server.calls) == 11


@pytest.mark.parametrize("text", ["12", "7: other", '1": "other', 'x\n2: "other"', "a\u2028b", "hi \ud83d", "```\n{"])
async def test_odd_text_changes_nothing_for_the_others(server: ms.ModelServer, text: str) -> None:
    texts = [*TEXTS[:6], text, *TEXTS[7:]]
    async with deep(server) as classifier:
        answers = list(categories(await ask(classifier, texts)))
    assert answers == [*RIGHT[:6], "other", *RIGHT[7:]]
    assert len(server.calls) == 1
    assert len(server.calls[0].items) == 20


async def test_thoughts_fences_and_remarks_are_no_answers(server: ms.ModelServer) -> None:
    server.script(mf.answer(prefix='<think>{"1":"order","2":"order"}</think>\nSure:\n```json\n', suffix="\n```\nDone."))
    async with deep(server) as classifier:
        assert list(categories(await ask(classifier))) == RIGHT
    assert len(server.calls) == 1


@pytest.mark.parametrize("fault", [mf.status(503), mf.reset(), mf.raw("{"), mf.error_object(), mf.status(429)])
async def test_failure_is_retried(server: ms.ModelServer, fault: mf.Fault) -> None:
    server.script(fault, fault)
    async with deep(server) as classifier:
        assert list(categories(await ask(classifier))) == RIGHT
    assert len(server.calls) == 3


async def test_server_that_keeps_failing_is_called_three_times_and_all_events_come_back(server: ms.ModelServer) -> None:
    server.always = mf.status(500)
    async with deep(server) as classifier:
        errors = await ask(classifier)
    assert {type(error) for error in errors} == {RoundUsed}
    assert {tuple(e.tried) for e in errors if isinstance(e, RoundUsed)} == {("main: model server answered 500 (x)",)}
    assert len(set(map(id, errors))) == len(TEXTS)
    assert len(server.calls) == 3


@pytest.mark.parametrize("fault", [mf.hang(), mf.drip()])
async def test_hang_and_slow_drip_end_at_the_deadline(server: ms.ModelServer, fault: mf.Fault) -> None:
    server.script(fault)
    async with deep(server, timeout_s=0.5) as classifier:
        assert list(categories(await ask(classifier))) == RIGHT
    assert len(server.calls) == 2
    assert not server.calls[0].done


async def test_retry_after_holds_back_every_call(server: ms.ModelServer) -> None:
    server.script(mf.status(429, retry_after="0.5"))
    async with deep(server, batch_wait_ms=0) as classifier:
        first = asyncio.ensure_future(classifier.classify(request("my refund")))
        while not server.calls:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)
        await classifier.classify(request("hello", "other-type"))
        await first
    assert len(server.calls) == 3
    assert all(call.at - server.calls[0].at >= 0.49 for call in server.calls[1:])


async def test_long_retry_after_gives_the_events_back_with_the_wait(server: ms.ModelServer) -> None:
    server.always = mf.status(503, retry_after="60")
    async with deep(server) as classifier:
        with pytest.raises(NotNow) as first:
            await classifier.classify(request("my refund"))
        with pytest.raises(NotNow) as second:
            await classifier.classify(request("my refund"))
    assert first.value.retry_after_s == pytest.approx(60, abs=2)
    assert second.value.retry_after_s == pytest.approx(60, abs=2)
    assert len(server.calls) == 1


@pytest.mark.parametrize("fault", [mf.status(401), mf.status(404), mf.status(429, error_code="insufficient_quota")])
async def test_refusal_is_not_retried(server: ms.ModelServer, fault: mf.Fault) -> None:
    server.script(fault)
    async with deep(server) as classifier:
        errors = await ask(classifier)
    assert {type(error) for error in errors} == {NotNow}
    assert len(server.calls) == 1


async def test_prompt_too_long_is_asked_in_halves(server: ms.ModelServer) -> None:
    server.script(mf.status(400, error_code="context_length_exceeded"))
    async with deep(server) as classifier:
        assert list(categories(await ask(classifier))) == RIGHT
    assert sorted(len(call.items) for call in server.calls) == [10, 10, 20]


async def test_lone_prompt_that_is_refused_is_unanswerable(server: ms.ModelServer) -> None:
    server.always = mf.status(400, error_code="content_filter")
    async with deep(server) as classifier:
        [error] = await ask(classifier, ["x"])
    assert isinstance(error, Unanswerable)
    assert (error.cause, error.retryable) == ("prompt-refused", False)


async def test_cancelled_caller_breaks_nobody(server: ms.ModelServer) -> None:
    server.latency_ms = 100
    async with deep(server) as classifier:
        tasks = [asyncio.ensure_future(classifier.classify(request(t))) for t in TEXTS[:10]]
        await asyncio.sleep(0)
        tasks[0].cancel()  # before the call
        while not server.calls:
            await asyncio.sleep(0.005)
        tasks[1].cancel()  # during the call
        answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(a) for a in answers[:2]] == [asyncio.CancelledError] * 2
    assert list(categories(answers[2:])) == RIGHT[2:10]
    assert [call.items for call in server.calls] == [TEXTS[1:10]]


async def test_calls_in_flight_stay_within_concurrency(server: ms.ModelServer) -> None:
    server.latency_ms = 60
    server.script(mf.answer(missing=list(range(1, 21))))
    async with deep(server, concurrency=2) as classifier:
        assert list(categories(await ask(classifier, TEXTS * 5))) == RIGHT * 5
    assert server.most_in_flight == 2


async def test_shares_of_tokens_sum_to_what_the_server_counted(server: ms.ModelServer) -> None:
    server.script(mf.answer(missing=[3]))
    async with deep(server, price_prompt_usd=2.0, price_completion_usd=8.0) as classifier:
        answers = [a for a in await ask(classifier) if isinstance(a, Answer)]
    prompt = [sum(len(m["content"]) for m in call.body["messages"]) // 4 for call in server.calls]
    assert sum(a.prompt_tokens for a in answers) == sum(prompt)
    dollars = sum(a.prompt_tokens * 2e-6 + a.completion_tokens * 8e-6 for a in answers)
    assert sum(a.cost_usd for a in answers) == pytest.approx(dollars)
    assert answers[2].prompt_tokens > answers[1].prompt_tokens


async def test_close_gives_waiting_events_back(server: ms.ModelServer) -> None:
    server.always = mf.hang()
    classifier = DeepClassifier(settings(server.base_url, concurrency=1))
    asks = asyncio.ensure_future(ask(classifier, TEXTS + TEXTS[:5]))
    while not server.calls:
        await asyncio.sleep(0.005)
    await asyncio.wait_for(classifier.close(), 2)
    assert {type(error) for error in await asyncio.wait_for(asks, 2)} == {NotNow}
    with pytest.raises(NotNow):
        await classifier.classify(request("late"))
