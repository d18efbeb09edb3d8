"""One provider and some events: calls until each has a valid answer or the provider has had its tries.

Answers are matched by number and must be one of the task's categories. What is missing, doubled, unknown or cut is
never guessed: those events are asked again without the others, then alone. A text that the server refuses is found by
halves, so that it doesn't hold up the rest.
"""

import asyncio
import logging
from collections.abc import Sequence

import msgspec

from app.errors import ModelRefused, ModelUnavailable
from app.llm.answer import Completion, PromptRefused
from app.llm.exchange import exchanges
from app.llm.parse import Fields, parse_answers, parse_with_fields
from app.llm.prompts import Prompt, PromptBuilder
from app.llm.provider import LeftAlone, NoMoney, Provider
from app.settings import TaskSettings
from app.settings_extract import why_wrong
from models.events import Answer, Exchange

__all__ = ["Item", "ask_provider"]

log = logging.getLogger(__name__)

MOST_TOGETHER = 3
"""Answers an event may spoil at one provider in company; from then on it is asked alone."""

MOST_ALONE = 3
"""And alone. One in 15 lone answers of a bad day is spoilt by chance: two tries would cost 1 event in 3,000 another round."""

CAUSES = {"length": "cut", "content_filter": "content-filter"}


class Item:
    """An event and the caller that waits for it."""

    __slots__ = (
        "alone", "attempts", "completion_tokens", "cost_usd", "due", "exchange", "future", "here", "keep_bytes", "outcomes",
        "prompt_tokens", "text",
    )  # fmt: skip

    def __init__(self, text: str, due: float, future: asyncio.Future[Answer], keep_bytes: int = 0) -> None:
        self.text, self.due, self.future, self.keep_bytes = text, due, future, keep_bytes
        """`keep_bytes`: what is kept of a text that is sent or said; 0: nothing."""
        self.exchange: Exchange | None = None
        """Of the last call for it, where it is kept."""
        self.attempts = self.here = self.alone = self.prompt_tokens = self.completion_tokens = 0
        """`here`: answers spoilt at the provider that is being asked; `alone`: those without company."""
        self.cost_usd = 0.0
        self.outcomes: dict[str, tuple[str, str]] = {}
        """Provider -> kind (bad, failed, skipped, budget) and what came of it."""

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


async def ask_provider(provider: Provider, prompts: PromptBuilder, items: Sequence[Item]) -> None:
    """Settles what the provider answers; the others are left with its outcome noted in them."""
    for item in items:
        item.here = item.alone = 0
    size = provider.batch_items(prompts.task.name)
    await _all(provider, prompts, [items[at : at + size] for at in range(0, len(items), size)])


async def _all(provider: Provider, prompts: PromptBuilder, groups: Sequence[Sequence[Item]]) -> None:
    async with asyncio.TaskGroup() as calls:
        for group in groups:
            calls.create_task(_group(provider, prompts, group))


async def _group(provider: Provider, prompts: PromptBuilder, items: Sequence[Item]) -> None:
    open_ = [item for item in items if not item.future.done()]
    if not open_:
        return
    try:
        left, cause = await _ask(provider, prompts, open_)
    except PromptRefused as error:
        await _halves(provider, prompts, open_, error)
        return
    except (ModelUnavailable, ModelRefused) as error:
        kind = "skipped" if isinstance(error, LeftAlone | ModelRefused) else "failed"
        kind = "budget" if isinstance(error, NoMoney) else kind
        for item in open_:
            item.outcomes[provider.name] = (kind, str(error))
        return
    again = []
    for item in left:
        item.outcomes[provider.name] = ("bad", cause)
        item.alone += len(open_) == 1
        if item.alone < MOST_ALONE:
            again.append(item)
    await _all(provider, prompts, _regroup(again, len(open_)))


def _regroup(left: list[Item], asked: int) -> list[list[Item]]:
    """The spoilt ones without the others; where all were, in halves, for one bad text may have spoilt the answer."""
    if asked == 1 or len(left) < 2 or left[0].here >= MOST_TOGETHER:
        return [[item] for item in left]
    half = len(left) // 2
    return [left] if len(left) < asked else [left[:half], left[half:]]


async def _halves(provider: Provider, prompts: PromptBuilder, items: Sequence[Item], error: PromptRefused) -> None:
    if len(items) == 1:
        items[0].attempts += 1
        items[0].outcomes[provider.name] = ("bad", "prompt-refused")
        return
    log.info("provider %s: %s; asking about %d events in halves", provider.name, error, len(items))
    half = len(items) // 2
    await _all(provider, prompts, [items[:half], items[half:]])


async def _ask(provider: Provider, prompts: PromptBuilder, items: Sequence[Item]) -> tuple[list[Item], str]:
    """One prompt; settles the valid answers, returns the other items and why they have none."""
    task = prompts.task
    prompt = prompts.build([item.text for item in items], masked=provider.masks)
    try:
        completion = await provider.complete(prompt, task.name)
    except PromptRefused:
        _keep(provider, prompt, items, None)
        raise
    answers = _answers(task, prompt, completion)
    _keep(provider, prompt, items, completion)
    _share(items, completion, provider.price.cost(completion.prompt_tokens, completion.completion_tokens))
    left = []
    for number, item in enumerate(items, 1):
        item.attempts += 1
        item.here += 1
        if number not in answers:
            left.append(item)
        elif not item.future.done():
            category, fields = answers[number]
            item.future.set_result(_answer(item, category, fields, provider, completion, prompt.version))
    provider.learn(task.name, len(items), len(left))
    return left, CAUSES.get(completion.finish_reason, "no-answer")


def _answers(task: TaskSettings, prompt: Prompt, completion: Completion) -> dict[int, tuple[str, Fields | None]]:
    """Category and fields by number, of the items whose answer is certain."""
    ids = [category.id for category in task.categories]
    if not task.extract:
        said = parse_answers(completion.text, prompt.items, ids, completion.finish_reason)
        return {number: (label, None) for number, label in said.items()}

    def fits(number: int, fields: Fields) -> Fields | None:
        restored = prompt.texts[number - 1].restore_all(fields)
        return None if why_wrong(task.extract, restored) else restored

    return {**parse_with_fields(completion.text, prompt.items, ids, fits, completion.finish_reason)}


def _keep(provider: Provider, prompt: Prompt, items: Sequence[Item], completion: Completion | None) -> None:
    """Notes in each what was sent and said, if that is asked for."""
    most_bytes = items[0].keep_bytes
    if most_bytes:
        its = exchanges(prompt, completion, provider=provider.name, model=provider.model, most_bytes=most_bytes)
        for item, exchange in zip(items, its, strict=True):
            item.exchange = msgspec.structs.replace(exchange, attempt=item.attempts + 1)


def _share(items: Sequence[Item], completion: Completion, cost_usd: float) -> None:
    """Whole tokens, so that the items' sums are the server's own figure; earlier, spoilt calls add up."""
    prompt, prompt_over = divmod(completion.prompt_tokens, len(items))
    answer, answer_over = divmod(completion.completion_tokens, len(items))
    for number, item in enumerate(items):
        item.prompt_tokens += prompt + (number < prompt_over)
        item.completion_tokens += answer + (number < answer_over)
        item.cost_usd += cost_usd / len(items)


def _answer(
    item: Item, category: str, fields: Fields | None, provider: Provider, completion: Completion, version: str
) -> Answer:
    return Answer(
        category=category,
        fields=fields,
        confidence=1.0,
        provider=provider.name,
        model=completion.model or provider.model,
        prompt_version=version,
        prompt_tokens=item.prompt_tokens,
        completion_tokens=item.completion_tokens,
        cost_usd=item.cost_usd,
        latency_ms=completion.latency_ms,
        exchange=item.exchange,
    )
