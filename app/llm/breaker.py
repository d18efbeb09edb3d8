"""A circuit breaker: leaves a provider alone that fails, and lets one call find out whether it is back.

    closed ──error_share of at least min_calls in window_s──▶ open ──open_s──▶ half-open ──success──▶ closed
                                                              ▲                    │
                                                              └──────failure───────┘

Libraries for this either let every waiting call through when half-open or don't see coroutines at all; this one hands
out one permit. The clock is passed in.
"""

from collections import deque
from collections.abc import Callable
from typing import Literal

from app.settings import BreakerSettings

__all__ = ["Breaker", "Permit", "State"]

State = Literal["closed", "open", "half-open"]


class Permit:
    """Leave to make one call; give it back with its outcome, once."""

    __slots__ = ("era",)

    def __init__(self, era: int) -> None:
        self.era = era


class Breaker:
    """Shared by all calls of a worker to one provider.

    Args:
        settings: window, share, times.
        clock: seconds, monotonic.
        closed: called when a probe succeeded.
    """

    def __init__(
        self, settings: BreakerSettings, clock: Callable[[], float], closed: Callable[[], None] = lambda: None
    ) -> None:
        self._settings, self._clock, self._closed = settings, clock, closed
        self._outcomes: deque[tuple[float, bool]] = deque()
        self._errors = 0
        self._open_until: float | None = None
        self._probing = False
        self._era = 0
        """Rises with each opening and closing: outcomes of calls from before say nothing about now."""

    @property
    def state(self) -> State:
        if self._open_until is None:
            return "closed"
        return "open" if self._clock() < self._open_until else "half-open"

    @property
    def ready_at(self) -> float:
        """When the next call may be made, by the clock; infinite while a probe is under way."""
        if self._open_until is None:
            return 0.0
        return float("inf") if self._probing else self._open_until

    def acquire(self) -> Permit | None:
        """Leave for one call; None: leave the provider alone."""
        if self._open_until is not None:
            if self._probing or self._clock() < self._open_until:
                return None
            self._probing = True
        return Permit(self._era)

    def succeeded(self, permit: Permit) -> None:
        """The provider answered, whatever it said about the request."""
        if permit.era != self._era:
            return
        if self._open_until is None:
            self._note(ok=True)
        else:
            self._close()

    def failed(self, permit: Permit) -> None:
        """No usable answer: time-out, reset, 429, 5xx."""
        if permit.era != self._era:
            return
        if self._open_until is not None:
            self._open(self._settings.open_s)
            return
        self._note(ok=False)
        count = len(self._outcomes)
        if count >= self._settings.min_calls and self._errors >= self._settings.error_share * count:
            self._open(self._settings.open_s)

    def refused(self, permit: Permit) -> None:
        """The provider won't serve us until somebody acts: opens at once."""
        if permit.era == self._era:
            self._open(self._settings.refused_s)

    def released(self, permit: Permit) -> None:
        """The call was given up before it said anything (cancelled)."""
        if permit.era == self._era:
            self._probing = False

    def _note(self, ok: bool) -> None:
        now = self._clock()
        while self._outcomes and self._outcomes[0][0] <= now - self._settings.window_s:
            self._errors -= not self._outcomes.popleft()[1]
        self._outcomes.append((now, ok))
        self._errors += not ok

    def _open(self, seconds: float) -> None:
        self._open_until = self._clock() + seconds
        self._reset()

    def _close(self) -> None:
        self._open_until = None
        self._reset()
        self._closed()

    def _reset(self) -> None:
        self._era += 1
        self._probing = False
        self._outcomes.clear()
        self._errors = 0
