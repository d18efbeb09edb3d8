"""What may be spent in a day: an account a task and day, out of which leases are granted.

A lease is counted as spent from its grant until it is settled; then only what was used counts. So the sum of what is
settled and what is leased never passes the limit, whoever asks in whatever order, and a worker that dies with a lease
has spent it. Requests may come twice: they carry an id, and the second changes nothing.
"""

from datetime import datetime
from zoneinfo import ZoneInfo

import msgspec

__all__ = ["Account", "Request", "day_of", "grant", "settle"]


class Account(msgspec.Struct, kw_only=True):
    """One task's money of one day."""

    settled_usd: float = 0.0
    leases: dict[str, float] = msgspec.field(default_factory=dict)
    """Open ones, by id."""
    closed: list[str] = msgspec.field(default_factory=list)
    """The last ones that were settled: a repeated settlement changes nothing."""
    alerted: bool = False

    @property
    def leased_usd(self) -> float:
        return sum(self.leases.values())

    @property
    def spent_usd(self) -> float:
        """With open leases: what counts against the limit."""
        return self.settled_usd + self.leased_usd


class Request(msgspec.Struct, kw_only=True):
    """A record on `budget`: a lease that is asked for, or one that is given back."""

    worker: str
    lease: str
    task: str
    day: str
    kind: str
    """lease or settle."""
    usd: float
    """Asked for; or used."""
    least_usd: float = 0.0
    """Less than this is of no use."""


KEPT_CLOSED = 200
"""Repeats come within seconds."""


def grant(account: Account, lease: str, wanted_usd: float, limit_usd: float, least_usd: float = 0.0) -> float:
    """Opens a lease; returns what it holds: what was wanted, what is left, or 0 where that is less than the least."""
    if lease in account.leases:
        return account.leases[lease]
    if lease in account.closed:
        return 0.0
    granted = max(0.0, min(wanted_usd, limit_usd - account.spent_usd))
    if granted < least_usd:
        return 0.0
    if granted > 0:
        account.leases[lease] = granted
    return granted


def settle(account: Account, lease: str, used_usd: float) -> None:
    """Closes a lease; what it didn't use is free again."""
    if account.leases.pop(lease, None) is not None:
        account.settled_usd += used_usd
        account.closed = [*account.closed, lease][-KEPT_CLOSED:]


def day_of(seconds: float, zone: ZoneInfo, period_s: float) -> str:
    """The name of the day that a moment lies in: the local time at which it began."""
    local = datetime.fromtimestamp(seconds, zone)
    offset = local.utcoffset()
    shift = offset.total_seconds() if offset else 0.0
    start = (seconds + shift) // period_s * period_s - shift
    return datetime.fromtimestamp(start, zone).strftime("%Y-%m-%dT%H:%M:%S")
