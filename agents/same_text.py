"""Equal texts: answered once. What was answered before is in State; what is being asked is waited for."""

import hashlib
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from agents.expiry import Expiry
from agents.pools import Open
from app.delivery.outbox import Outbox
from app.delivery.state import View
from app.llm.deep import Chain
from app.llm.prompts import PromptBuilder
from app.logic.requests import normalised
from app.settings import ClassifySettings
from models.events import Answer, ModelRequest
from tables.open_work import CACHE, Cached

__all__ = ["Question", "SameText"]

_pack = msgspec.msgpack.Encoder().encode


class Question(NamedTuple):
    """A text, asked of some providers."""

    digest: bytes
    """Of the text and all words of the prompt."""
    version: str
    """The prompt's name, for results."""
    chain: Chain


class SameText:
    """The cache and the calls under way, by text, task, prompt and who may be asked.

    The prompt covers categories, examples and fields. Equal texts of a task are in one partition, and so in one State.
    """

    def __init__(self, settings: ClassifySettings) -> None:
        self.settings = settings
        self.expiry = Expiry(CACHE, int(settings.cache_age_s * 1000), settings.cache_items)
        self._asking: dict[Question, tuple[Open, list[Open]]] = {}
        self._questions: dict[Open, Question] = {}

    def use(self, settings: ClassifySettings) -> None:
        """Takes other settings; what is kept is judged by them."""
        self.settings = settings
        self.expiry.horizon_ms = int(settings.cache_age_s * 1000)

    @staticmethod
    def question(request: ModelRequest, prompts: PromptBuilder, chain: Chain) -> Question:
        """What is asked, so that equal questions are equal. Fields are extracted from the very text, case and all."""
        said = request.text if prompts.task.extract else normalised(request.text)
        text = f"{request.task}\0{prompts.digest}\0{said}"
        return Question(hashlib.blake2b(text.encode(), digest_size=16).digest(), prompts.version, chain)

    def known(self, view: View, question: Question, now_ms: int) -> Answer | None:
        """An answer that still stands: young enough, and by a model that would be asked about this event too."""
        if not self.settings.cache_age_s:
            return None
        found = view.get(CACHE, question.digest)
        if found is None or found.at_ms < now_ms - self.settings.cache_age_s * 1000:
            return None
        if not any(p.name == found.provider and p.model == found.asked_model for p in question.chain):
            return None
        return Answer(
            category=found.category, fields=found.fields, confidence=1.0, provider=found.provider, model=found.model,
            prompt_version=question.version,
        )  # fmt: skip

    def remembering(
        self, digest: bytes, open_key: bytes, answer: Answer, asked_model: str
    ) -> Callable[[Outbox], None] | None:
        """What puts an answer into the cache, with the transaction of its result."""
        if not self.settings.cache_age_s:
            return None

        def remember(out: Outbox) -> None:
            row = Cached(out.now_ms, answer.category, answer.provider, asked_model, answer.model, answer.fields)
            out.put_packed(CACHE, out.now_ms, int.from_bytes(open_key, "big"), [(digest, _pack(row))])

        return remember

    def join(self, question: Question, open_: Open) -> bool:
        """True: another item of the same text is asked, and this one gets its answer. Else it is to be asked."""
        asking = self._asking.get(question)
        if asking is not None:
            asking[1].append(open_)
            return True
        self._asking[question] = (open_, [])
        self._questions[open_] = question
        return False

    def digest_of(self, open_: Open) -> bytes | None:
        """Under which the answer to an item that is asked is kept."""
        found = self._questions.get(open_)
        return None if found is None else found.digest

    def leave(self, open_: Open) -> list[Open]:
        """An item isn't asked any more; returns those that waited for it."""
        question = self._questions.pop(open_, None)
        if question is None:
            return []
        return [follower for follower in self._asking.pop(question)[1] if not follower.done]
