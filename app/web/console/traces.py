"""What State says of events that pages look at. Pages that look on share their questions, and all make so many a second."""

import asyncio
import time

from app.web.announce import path_part
from app.web.console.looks import Looks
from app.web.workers import Heard, Workers, heard

__all__ = ["Traces"]

LOOKS_PER_S = 2.0
"""Of all pages together that look again by themselves: each has every worker look up some keys and walk its open items."""
SHARED_S = 0.9
"""Pages on one event look every second at most; what one was told is as good for the others."""


class Traces:
    """Asks all workers for events. One a console process.

    Args:
        workers: who is alive.
    """

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._looks = Looks(SHARED_S)
        self._next = 0.0
        """When another page may look again; time.monotonic."""

    async def look(self, event_id: str) -> Heard:
        """What all workers know of an event now, or a moment ago.

        Raises:
            Problem: 503, no worker is alive.
        """
        return await self._looks.look(event_id, lambda: self._heard(event_id))

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
