"""Several providers: who is asked, in which order, and what comes back when nobody answers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from app import metrics
from app.errors import SettingsError
from app.llm.deep import DeepClassifier, NotNow, RoundUsed, Unanswerable
from app.settings import LlmSettings, MarkRule, ProviderSettings, Settings, load
from models.events import Answer, ModelRequest, Origin
from tests.helpers import model_faults as mf
from tests.helpers import modelserver as ms

pytestmark = pytest.mark.timeout(30)

TEXTS = ["I was charged twice", "where is my parcel", "please cancel my order", "hello"]
RIGHT = [ms.category_of(text) for text in TEXTS]
RIGHT_OF_A = ms.category_of("a")


def request(text: str, marks: tuple[str, ...] = (), topic: str = "raw-events") -> ModelRequest:
    return ModelRequest(
        event_id=text, event_type="message", event_time_ms=0, entity="u", task="shop", text=text,
        source=Origin(topic, 0, 0), received_ms=0, marks=list(marks),
    )  # fmt: skip


def settings(*servers: ms.ModelServer, policies: tuple[dict[str, Any], ...] = (), **llm: Any) -> Settings:
    given = {"retry_backoff_s": 0.01, "batch_wait_ms": 10, "timeout_s": 2.0, **llm}
    first, *rest = [
        {"name": f"p{number}", "model": f"m{number}", "base_url": server.base_url, **policy}
        for number, (server, policy) in enumerate(zip(servers, policies or ({},) * len(servers), strict=True))
    ]
    whole = LlmSettings(
        **{**given, **first}, providers=[ProviderSettings(**{"timeout_s": 2.0, **each}) for each in rest]
    )
    marks = [MarkRule.model_validate({"name": "private", "when": [{"field": "text", "op": "exists"}]})]
    return load().model_copy(update={"llm": whole, "marks": marks})


@asynccontextmanager
async def servers(count: int = 2) -> AsyncIterator[list[ms.ModelServer]]:
    running = [ms.ModelServer() for _ in range(count)]
    for server in running:
        await server.start()
    try:
        yield running
    finally:
        for server in running:
            await server.stop()


async def ask(deep: DeepClassifier, *requests: ModelRequest) -> list[Answer | BaseException]:
    return await asyncio.gather(*(deep.classify(each) for each in requests), return_exceptions=True)


@asynccontextmanager
async def chain(given: Settings, **more: Any) -> AsyncIterator[DeepClassifier]:
    deep = DeepClassifier(given, **more)
    try:
        yield deep
    finally:
        await deep.close()


def answered(answers: list[Answer | BaseException]) -> list[tuple[str, str]]:
    assert all(isinstance(a, Answer) for a in answers), answers
    return [(a.provider, a.category) for a in answers if isinstance(a, Answer)]


async def test_first_provider_that_works_answers_and_no_other_is_asked() -> None:
    async with servers() as (one, two), chain(settings(one, two)) as deep:
        assert answered(await ask(deep, *map(request, TEXTS))) == [("p0", right) for right in RIGHT]
        assert (len(one.calls), len(two.calls)) == (1, 0)


async def test_provider_that_fails_gets_three_calls_and_the_next_one_answers() -> None:
    async with servers() as (one, two), chain(settings(one, two)) as deep:
        one.always = mf.status(503)
        assert answered(await ask(deep, *map(request, TEXTS))) == [("p1", right) for right in RIGHT]
        assert (len(one.calls), len(two.calls)) == (3, 1)
        assert two.calls[0].body["model"] == "m1"


@pytest.mark.parametrize("code", [400, 401, 403, 404])
async def test_refusal_is_not_repeated_is_counted_and_the_provider_is_skipped(code: int) -> None:
    async with servers() as (one, two), chain(settings(one, two, name="refuser")) as deep:
        before = metrics.PROVIDER_REFUSALS.labels("p0", str(code))._value.get()
        one.always = mf.status(code)
        assert answered(await ask(deep, *map(request, TEXTS))) == [("p1", right) for right in RIGHT]
        assert answered(await ask(deep, request("hello"))) == [("p1", "other")]
        assert (len(one.calls), len(two.calls)) == (1, 2)
        assert metrics.PROVIDER_REFUSALS.labels("p0", str(code))._value.get() == before + 1


async def test_only_what_one_provider_spoilt_goes_to_the_next() -> None:
    async with servers() as (one, two), chain(settings(one, two)) as deep:
        one.by_text["hello"] = "greeting"
        found = answered(await ask(deep, *map(request, TEXTS)))
        assert found == [("p0", "payment"), ("p0", "logistics"), ("p0", "order"), ("p1", "other")]
        assert [call.items for call in two.calls] == [["hello"]]


async def test_event_that_all_providers_spoil_is_unanswerable_with_what_each_did() -> None:
    async with servers() as (one, two), chain(settings(one, two)) as deep:
        one.by_text["hello"] = two.by_text["hello"] = "greeting"
        (error,) = await ask(deep, request("hello"))
        assert isinstance(error, Unanswerable)
        assert (error.attempts, error.tried) == (6, ["p0: no-answer", "p1: no-answer"])


async def test_what_one_provider_refuses_and_another_spoils_may_still_be_answered_by_that_one() -> None:
    async with servers() as (one, two), chain(settings(one, two)) as deep:
        one.by_text["hello"] = "greeting"
        two.always = mf.status(400, error_code="content_filter")
        (error,) = await ask(deep, request("hello"))
        assert isinstance(error, Unanswerable)
        assert (error.cause, error.retryable) == ("no-answer", True)
        assert error.tried == ["p0: no-answer", "p1: prompt-refused"]


async def test_chain_used_up_gives_every_cause() -> None:
    async with servers() as (one, two), chain(settings(one, two)) as deep:
        one.always, two.always = mf.status(500), mf.reset()
        (error,) = await ask(deep, request("hello"))
        assert isinstance(error, RoundUsed)
        assert [line.split(":")[0] for line in error.tried] == ["p0", "p1"]
        assert "500" in error.tried[0]
        assert (len(one.calls), len(two.calls)) == (3, 3)


async def test_forbidden_provider_is_never_asked_whatever_is_down() -> None:
    async with servers() as (local, cloud):
        given = settings(local, cloud, policies=({"marks": ["private"]}, {}))
        local.always = mf.reset()
        async with chain(given) as deep:
            secret, open_ = request("my card was charged", ("private",)), request("where is my parcel")
            for _ in range(6):
                errors = await ask(deep, secret)
                assert isinstance(errors[0], RoundUsed | NotNow)
            assert cloud.calls == []
            assert answered(await ask(deep, open_)) == [("p1", "logistics")]
            assert [call.items for call in cloud.calls] == [["where is my parcel"]]


async def test_source_and_task_of_a_policy_decide_and_an_event_nobody_may_see_goes_to_a_person() -> None:
    async with servers() as (one, two):
        given = settings(one, two, policies=({"tasks": ["another"]}, {"sources": ["raw-events"]}))
        async with chain(given) as deep:
            assert answered(await ask(deep, request("hello"))) == [("p1", "other")]
            (error,) = await ask(deep, request("hello", topic="elsewhere"))
            assert isinstance(error, Unanswerable)
            assert (error.cause, error.retryable, one.calls) == ("no-provider-allowed", False, [])


async def test_open_breaker_leaves_the_provider_alone_but_for_one_probe_and_uses_no_round() -> None:
    now = [1000.0]
    breaker = {"min_calls": 4, "open_s": 15.0}
    recovered: list[float] = []
    async with servers(1) as (server,):
        given = settings(server, breaker=breaker, batch_wait_ms=0)
        async with chain(given, clock=lambda: now[0], recovered=lambda: recovered.append(now[0])) as deep:
            server.always = mf.status(500)
            await ask(deep, request("a"))
            errors = await ask(deep, request("b"))
            assert isinstance(errors[0], NotNow)
            assert errors[0].retry_after_s == pytest.approx(15, abs=1)
            calls = len(server.calls)
            assert calls == 4
            for _ in range(20):
                assert isinstance((await ask(deep, request("c")))[0], NotNow)
            assert len(server.calls) == calls
            now[0] += 15.0
            errors = await ask(deep, *(request(f"t{n}") for n in range(60)))
            assert {type(e) for e in errors} == {NotNow}
            assert len(server.calls) == calls + 1
            server.always = None
            now[0] += 15.0
            assert {a for _, a in answered(await ask(deep, *(request(f"t{n}") for n in range(60))))} == {"other"}
            assert len(recovered) == 1


async def test_batches_shrink_while_answers_go_missing_and_grow_when_they_hold() -> None:
    async with servers(1) as (server,), chain(settings(server)) as deep:
        server.script(*[mf.answer(missing=list(range(1, 11)))] * 2)
        texts = [request(f"text {n}") for n in range(20)]
        await ask(deep, *texts)
        (provider,) = deep.providers
        assert provider.batch_items("shop") < 20
        for _ in range(20):
            await ask(deep, *texts)
        assert provider.batch_items("shop") == 20


async def test_token_budget_bounds_a_call_and_a_longer_event_goes_alone() -> None:
    async with servers(1) as (server,), chain(settings(server, batch_tokens=300)) as deep:
        texts = ["x" * 2000, *("y" * 240 for _ in range(5))]
        await ask(deep, *(request(text + str(n)) for n, text in enumerate(texts)))
        assert [len(call.items) for call in server.calls] == [1, 3, 2]


async def test_key_and_header_come_from_the_environment_and_a_missing_one_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with servers() as (one, two):
        policy = {"api_key_env": "CLOUD_KEY", "headers": {"X-Team": "$TEAM"}}
        given = settings(one, two, policies=({"tasks": ["another"]}, policy))
        with pytest.raises(SettingsError, match="TEAM"):
            DeepClassifier(given)
        monkeypatch.setenv("TEAM", "blue")
        with pytest.raises(SettingsError, match="CLOUD_KEY"):
            DeepClassifier(given)
        monkeypatch.setenv("CLOUD_KEY", "k-1")
        two.api_key = "k-1"
        async with chain(given) as deep:
            assert answered(await ask(deep, request("hello"))) == [("p1", "other")]
        assert two.calls[0].headers["X-Team"] == "blue"


async def test_nothing_is_sent_after_a_retry_after_was_read_and_all_is_asked_when_it_is_over() -> None:
    async with servers(1) as (server,):
        given = settings(
            server, batch_wait_ms=0, batch_items=1, max_retries=9, concurrency=8, breaker={"min_calls": 90}
        )
        async with chain(given) as deep:
            for _ in range(4):
                server.script(*[mf.Fault()] * 5, mf.status(429, retry_after="0.4"), mf.status(503, retry_after="0.3"))
            answers = await ask(deep, *(request(f"text {n}") for n in range(80)))
            assert [by for by, _ in answered(answers)] == ["p0"] * 80
            assert server.early == 0
            assert len(server.calls) == 80 + 8


async def test_a_wait_that_a_server_asked_for_goes_on_when_settings_change() -> None:
    async with servers(1) as (server,):
        async with chain(settings(server)) as deep:
            server.script(mf.status(429, retry_after="60"))
            await ask(deep, request("a"))
            async with chain(settings(server, batch_items=3), before=deep) as changed:
                [error] = await ask(changed, request("b"))
        assert isinstance(error, NotNow)
        assert error.retry_after_s == pytest.approx(60, abs=5)
        assert len(server.calls) == 1


async def test_two_providers_at_one_server_keep_a_wait_each_when_settings_change() -> None:
    async with servers(1) as (server,):
        both = settings(server, server)
        async with chain(both) as deep:
            server.script(mf.status(429, retry_after="60"))
            assert answered(await ask(deep, request("a"))) == [("p1", RIGHT_OF_A)]
            async with chain(both, before=deep) as changed:
                assert answered(await ask(changed, request("b"))) == [("p1", RIGHT_OF_A)]
        assert [call.body["model"] for call in server.calls] == ["m0", "m1", "m1"]
