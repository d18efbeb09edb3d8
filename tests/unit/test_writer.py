"""The producer that gateway and console share."""

import asyncio

from app.settings import load
from app.web.writer import Writer


class Producer:
    """Answers as long as it isn't stopped."""

    def __init__(self) -> None:
        self.client, self.stopped = self, 0

    async def force_metadata_update(self) -> bool:
        return not self.stopped

    async def stop(self) -> None:
        self.stopped += 1


class FakeWriter(Writer):
    """Over such a producer."""

    async def _start(self) -> None:
        self._producer = self.made = Producer()  # type: ignore[assignment]


async def test_the_producer_is_closed_with_its_loop_and_not_made_anew() -> None:
    writer = FakeWriter(load())
    loop = asyncio.create_task(writer.run())
    async with asyncio.timeout(5):
        while not writer.reachable:
            await asyncio.sleep(0)
    loop.cancel()
    await asyncio.gather(loop, return_exceptions=True)
    assert (loop.cancelled(), writer.made.stopped, writer.reachable) == (True, 1, False)
