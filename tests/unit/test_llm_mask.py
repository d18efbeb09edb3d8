"""What must not leave doesn't, in Chinese and English, and what isn't personal stays."""

import asyncio
import random
import re

import phonenumbers
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from stdnum import iban, luhn
from stdnum.cn import ric

from app.llm.deep import DeepClassifier
from app.llm.mask import mask
from app.settings import LlmSettings, load
from models.events import Answer, ModelRequest, Origin
from tests.helpers import modelserver as ms

pytestmark = pytest.mark.timeout(60)

REGIONS = ("CN", "US", "GB", "DE", "FR")
SENTENCES = [
    "my order is late, reach me at {} please", "please refund to {}, thanks!", "我的信息是{}，请尽快处理", "请联系{}谢谢",
    "{}", "退款到{}。", "call ({}) or reply", "账号：{}没有收到快递",
]  # fmt: skip


def card(rnd: random.Random) -> str:
    body = rnd.choice(["4", "51", "37", "6222"]) + "".join(rnd.choice("0123456789") for _ in range(11))
    number = body[:15] + luhn.calc_check_digit(body[:15])
    return rnd.choice([number, " ".join(re.findall(".{1,4}", number)), "-".join(re.findall(".{1,4}", number))])


def cn_id(rnd: random.Random) -> str:
    body = (
        f"11010119{rnd.randrange(50, 99)}{rnd.randrange(1, 13):02d}{rnd.randrange(1, 28):02d}{rnd.randrange(1000):03d}"
    )
    number = body + str(ric.calc_check_digit(body + "0"))
    assert ric.is_valid(number)
    return number


def account(rnd: random.Random) -> str:
    body = "DE00" + "".join(rnd.choice("0123456789") for _ in range(18))
    number = f"DE{iban.calc_check_digits(body)}{body[4:]}"
    return rnd.choice([number, iban.format(number)])


def phone(rnd: random.Random) -> str:
    region = rnd.choice(REGIONS)
    made = phonenumbers.example_number_for_type(region, phonenumbers.PhoneNumberType.MOBILE)
    forms = [phonenumbers.PhoneNumberFormat.INTERNATIONAL, phonenumbers.PhoneNumberFormat.E164]
    if region == "CN":
        return f"13{rnd.randrange(10)}{rnd.randrange(10**8):08d}"
    return str(phonenumbers.format_number(made, rnd.choice(forms)))


def email(rnd: random.Random) -> str:
    return f"{rnd.choice(['li.wei', 'a+b', 'x_1'])}{rnd.randrange(1000)}@{rnd.choice(['qq.com', 'mail.example.co.uk'])}"


def secret(rnd: random.Random) -> str:
    text = "".join(rnd.choice("abcdefghijkmnpqrstuvwxyz23456789") for _ in range(24))
    return rnd.choice([f"sk-{text}", f"ghp_{text}", f"AKIA{text[:16].upper()}", f"password: {text}", f"密码是{text}"])


MAKERS = {"CARD": card, "ID": cn_id, "IBAN": account, "PHONE": phone, "EMAIL": email, "SECRET": secret}


def shown(value: str) -> str:
    """What of a value would give it away: for `password: x` the x."""
    return re.split(r"[:是] ?", value)[-1] if value.startswith(("password", "密码")) else value


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("sentence", SENTENCES)
def test_value_is_masked_and_comes_back(kind: str, sentence: str) -> None:
    rnd = random.Random(f"{kind}{sentence}")
    for _ in range(40):
        value = MAKERS[kind](rnd)
        text = sentence.format(value)
        masked = mask(text, REGIONS)
        assert shown(value) not in masked.text, text
        assert re.search(rf"\[(?:{kind}|CARD|ID|PHONE|SECRET)_1\]", masked.text), masked.text
        assert masked.restore(masked.text) == text


@pytest.mark.parametrize(
    "text",
    [
        "where is my parcel", "订单数量不对", "I ordered 3 items for 29.99 on 2026-11-30", "order 48213 is late",
        "please call me", "版本 1.2.3 闪退", "the app crashes at 12:30", "mailto me @ home", "the password doesn't work",
    ],
)  # fmt: skip
def test_ordinary_text_stays(text: str) -> None:
    assert mask(text, REGIONS).text == text


def test_full_width_digits_of_chinese_input_are_read() -> None:
    assert mask("电话１３８００１３８０００", REGIONS).text == "电话[PHONE_1]"


def test_same_value_gets_the_same_placeholder_and_one_that_stands_in_the_text_is_left_out() -> None:
    masked = mask("a@x.com b@x.com a@x.com [EMAIL_1]", REGIONS)
    assert masked.text == "[EMAIL_2] [EMAIL_3] [EMAIL_2] [EMAIL_1]"
    assert masked.restore(masked.text) == "a@x.com b@x.com a@x.com [EMAIL_1]"


@hypothesis_settings(max_examples=150, deadline=None)
@given(st.text(alphabet=st.sampled_from("0123456789 -.@aZ[]_电话EMAIL+:"), max_size=60))
def test_masking_is_reversible_for_any_text(text: str) -> None:
    masked = mask(text, REGIONS)
    assert masked.restore(masked.text) == text


async def test_nothing_seeded_reaches_the_server_and_every_event_is_answered() -> None:
    rnd = random.Random(7)
    seeded, texts = [], []
    for n in range(300):
        value = MAKERS[rnd.choice(sorted(MAKERS))](rnd)
        seeded.append(shown(value))
        texts.append(f"{n} {rnd.choice(SENTENCES).format(value)}{' x' * rnd.choice([0, 900])}")
    async with ms.ModelServer() as server:
        given_ = load().model_copy(
            update={"llm": LlmSettings(base_url=server.base_url, mask="on", max_item_tokens=100)}
        )
        deep = DeepClassifier(given_)
        answers = await asyncio.gather(
            *(
                deep.classify(
                    ModelRequest(
                        event_id=str(n), event_type="m", event_time_ms=0, entity="u", task="shop", text=text,
                        source=Origin("raw-events", 0, n), received_ms=0,
                    )
                )
                for n, text in enumerate(texts)
            )
        )  # fmt: skip
        await deep.close()
        seen = "\n".join(str(call.body) for call in server.calls)
        assert [value for value in seeded if value in seen] == []
        assert "[CARD_1]" in seen
        assert all(isinstance(answer, Answer) for answer in answers)


async def test_auto_masks_for_others_and_not_for_this_machine() -> None:
    from app.llm.provider import Provider

    llm = LlmSettings()
    assert not Provider(llm, llm).masks
    there = LlmSettings(base_url="https://models.example.com/v1", price_prompt_usd=0.0, price_completion_usd=0.0)
    assert Provider(there, there).masks
    off = LlmSettings(
        base_url="https://models.example.com/v1", mask="off", price_prompt_usd=0.0, price_completion_usd=0
    )
    assert not Provider(off, off).masks
