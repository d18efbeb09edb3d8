"""The wait that a provider asked for: while it lasts, nothing is sent to it."""

from collections.abc import Callable

from app.errors import ModelUnavailable

__all__ = ["Gate", "Held"]


class Held(ModelUnavailable):
    """The call wasn't sent: its provider asked to be left alone while it waited for a connection. Retryable."""


class Gate:
    """One a provider and worker. Closed by a Retry-After, as soon as its header is read; it opens by itself.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._until = clock, 0.0

    @property
    def left_s(self) -> float:
        """Seconds until it opens; 0: it is open."""
        return max(self._until - self._clock(), 0.0)

    def close(self, seconds: float) -> None:
        """Closes it for so long; the longest of several waits counts."""
        self._until = max(self._until, self._clock() + seconds)
