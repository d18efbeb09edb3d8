"""What was sent for each event of a call and what came back, to be kept where that is asked for.

Of a call for several events each gets its own part alone: what was said of the others isn't its matter.
"""

from collections.abc import Iterator

from app.llm.answer import Completion
from app.llm.parse import parts_of
from app.llm.prompts import Prompt
from models.events import Exchange

__all__ = ["REFUSED", "exchanges"]

REFUSED = "refused"


def exchanges(
    prompt: Prompt, completion: Completion | None, *, provider: str, model: str, most_bytes: int
) -> Iterator[Exchange]:
    """Those of a call's events, in the order of their numbers; `attempt` is 0 in them.

    Args:
        prompt: as it was sent.
        completion: what came back; None: the server refused the prompt.
        provider: its name.
        model: as the settings name it.
        most_bytes: what is kept of a text, UTF-8.
    """
    system, request = (message["content"] for message in prompt.messages)
    alone = prompt.items == 1
    text = completion.text if completion else ""
    parts = {1: text} if alone or completion is None else parts_of(text, completion.finish_reason)
    for number, message in enumerate(request.split("\n")[: prompt.items], 1):
        kept = [_kept(each, most_bytes) for each in (system, message, parts.get(number, ""))]
        (its_system, _), (its_message, _), (its_answer, _) = kept
        yield Exchange(
            provider=provider,
            model=(completion.model if completion else "") or model,
            system=its_system,
            message=its_message,
            answer=its_answer,
            finish_reason=completion.finish_reason if completion else REFUSED,
            number=number,
            items=prompt.items,
            attempt=0,
            cut=any(cut for _, cut in kept),
        )


def _kept(text: str, most_bytes: int) -> tuple[str, bool]:
    """The beginning of a text, and whether something is left out. Half an emoji in an answer becomes `?`: it can't be stored."""
    raw = text.encode("utf-8", "replace")
    return raw[:most_bytes].decode("utf-8", "ignore"), len(raw) > most_bytes
