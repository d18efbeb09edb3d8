"""What State says of events that pages look at. Pages that look on share their questions, and all make so many a second."""

import asyncio
import time
from dataclasses import dataclass

from app.web.announce import path_part
from app.web.workers import Heard, Workers, heard

__all__ = ["Traces"]

LOOKS_PER_S = 2.0
"""Of all pages together that look again by themselves: each has every worker look up some keys and walk its open items."""
SHARED_S = 0.9
"""Pages on one event look every second at most; what one was told is as good for the others."""


@dataclass(frozen=True, slots=True)
class _Look:
    """The workers were asked for an event."""

    begun: float
    """time.monotonic"""
    answers: asyncio.Future[Heard]


class Traces:
    """Asks all workers for events. One a console process.

    Args:
        workers: who is alive.
    """

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._looks: dict[str, _Look] = {}
        """The latest of each event."""
        self._next = 0.0
        """When another page may look again; time.monotonic."""

    async def look(self, event_id: str) -> Heard:
        """What all workers know of an event now, or a moment ago.

        Raises:
            Problem: 503, no worker is alive.
        """
        now = time.monotonic()
        self._looks = {each: look for each, look in self._looks.items() if now - look.begun < SHARED_S}
        look = self._looks.get(event_id)
        if look is None:
            look = self._looks[event_id] = _Look(now, asyncio.ensure_future(self._heard(event_id)))
            look.answers.add_done_callback(_seen)
        return await asyncio.shield(look.answers)  # a page that goes leaves it to the others

    async def look_again(self, event_id: str) -> Heard:
        """The same for a page that nobody has asked to look: it waits for its turn.

        Raises:
            Problem: as `look`.
        """
        now = time.monotonic()
        at, self._next = self._next, max(now, self._next) + 1 / LOOKS_PER_S
        await asyncio.sleep(max(0.0, at - now))
        return await self.look(event_id)

    async def _heard(self, event_id: str) -> Heard:
        return heard(await self._workers.ask_all(f"/trace/{path_part(event_id)}"))


def _seen(answers: asyncio.Future[Heard]) -> None:
    """Pages that asked may all be gone when it fails."""
    if not answers.cancelled():
        answers.exception()
