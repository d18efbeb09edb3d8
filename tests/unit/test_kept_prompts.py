"""Prompts and raw answers: each event gets its own part, as it was sent, with the answer's transaction, and only if asked."""

import json
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from aiokafka.structs import TopicPartition
from click.testing import CliRunner

from agents.classify import Classify
from agents.open_items import OpenItems, now_ms
from agents.pools import Open
from agents.prompts import Prompts, told
from agents.tiers import Tiers
from app.commands import trace as command
from app.delivery.kinds import misfit, noted
from app.delivery.maps import Map
from app.delivery.outbox import Outbox
from app.llm.answer import Completion
from app.llm.deep import DeepClassifier, Unanswerable
from app.llm.exchange import REFUSED, exchanges
from app.llm.ledger import Ledger
from app.llm.prompts import PromptBuilder
from app.settings import ClassifySettings, LlmSettings, Settings, load
from models.events import Answer, Exchange, ModelRequest, Origin
from tables.open_work import ANSWERED, CACHE, CALLS, OPEN, PROMPTS, OpenItem, Prompted, open_key
from tests.formats.read import HERE, kept_kinds
from tests.helpers import model_faults as mf
from tests.helpers import modelserver as ms
from tests.helpers.held import Held

TEXTS = ["write to ada@example.org about my refund", "where is my parcel 😀", "line one\nline two"]
NOW_MS = 1_790_000_000_000
DAY = load().classify.model_copy(update={"keep_prompts_s": 86_400.0})


def prompt_of(*texts: str, masked: bool = True) -> Any:
    return PromptBuilder(load().tasks[0], LlmSettings()).build(texts, masked=masked)


def exchanges_of(prompt: Any, text: str | None, finish: str = "stop", most_bytes: int = 16_384) -> list[Exchange]:
    completion = None if text is None else Completion(text=text, finish_reason=finish)
    return list(exchanges(prompt, completion, provider="main", model="small", most_bytes=most_bytes))


# -- what is kept --------------------------------------------------------------------------------------------------


def test_each_event_of_a_call_has_its_own_part_as_it_was_sent_and_nothing_of_the_others() -> None:
    prompt = prompt_of(*TEXTS)
    said = '<think>1 is of ada</think>Here: {"1": "Payment.", "2": "logistics", "3": "other"} done'
    first, second, third = exchanges_of(prompt, said)
    sent = prompt.messages[1]["content"]
    assert [each.message for each in (first, second, third)] == sent.split("\n")[:3]
    assert "ada@example.org" not in str(first)
    assert "[EMAIL_1]" in first.message
    assert [each.answer for each in (first, second, third)] == ["Payment.", "logistics", "other"]
    assert [(each.number, each.items) for each in (first, second, third)] == [(1, 3), (2, 3), (3, 3)]
    for each, others in ((first, TEXTS[1:]), (second, [TEXTS[0], TEXTS[2]]), (third, TEXTS[:2])):
        assert not any(json.dumps(other, ensure_ascii=False) in str(each) for other in others)
    assert first.system == prompt.messages[0]["content"]
    assert (first.model, first.cut) == ("small", False)


def test_of_an_event_that_was_asked_about_alone_all_that_was_said_is_kept() -> None:
    said = '<think>a draft: order</think>```json\n{"1": "[EMAIL_1]"}\n```'
    (only,) = exchanges_of(prompt_of(TEXTS[0]), said)
    assert (only.answer, only.items, only.finish_reason) == (said, 1, "stop")


@pytest.mark.parametrize(
    ("said", "parts"),
    [
        ("1: payment\n2: order", ["payment", "order", ""]),
        ('{"1": "a", "1": "b", "3": {"category": "x", "category": "y", "n": [1, null]}}',
         ["a\nb", "", '{"category": "x", "category": "y", "n": [1, null]}']),
        ('["2:order"]', ["", "order", ""]),
        ("I can't help with that", ["", "", ""]),
    ],
)  # fmt: skip
def test_what_was_said_under_a_number_is_told_as_it_was_said(said: str, parts: list[str]) -> None:
    assert [each.answer for each in exchanges_of(prompt_of(*TEXTS), said)] == parts


def test_long_texts_are_cut_between_characters_and_it_is_said() -> None:
    (only,) = exchanges_of(prompt_of("x"), "\u9000" * 200, most_bytes=256)
    assert (only.answer, only.cut) == ("\u9000" * 85, True)
    assert len(only.system.encode()) <= 256
    (only,) = exchanges_of(prompt_of("x"), "half \ud83d")
    assert (only.answer, only.cut) == ("half ?", False)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(only), type=Exchange) == only


def test_a_prompt_that_was_refused_is_kept_without_an_answer() -> None:
    (only,) = exchanges_of(prompt_of("x"), None)
    assert (only.answer, only.finish_reason) == ("", REFUSED)


# -- which call it is of -------------------------------------------------------------------------------------------


def request(event_id: str, text: str) -> ModelRequest:
    return ModelRequest(
        event_id=event_id, event_type="message", event_time_ms=0, entity="u", task="shop", text=text,
        source=Origin("raw-events", 0, 0), received_ms=0,
    )  # fmt: skip


def settings(base_url: str, classify: ClassifySettings) -> Settings:
    llm = LlmSettings(base_url=base_url, retry_backoff_s=0.01, batch_wait_ms=30, mask="on")
    return load().model_copy(update={"llm": llm, "classify": classify})


@pytest.mark.timeout(30)
async def test_the_last_attempt_is_kept_also_of_an_event_that_nobody_could_answer() -> None:
    async with ms.ModelServer() as server:
        server.script(mf.answer(missing=[2]))
        server.by_text["hello"] = "no such category"
        classifier = DeepClassifier(settings(server.base_url, DAY))
        try:
            asked = [classifier.classify(request(f"e{n}", text)) for n, text in enumerate(["my refund", "hello"])]
            answer, odd = await ms.asyncio.gather(*asked, return_exceptions=True)
        finally:
            await classifier.close()
    assert isinstance(answer, Answer)
    assert isinstance(odd, Unanswerable)
    assert answer.exchange is not None
    assert odd.exchange is not None
    assert (answer.exchange.items, answer.exchange.attempt, answer.exchange.answer) == (2, 1, "payment")
    assert (odd.exchange.items, odd.exchange.attempt) == (1, odd.attempts)
    assert "no such category" in odd.exchange.answer
    assert odd.exchange.message == '1: "hello"'


@pytest.mark.timeout(30)
async def test_a_prompt_that_the_server_refuses_is_kept_for_whom_it_is_sent_to() -> None:
    async with ms.ModelServer() as server:
        server.always = mf.status(400, error_code="content_filter")
        classifier = DeepClassifier(settings(server.base_url, DAY))
        try:
            with pytest.raises(Unanswerable, match="prompt-refused") as raised:
                await classifier.classify(request("e", "call 4111 1111 1111 1111"))
        finally:
            await classifier.close()
    exchange = raised.value.exchange
    assert exchange is not None
    assert (exchange.message, exchange.finish_reason, exchange.attempt) == ('1: "call [CARD_1]"', REFUSED, 1)


@pytest.mark.timeout(30)
async def test_nothing_is_kept_unless_it_is_asked_for() -> None:
    async with ms.ModelServer() as server:
        classifier = DeepClassifier(settings(server.base_url, load().classify))
        try:
            answer = await classifier.classify(request("e", "my refund"))
        finally:
            await classifier.close()
    assert answer.exchange is None


# -- in State ------------------------------------------------------------------------------------------------------

EXCHANGE = exchanges_of(prompt_of("my refund"), '{"1": "payment"}')[0]


class Lane:
    """A lane on a partition's State; what is posted is applied at once, as one transaction each."""

    ready = True

    def __init__(self) -> None:
        self.tp, self.view = TopicPartition("model-requests", 0), Held()
        self.delivery = SimpleNamespace(lanes={self.tp: self})
        self.written: list[Outbox] = []

    def post(self, work: Any) -> None:
        out = Outbox(now_ms())
        work(self.view, out)
        self.view.apply(out)
        self.written.append(out)


class Stage:
    """Tiers over open items of one partition."""

    def __init__(self, classify: ClassifySettings = DAY) -> None:
        tree = load().model_copy(update={"classify": classify})
        self.lane: Any = Lane()
        self.opened: list[Open] = []
        self.items = OpenItems(tree, self.opened.append, lambda _: None)
        self.tiers = Tiers(tree, self.items, Ledger(tree))

    def open(self, *events: tuple[str, str]) -> list[Open]:
        begin = len(self.opened)
        for event_id, text in events:
            key = open_key(len(self.opened) + len(self.lane.view.rows) + 1)
            item = OpenItem(request=request(event_id, text), opened_ms=1, light_done=True)
            self.lane.view.rows[OPEN.row(key)] = OPEN.encode(item)
            self.items.ready(self.lane)
        return self.opened[begin:]

    def answer(self, open_: Open, exchange: Exchange | None = EXCHANGE) -> None:
        answer = Answer(category="payment", confidence=1.0, provider="main", model="m", exchange=exchange)
        self.tiers._answered(open_, answer, self.tiers.client)

    def told(self, event_id: str) -> Any:
        return told(self.lane.view, event_id.encode()).get("prompt")


@pytest.fixture
def stage() -> Stage:
    return Stage()


async def test_prompt_result_and_the_item_s_removal_are_one_transaction(stage: Stage) -> None:
    (open_,) = stage.open(("e1", "my refund"))
    stage.answer(open_)
    (out,) = stage.lane.written
    assert [key for key in out.changelog if key[:1] == PROMPTS.records] != []
    assert out.changelog[OPEN.row(open_.key)] is None
    assert [msgspec.json.decode(value)["event_id"] for rows in out.sends.values() for _, value, _ in rows] == ["e1"]
    assert stage.told("e1") == {"call_of": "", "exchange": msgspec.structs.asdict(EXCHANGE)}
    await stage.tiers.stop()


async def test_an_event_that_shared_the_call_or_came_from_the_cache_says_whose_call_it_was(stage: Stage) -> None:
    first, second = stage.open(("e1", "my refund"), ("e2", "My  refund"))
    stage.tiers._deep.clear()
    for each in (first, second):
        stage.tiers._to_deep(each)
    stage.answer(first)
    (third,) = stage.open(("e3", "my refund"))
    stage.tiers._to_deep(third)
    assert stage.told("e2") == stage.told("e3") == {"call_of": "e1", "exchange": msgspec.structs.asdict(EXCHANGE)}
    assert stage.lane.view.get(PROMPTS, b"e2").exchange is None, "the text isn't stored twice"
    for row in [row for row in stage.lane.view.rows if row[:1] in (CALLS.prefix, CALLS.records)]:
        del stage.lane.view.rows[row]  # prompts were asked for after the answer was cached
    (fourth,) = stage.open(("e4", "my refund"))
    stage.tiers._to_deep(fourth)
    assert stage.told("e4") == {"call_of": "", "exchange": None}
    await stage.tiers.stop()


async def test_off_writes_nothing_of_it(stage: Stage) -> None:
    off = Stage(load().classify)
    first, second = off.open(("e1", "my refund"), ("e2", "my refund"))
    off.tiers._deep.clear()
    for each in (first, second):
        off.tiers._to_deep(each)
    off.answer(first, exchange=None)
    (third,) = off.open(("e3", "my refund"))
    off.tiers._to_deep(third)
    assert len(off.lane.view.keys_of(ANSWERED)) == 3
    prefixes = {row[:1] for row in off.lane.view.rows}
    assert prefixes & {PROMPTS.prefix, PROMPTS.records, CALLS.prefix, CALLS.records} == set()
    assert off.told("e1") is None
    await off.tiers.stop()


async def test_what_went_to_review_shows_what_was_said_of_it(stage: Stage) -> None:
    (open_,) = stage.open(("e1", "hello"))

    async def refuse(request: ModelRequest) -> Answer:
        raise Unanswerable("no-answer", 3, ["main: no-answer"], EXCHANGE)

    stage.tiers.client.classify = refuse  # type: ignore[method-assign]
    await stage.tiers._ask_deep(open_)
    assert stage.told("e1") is None, "it is asked once more"
    await stage.tiers._ask_deep(open_)
    assert stage.told("e1")["exchange"]["answer"] == '{"1": "payment"}'
    await stage.tiers.stop()


def test_what_is_kept_goes_with_its_time_its_number_and_when_it_is_turned_off() -> None:
    lane: Any = Lane()

    def keep(prompts: Prompts, count: int, at_ms: int) -> None:
        for n in range(count):
            its: Any = SimpleNamespace(
                item=SimpleNamespace(request=request(f"{at_ms}-{n}", "x")), key=open_key(at_ms + n)
            )
            out = Outbox(at_ms)
            for write in prompts.own(its, EXCHANGE, b"%d-%d" % (at_ms, n)):
                write(out)
            lane.view.apply(out)

    def count() -> tuple[int, int]:
        return len(lane.view.keys_of(PROMPTS)), len(lane.view.keys_of(CALLS))

    hour = DAY.model_copy(update={"keep_prompts_s": 3600.0, "keep_prompts_items": 5})
    prompts = Prompts(hour)
    keep(prompts, 3, NOW_MS - 7_200_000)
    keep(prompts, 4, NOW_MS - 600_000)

    def later(ms: int) -> None:
        lane.post = lambda work: lane.view.apply(_worked(work, lane, NOW_MS + ms))
        prompts.tick(lane, NOW_MS + ms)

    later(0)
    assert count() == (4, 4)
    keep(prompts, 4, NOW_MS)
    later(20_000)
    assert count() == (5, 5)
    prompts.use(hour.model_copy(update={"keep_prompts_s": 0.0}))
    later(200_000)
    assert count() == (0, 0)
    assert prompts.own(SimpleNamespace(), EXCHANGE) == []  # type: ignore[arg-type]


def test_the_stage_removes_what_is_kept_once_it_is_turned_off() -> None:
    lane: Any = Lane()
    its: Any = SimpleNamespace(item=SimpleNamespace(request=request("e", "x")), key=open_key(1))
    out = Outbox(NOW_MS)
    for write in Prompts(DAY).own(its, EXCHANGE, b"digest"):
        write(out)
    lane.view.apply(out)
    tree = load()
    app: Any = SimpleNamespace(ledger=Ledger(tree))
    Classify(tree, app).tick(lane, NOW_MS + 100_000)
    assert lane.view.rows == {}


def _worked(work: Any, lane: Any, now_ms: int) -> Outbox:
    out = Outbox(now_ms)
    work(lane.view, out)
    return out


def test_state_of_versions_before_and_after_is_read_by_both() -> None:
    before: list[Map[Any]] = [OPEN, ANSWERED, CACHE]
    now = [*before, PROMPTS, CALLS]
    oldest = min(HERE.glob("[0-9]*"), key=lambda folder: int(folder.name))
    assert misfit(kept_kinds(oldest, "classify"), now) == ""
    assert misfit(noted(now), before) == ""
    prefixes = [prefix for of in now for prefix in (of.prefix, getattr(of, "records", of.prefix + b"-"))]
    assert len(set(prefixes)) == len(prefixes)
    row = Prompted(1, EXCHANGE)
    assert PROMPTS.decode(PROMPTS.encode(row)) == row


# -- shown ---------------------------------------------------------------------------------------------------------


def shown(prompt: dict[str, Any]) -> list[str]:
    step = {
        "stage": "classify", "map": "answered", "at_ms": NOW_MS, "tier": "deep", "category": "payment", "why": "w",
        "prompt": prompt,
    }  # fmt: skip
    runner = CliRunner()
    with runner.isolation() as (out, *_):
        command._show_step(step, None, as_json=False)
    return out.getvalue().decode().splitlines()


def test_trace_shows_prompt_and_answer_and_nothing_steers_the_terminal() -> None:
    exchange = msgspec.structs.replace(EXCHANGE, answer="pay\x1b[2Jment\nsecond", number=3, items=20)
    said = "\n".join(shown({"call_of": "e1", "exchange": msgspec.structs.asdict(exchange)}))
    assert "that of event e1" in said
    assert "number 3 of 20 events, attempt 0" in said
    assert '    message  | 1: "my refund"' in said
    assert "    answer   | pay\\x1b[2Jment\n             | second" in said
    assert shown({"call_of": "", "exchange": None})[1:] == [
        "    prompt   from the cache; which call it came from isn't known"
    ]
