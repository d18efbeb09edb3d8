"""Failed logins: who has to wait, and how long. Bounded in memory, whatever names and addresses come."""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Attempts"]

LONGEST_WAIT_S = 900.0
FORGET_S = 3600.0
"""Failures are forgotten when none came for so long."""
MOST = 20_000
"""Names and addresses kept; above it the oldest go. About 200 bytes each."""
LONGEST_NAME = 128


@dataclass(slots=True)
class Failures:
    count: int = 0
    last_s: float = 0.0
    until_s: float = 0.0


class Attempts:
    """Counts failures of each name and each address.

    Args:
        free: failures without a wait.
        wait_s: the first wait; each further failure doubles it.
        clock: seconds, never going back.
    """

    def __init__(self, free: int, wait_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._free, self._wait_s, self._clock = free, wait_s, clock
        self._kept: OrderedDict[str, Failures] = OrderedDict()

    def wait_s(self, name: str, address: str) -> float:
        """How long this one has to wait; 0: it may try."""
        now = self._clock()
        waits = (self._kept[key].until_s - now for key in _keys(name, address) if key in self._kept)
        return max(0.0, *waits, 0.0)

    def failed(self, name: str, address: str) -> None:
        """Counts one. Called before the password is looked at, and taken back by `succeeded`: many at once count too."""
        now = self._clock()
        for key in _keys(name, address):
            kept = self._kept.get(key)
            if kept is None or kept.last_s < now - FORGET_S:
                kept = self._kept[key] = Failures()
            kept.count, kept.last_s = kept.count + 1, now
            if kept.count >= self._free:
                doubled = min(20, kept.count - self._free)
                kept.until_s = now + min(LONGEST_WAIT_S, self._wait_s * 2**doubled)
            self._kept.move_to_end(key)
        while len(self._kept) > MOST:
            self._kept.popitem(last=False)

    def succeeded(self, name: str, address: str) -> None:
        """Forgets the failures of the name. The address keeps all but this one: an own login must not make guessing free."""
        user, peer = _keys(name, address)
        self._kept.pop(user, None)
        kept = self._kept.get(peer)
        if kept is not None:
            kept.count -= 1
            if kept.count < self._free:
                kept.until_s = 0.0


def _keys(name: str, address: str) -> tuple[str, str]:
    return f"user {name[:LONGEST_NAME]}", f"address {address[:LONGEST_NAME]}"
