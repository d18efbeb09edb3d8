"""Waits for what other processes do: it can be seen in their ports, logs and files, and there is no event to wait on."""

import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["poll"]

T = TypeVar("T")


def poll(met: Callable[[], T], within_s: float, every_s: float = 0.1) -> T:
    """Asks again and again, at least once.

    Args:
        met: gives something true when it is so; what it raises ends the wait.
        within_s: seconds until it is given up.
        every_s: seconds between two questions; more where one costs much.

    Returns:
        What `met` gave last: something false when the time is up.
    """
    deadline = time.monotonic() + within_s
    while not (got := met()) and time.monotonic() < deadline:
        time.sleep(
            every_s
        )  # the one place for it: other processes, their files and ports send no event that could be awaited
    return got
