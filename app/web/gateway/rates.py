"""A rate limit per key: a token bucket that may run into debt, so that a large list is never refused for ever."""

import time
from collections.abc import Callable, Mapping

from app.web.problems import Problem

__all__ = ["Rates"]

FORGET_S = 600.0
"""A bucket that wasn't used for so long is full, or would be of any sensible setting."""


class Rates:
    """The buckets of all keys, of this process.

    Args:
        per_s: events a second; 0: any number.
        burst_s: a full bucket has this many seconds' worth.
        clock: monotonic seconds.
    """

    def __init__(self, per_s: float, burst_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_s, self.full, self._burst_s, self._clock = per_s, max(1.0, per_s * burst_s), burst_s, clock
        self._buckets: dict[str, tuple[float, float]] = {}
        """By key: what it has (below 0: debt), and when that was so."""

    def admit(self, key: str) -> None:
        """Lets a request of a key in.

        Raises:
            Problem: 429 with the time to wait.
        """
        if not self.per_s:
            return
        left = self._left(key)
        if left < 1:
            wait_s = (1 - left) / self.per_s
            raise Problem(
                429, "rate-limited", f"this key may send {self.per_s:g} events a second (gateway.rate_per_s)",
                headers={"Retry-After": str(max(1, int(wait_s + 0.999))), **self.headers(key)},
            )  # fmt: skip

    def charge(self, key: str, events: int) -> None:
        """Takes what a request cost; it may be more than is there."""
        if self.per_s:
            self._buckets[key] = (self._left(key) - events, self._clock())
            self._tidy()

    def headers(self, key: str) -> Mapping[str, str]:
        """`RateLimit-Policy` and `RateLimit`, as the IETF's draft (httpapi-ratelimit-headers 10) names them."""
        if not self.per_s:
            return {}
        left = self._left(key)
        until_full_s = int((self.full - left) / self.per_s + 0.999)
        return {
            "RateLimit-Policy": f'"events";q={int(self.full)};w={int(self._burst_s)}',
            "RateLimit": f'"events";r={max(0, int(left))};t={until_full_s}',
        }

    def _left(self, key: str) -> float:
        left, at = self._buckets.get(key, (self.full, 0.0))
        return min(self.full, left + (self._clock() - at) * self.per_s) if key in self._buckets else self.full

    def _tidy(self) -> None:
        if len(self._buckets) > 10_000:
            old = self._clock() - FORGET_S
            self._buckets = {key: bucket for key, bucket in self._buckets.items() if bucket[1] > old}
