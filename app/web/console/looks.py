"""Questions to the workers that several pages ask: who asks soon after another gets the same answer."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from app.web.workers import Heard

__all__ = ["Looks"]


@dataclass(frozen=True, slots=True)
class _Look:
    """The workers were asked."""

    begun: float
    """time.monotonic"""
    size: int
    answers: asyncio.Future[Heard]


class Looks:
    """The latest look of each subject.

    Args:
        keep_s: no look serves others for longer.
    """

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._looks: dict[str, _Look] = {}

    async def look(
        self, subject: str, ask: Callable[[], Coroutine[Any, Any, Heard]], *, size: int = 0, fresh: bool = False
    ) -> Heard:
        """What a look that isn't over and not smaller found, or what a new one finds. Others may share a fresh one.

        Raises:
            Problem: as `ask`.
        """
        now = time.monotonic()
        self._looks = {each: look for each, look in self._looks.items() if now - look.begun < self._keep_s}
        look = self._looks.get(subject)
        if look is None or fresh or look.size < size:
            look = self._looks[subject] = _Look(now, size, asyncio.ensure_future(ask()))
            look.answers.add_done_callback(_seen)
        return await asyncio.shield(look.answers)  # a page that goes leaves it to the others


def _seen(answers: asyncio.Future[Heard]) -> None:
    """Pages that asked may all be gone when it fails."""
    if not answers.cancelled():
        answers.exception()
