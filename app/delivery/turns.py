"""Lets what runs long in the event loop run one at a time, so that sockets, timers and the web port get their turn between."""

import asyncio

__all__ = ["Turns"]


class Turns:
    """One turn, then at least one pass of the event loop without.

    Batches of several lanes are often ready at once. Decided in one pass, they'd keep everything else waiting for all of
    them together, a tenth of a second each, and a request takes two passes or more.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def take(self) -> None:
        """Returns when it is the caller's turn, in the order of asking: what it does up to its next wait."""
        await self._lock.acquire()
        asyncio.get_running_loop().call_soon(self._lock.release)
