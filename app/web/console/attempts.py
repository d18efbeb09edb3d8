"""Failed logins: who has to wait, and how long. Bounded in memory, whatever names and addresses come.

Long waits are for a name from one address, and for an address with whatever names. A name from anywhere waits shortly, or one
wrong password now and then would shut its user out; and where that user has logged in from before, it doesn't wait for that.
"""

import heapq
import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Attempts"]

LONGEST_WAIT_S = 900.0
LONGEST_NAME_WAIT_S = 30.0
"""Of a name from anywhere: 2,880 guesses a day, by however many addresses."""
FORGET_S = 3600.0
"""Failures are forgotten when none came for so long."""
MOST = 20_000
"""Counts kept; above it a tenth goes, of those that don't wait first. About 200 bytes each.

Each failure costs a hash, of which there are some ten a second: that many can't wait at once.
"""
LONGEST_NAME = 128


@dataclass(slots=True)
class Failures:
    count: int = 0
    last_s: float = 0.0
    until_s: float = 0.0


class Attempts:
    """Counts failures of each name, each address, and each name from each address.

    Args:
        free: failures without a wait.
        wait_s: the first wait; each further failure doubles it.
        clock: seconds, never going back.
    """

    def __init__(self, free: int, wait_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._free, self._wait_s, self._clock = free, wait_s, clock
        self._kept: dict[str, Failures] = {}
        self._known: OrderedDict[str, None] = OrderedDict()
        """Names from addresses where they have logged in."""

    def wait_s(self, name: str, address: str) -> float:
        """How long this one has to wait; 0: it may try."""
        now = self._clock()
        user, peer, both = _keys(name, address)
        asked = (peer, both) if both in self._known else (user, peer, both)
        return max(0.0, *(self._kept[key].until_s - now for key in asked if key in self._kept), 0.0)

    def failed(self, name: str, address: str) -> None:
        """Counts one. Called before the password is looked at, and taken back by `succeeded`: many at once count too."""
        now = self._clock()
        user, *others = _keys(name, address)
        self._count(user, now, LONGEST_NAME_WAIT_S)
        for key in others:
            self._count(key, now, LONGEST_WAIT_S)
        if len(self._kept) > MOST:
            self._make_room(now)

    def succeeded(self, name: str, address: str) -> None:
        """Forgets the failures of the name. The address keeps all but this one: an own login must not make guessing free."""
        user, peer, both = _keys(name, address)
        self._kept.pop(user, None)
        self._kept.pop(both, None)
        kept = self._kept.get(peer)
        if kept is not None:
            kept.count -= 1
            if kept.count < self._free:
                kept.until_s = 0.0
        self._known[both] = None
        self._known.move_to_end(both)
        if len(self._known) > MOST:
            self._known.popitem(last=False)

    def _count(self, key: str, now: float, longest_s: float) -> None:
        kept = self._kept.get(key)
        if kept is None or kept.last_s < now - FORGET_S:
            kept = self._kept[key] = Failures()
        kept.count, kept.last_s = kept.count + 1, now
        if kept.count >= self._free:
            doubled = min(20, kept.count - self._free)
            kept.until_s = now + min(longest_s, self._wait_s * 2**doubled)

    def _make_room(self, now: float) -> None:
        """Takes those away that don't wait, the oldest first; then those whose wait ends first."""
        order = {key: (max(kept.until_s, now), kept.last_s) for key, kept in self._kept.items()}
        for key in heapq.nsmallest(MOST // 10, order, key=order.__getitem__):
            del self._kept[key]


def _keys(name: str, address: str) -> tuple[str, str, str]:
    """Of the name, of the address, and of both."""
    user, peer = name[:LONGEST_NAME], _network(address)
    return f"user {user}", f"address {peer}", f"both {peer} {user}"


def _network(address: str) -> str:
    """Who an address belongs to: of IPv6 a /64, which one host may have all of."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address[:LONGEST_NAME]
    if isinstance(ip, ipaddress.IPv4Address):
        return str(ip)
    return str(ip.ipv4_mapped or ipaddress.ip_network((int(ip) >> 64 << 64, 64)))
