"""Asks one provider one real question, to see whether it works and what it can do."""

import time
from dataclasses import dataclass

from app.errors import ModelError, SettingsError
from app.llm.client import ChatClient
from app.llm.parse import parse_answers
from app.llm.prices import price_of
from app.llm.prompts import PromptBuilder
from app.settings import ProviderSettings, Settings

__all__ = ["Trial", "try_provider"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What came of it."""

    name: str
    works: bool
    says: str
    """For a person."""


async def try_provider(settings: Settings, provider: ProviderSettings) -> Trial:
    """One completion of the first task that the provider may be asked, with its first example as the event."""
    tasks = [task for task in settings.tasks if not provider.tasks or task.name in provider.tasks]
    if not tasks:
        return Trial(name=provider.name, works=False, says="there is no task that it may be asked")
    task = tasks[0]
    examples = [example for category in task.categories for example in category.examples[:1]]
    texts = examples[:2] or [task.categories[0].description]
    prompt = PromptBuilder(task, settings.llm).build(texts, masked=False)
    begun = time.monotonic()
    try:
        async with ChatClient(provider, max_retry_after_s=settings.llm.max_retry_after_s) as client:
            completion = await client.complete(prompt.messages, schema=prompt.schema, max_tokens=prompt.max_tokens)
            structured = client.schema_works
    except (ModelError, SettingsError) as error:
        return Trial(name=provider.name, works=False, says=str(error))
    seconds = time.monotonic() - begun
    answers = parse_answers(
        completion.text, len(texts), [category.id for category in task.categories], completion.finish_reason
    )
    cost = price_of(provider).cost(completion.prompt_tokens, completion.completion_tokens)
    facts = [
        f"model {completion.model or provider.model}", f"{seconds:.1f} s",
        "structured output" if structured else "no structured output (answers are parsed)",
        f"{completion.prompt_tokens} + {completion.completion_tokens} tokens" if completion.prompt_tokens
        else "it reports no tokens: costs and budgets can't be kept",
        f"{cost:.6f} US dollars" if cost else "free",
    ]  # fmt: skip
    if len(answers) < len(texts):
        facts.insert(0, f"it answered {len(answers)} of {len(texts)} examples in the form asked for")
    return Trial(name=provider.name, works=bool(answers), says="; ".join(facts))
