"""What may be spent: accounts of which one owner grants leases. Money of a task's day; calls and tokens of a provider's minute.

A lease is counted as spent from its grant until it is settled; then only what was used counts. So the sum of what is
settled and what is leased never passes the limit, whoever asks in whatever order, and a worker that dies with a lease
has spent it. Requests may come twice: they carry an id, and the second changes nothing.

A minute rolls: what was spent counts for a minute after its lease was settled, which is after it was used. A lease of it
may be used for a sixth of a minute only, so one that nobody settles counts from then on as used.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

import msgspec

from app.settings import Settings

__all__ = [
    "LATE_MS",
    "Account",
    "Request",
    "Terms",
    "day_of",
    "free_in_ms",
    "grant",
    "minute_account",
    "settle",
    "terms_of",
    "turn",
]

MINUTE_SHARE = 1 / 30
"""Of a minute's limit a worker takes at once: two seconds' worth. What others hold is out of reach for a while."""
LEASE_PART = 6
"""A lease of a minute may be used for this part of it: longer, and what was used at its begin counts for long too much."""
LATE_MS = 1000
"""From the last moment at which a lease may be used to when the provider has the call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Of an account."""

    limit: float
    share: float
    """Of the limit that a worker takes at once."""
    minute_s: float = 0.0
    """Above 0: the limit is of any time of this length; else of a day."""

    @property
    def lease_s(self) -> float:
        """How long a lease may be used; infinite for those of a day."""
        return self.minute_s / LEASE_PART if self.minute_s else math.inf

    def size(self, least: float) -> float:
        """What is asked for by who needs at least so much."""
        usual = self.limit * self.share
        return max(least, math.ceil(usual) if self.minute_s else usual)


def minute_account(provider: str, kind: str) -> str:
    """Of a provider's `requests` or `tokens`. No task is called so."""
    return f"@{provider}/{kind}"


def terms_of(settings: Settings) -> dict[str, Terms]:
    """The accounts of a deployment: tasks with a budget, and providers with a limit of a minute."""
    return dict(_terms(settings))


def _terms(settings: Settings) -> Iterator[tuple[str, Terms]]:
    for task in settings.tasks:
        if (usd := settings.day_usd(task)) is not None:
            yield task.name, Terms(limit=usd, share=settings.budget.lease_share)
    for provider in settings.llm.chain():
        for kind, limit in (("requests", provider.requests_per_minute), ("tokens", provider.tokens_per_minute)):
            if limit is not None:
                terms = Terms(limit=float(limit), share=MINUTE_SHARE, minute_s=settings.budget.minute_s)
                yield minute_account(provider.name, kind), terms


class Spent(msgspec.Struct, array_like=True):
    """Of a minute: what a lease used, and until when that counts (ms since the epoch)."""

    amount: float
    until_ms: int


class Account(msgspec.Struct, kw_only=True):
    """US dollars of one task's day; or calls or tokens of one provider's last minute."""

    settled: float = 0.0
    leases: dict[str, float] = msgspec.field(default_factory=dict)
    """Open ones, by id."""
    closed: list[str] = msgspec.field(default_factory=list)
    """The last ones that were settled: a repeated settlement changes nothing."""
    alerted: bool = False
    ends_ms: dict[str, int] = msgspec.field(default_factory=dict)
    """Until when open leases of a minute may be used, ms since the epoch."""
    recent: dict[str, Spent] = msgspec.field(default_factory=dict)
    """What closed leases used within the last minute."""

    @property
    def leased(self) -> float:
        return sum(self.leases.values())

    @property
    def spent(self) -> float:
        """With open leases: what counts against the limit."""
        return self.settled + self.leased + sum(each.amount for each in self.recent.values())


class Request(msgspec.Struct, kw_only=True):
    """A record on `budget`: a lease that is asked for, or one that is given back."""

    worker: str
    lease: str
    account: str
    """A task, or `minute_account`."""
    day: str
    """Empty for a minute."""
    kind: str
    """lease or settle."""
    amount: float
    """Asked for; or used."""
    least: float = 0.0
    """Less than this is of no use."""


KEPT_CLOSED = 200
"""Repeats come within seconds."""


def turn(account: Account, terms: Terms, now_ms: int) -> None:
    """Lets a minute roll on: forgets what is older, and takes leases that nobody settled for used."""
    if not terms.minute_s:
        return
    for lease, end_ms in list(account.ends_ms.items()):
        if end_ms <= now_ms:
            _close(account, lease, account.leases[lease], end_ms + round(terms.minute_s * 1000))
    for lease, spent in list(account.recent.items()):
        if spent.until_ms <= now_ms:
            del account.recent[lease]


def grant(
    account: Account, lease: str, wanted: float, limit: float, least: float = 0.0, ends_ms: int | None = None
) -> float:
    """Opens a lease; returns what it holds: what was wanted, what is left, or 0 where that is less than the least.

    Args:
        account: turned to now.
        lease: its id.
        wanted: how much.
        limit: of the account.
        least: less is of no use.
        ends_ms: until when it may be used, for a minute.
    """
    if lease in account.leases:
        return account.leases[lease]
    if lease in account.closed:
        return 0.0
    granted = max(0.0, min(wanted, limit - account.spent))
    if granted < least:
        return 0.0
    if granted > 0:
        account.leases[lease] = granted
        if ends_ms is not None:
            account.ends_ms[lease] = ends_ms
    return granted


def settle(account: Account, lease: str, used: float, until_ms: int | None = None) -> None:
    """Closes a lease; what it didn't use is free again.

    Args:
        account: turned to now.
        lease: its id.
        used: how much of it.
        until_ms: until when that counts, for a minute.
    """
    if lease in account.leases:
        _close(account, lease, used, until_ms)
    elif (spent := account.recent.get(lease)) is not None:  # it had ended, and was taken for used
        spent.amount = min(spent.amount, used)


def _close(account: Account, lease: str, used: float, until_ms: int | None) -> None:
    del account.leases[lease]
    account.ends_ms.pop(lease, None)
    if until_ms is None:
        account.settled += used
    elif used > 0:
        account.recent[lease] = Spent(used, until_ms)
    account.closed = [*account.closed, lease][-KEPT_CLOSED:]


def free_in_ms(account: Account, terms: Terms, least: float, now_ms: int) -> int:
    """When a minute will have so much at the latest, from now; leases that are given back make it sooner."""
    minute_ms = round(terms.minute_s * 1000)
    ends = [(spent.until_ms, spent.amount) for spent in account.recent.values()]
    ends += [(account.ends_ms[lease] + minute_ms, amount) for lease, amount in account.leases.items()]
    left = terms.limit - account.spent
    for until_ms, amount in sorted(ends):
        if left >= least:
            return 0
        left += amount
        if left >= least:
            return max(until_ms - now_ms, 1)
    return 0 if left >= least else minute_ms


def day_of(seconds: float, zone: ZoneInfo, period_s: float) -> str:
    """The name of the day that a moment lies in: the local time at which it began."""
    local = datetime.fromtimestamp(seconds, zone)
    offset = local.utcoffset()
    shift = offset.total_seconds() if offset else 0.0
    start = (seconds + shift) // period_s * period_s - shift
    return datetime.fromtimestamp(start, zone).strftime("%Y-%m-%dT%H:%M:%S")
