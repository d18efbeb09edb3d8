"""What runs beside the requests of a process, as long as it serves."""

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import Any

__all__ = ["running"]

log = logging.getLogger("headrace.web")


@contextlib.asynccontextmanager
async def running(loops: Iterable[Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Runs them as long as the `with`; one that fails takes the process down with its reason."""
    tasks = [asyncio.create_task(loop) for loop in loops]
    for task in tasks:
        task.add_done_callback(_watch)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _watch(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and task.exception() is not None:
        log.critical("web: a helper task failed", exc_info=task.exception())
        signal.raise_signal(signal.SIGTERM)
