"""What this worker may spend on calls: leases of accounts, taken before and settled after.

Money of a task's day, calls and tokens of a provider's minute: all the same here. What a call uses isn't known before its
answer, so its upper bound is set aside: a prompt has at most as many tokens as bytes, and an answer at most
`max_tokens`. Spending from a lease needs no message; one message asks for the next lease.
"""

import asyncio
import itertools
import logging
import time
import uuid
from collections.abc import Callable
from typing import NamedTuple, Protocol
from zoneinfo import ZoneInfo

from app.llm.budget import Request, day_of, terms_of
from app.settings import Settings

__all__ = ["DENIED_S", "LONGEST_DENIED_S", "Bank", "Purse", "Reservation"]

log = logging.getLogger("headrace.budget")

GRANT_TIMEOUT_S = 10.0
"""A grant takes two transactions, about 0.3 s; the stage may be moving to another worker, so callers wait for it."""
DENIED_S = 1.0
"""Others give back what they didn't use, so a worker that was refused asks again after this ..."""
FINAL_S = 30.0
"""... or after this, where that wouldn't do: settlements can't make it true, but a changed limit can."""
LONGEST_DENIED_S = 5.0
"""A minute says when it will have room, at the latest; what others give back makes it sooner, so ask meanwhile."""
SETTLE_IDLE_S = 3.0
"""A lease that nobody used for so long is given back."""
LITTLE = 1e-12


class Bank(Protocol):
    """Carries requests to the budget's stage."""

    async def send(self, request: Request) -> None:
        """Writes a request; its answer comes through `Purse.granted`."""
        ...


class Lease:
    """Of one account and day."""

    __slots__ = ("account", "amount", "asked_at", "day", "id", "set_aside", "touched", "used")

    def __init__(self, id: str, account: str, day: str, amount: float, asked_at: float, now: float) -> None:
        self.id, self.account, self.day, self.amount, self.touched = id, account, day, amount, now
        self.asked_at = asked_at
        """By the clock; it was granted after."""
        self.used = self.set_aside = 0.0

    @property
    def left(self) -> float:
        return self.amount - self.used - self.set_aside


class Asked:
    """A lease that is waited for."""

    __slots__ = ("answered", "at", "day", "lease")

    def __init__(self, lease: str, day: str, at: float) -> None:
        self.lease, self.day, self.at = lease, day, at
        self.answered = asyncio.Event()


class Denied(NamedTuple):
    """A refusal."""

    day: str
    until: float
    """Not asked again before."""
    final: bool
    free_at: float
    """There is room then, at the latest."""


class Reservation:
    """Set aside for one call."""

    __slots__ = ("amount", "lease")

    def __init__(self, lease: Lease | None, amount: float) -> None:
        self.lease, self.amount = lease, amount


class Purse:
    """One a worker. Accounts without a limit are spent from freely.

    Args:
        settings: limits.
        bank: where leases come from.
        now: seconds since the epoch: says which day it is.
        clock: seconds, monotonic: says how old a lease is.
    """

    def __init__(
        self,
        settings: Settings,
        bank: Bank,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.worker = uuid.uuid4().hex
        self._bank, self._now, self._clock = bank, now, clock
        self._terms = terms_of(settings)
        self._zone, self._period_s = ZoneInfo(settings.budget.timezone), settings.budget.period_s
        self._leases: dict[str, Lease] = {}
        self._old: list[Lease] = []
        self._asked: dict[str, Asked] = {}
        self._denied: dict[str, Denied] = {}
        self._numbers = itertools.count()

    async def reserve(self, account: str, amount: float) -> Reservation | None:
        """Sets something aside for a call; None: there is none now, see `is_final` and `wait_s`.

        Args:
            account: whose; a task, or `minute_account`.
            amount: the most that the call can use. More than a whole minute has is cut to that.

        Raises:
            TimeoutError: the budget's stage didn't answer. Retryable.
        """
        terms = self._terms.get(account)
        if terms is None or amount <= 0:
            return Reservation(None, 0.0)
        if terms.minute_s:
            amount = min(amount, terms.limit)
        deadline = self._now() + GRANT_TIMEOUT_S
        while self._now() < deadline:
            day = self._day(account)
            lease = self._current(account, day)
            if lease is not None and lease.left >= amount:
                lease.set_aside += amount
                lease.touched = self._now()
                return Reservation(lease, amount)
            denied = self._denied.get(account)
            if denied is not None and denied.day == day and self._now() < denied.until:
                return None
            await self._ask(account, day, terms.size(amount), amount)
        log.warning("no grant for %s within %g s; its calls wait", account, GRANT_TIMEOUT_S)
        raise TimeoutError(f"no grant for {account}")

    def is_final(self, account: str) -> bool:
        """The last refusal was for the day."""
        denied = self._denied.get(account)
        return denied is not None and denied.final

    def wait_s(self, account: str) -> float:
        """Seconds until a minute that refused has room, at the latest."""
        denied = self._denied.get(account)
        return 0.0 if denied is None else max(denied.free_at - self._now(), 0.0)

    def _day(self, account: str) -> str:
        return "" if self._terms[account].minute_s else day_of(self._now(), self._zone, self._period_s)

    def _current(self, account: str, day: str) -> Lease | None:
        lease = self._leases.get(account)
        if lease is not None and (lease.day != day or self._is_over(lease)):
            self._old.append(self._leases.pop(account))
            return None
        return lease

    def _is_over(self, lease: Lease) -> bool:
        return self._clock() - lease.asked_at >= self._terms[lease.account].lease_s

    async def _ask(self, account: str, day: str, amount: float, least: float) -> None:
        """Asks once for all calls that need it, and waits a while for the answer."""
        asked = self._asked.get(account)
        if asked is None or asked.day != day:
            asked = self._asked[account] = Asked(f"{self.worker}-{next(self._numbers)}", day, self._clock())
            request = Request(
                worker=self.worker,
                lease=asked.lease,
                account=account,
                day=day,
                kind="lease",
                amount=amount,
                least=least,
            )
            try:
                await self._bank.send(request)
            except BaseException:
                self._asked.pop(account, None)
                raise
        try:
            async with asyncio.timeout(GRANT_TIMEOUT_S):
                await asked.answered.wait()
        except TimeoutError:
            if self._asked.get(account) is asked:
                del self._asked[account]

    def granted(
        self, lease: str, account: str, day: str, amount: float, final: bool, wait_s: float | None = None
    ) -> None:
        """The stage's answer; 0 is a refusal. A grant that nobody waits for any more is given back by `tidy`.

        Args:
            lease: its id, as it was asked for.
            account: whose.
            day: which, as it was asked for.
            amount: what it holds.
            final: refused for the day.
            wait_s: when there will be room in a minute, at the latest.
        """
        if (old := self._leases.pop(account, None)) is not None:
            self._old.append(old)  # it has too little left for a call; others may have it
        asked = self._asked.get(account)
        known = asked is not None and asked.lease == lease
        if amount > 0:
            at = asked.at if asked is not None and known else -1e9  # nobody knows when it was asked for: it is over
            self._leases[account] = Lease(lease, account, day, amount, at, self._now())
            self._denied.pop(account, None)
        else:
            now = self._now()
            seconds = min(wait_s, LONGEST_DENIED_S) if wait_s else FINAL_S if final else DENIED_S
            self._denied[account] = Denied(day, now + seconds, final, now + (wait_s or seconds))
        if asked is not None and known:
            del self._asked[account]
            asked.answered.set()

    def settle(self, reservation: Reservation, used: float) -> None:
        """Tells what a call used; the rest is free for other calls of this worker."""
        lease = reservation.lease
        if lease is None:
            return
        lease.set_aside -= reservation.amount
        lease.used += used
        lease.touched = self._now()

    async def tidy(self, everything: bool = False) -> None:
        """Gives back leases that are used up, over, or not needed. Called now and then, and at the end."""
        now = self._now()
        for account, lease in list(self._leases.items()):
            over = lease.day != self._day(account) or self._is_over(lease)
            if everything or over or (lease.set_aside <= LITTLE and now - lease.touched > SETTLE_IDLE_S):
                self._old.append(self._leases.pop(account))
        for lease in list(self._old):
            if everything or lease.set_aside <= LITTLE:
                self._old.remove(lease)
                used = lease.used + max(lease.set_aside, 0.0)  # a call cut off may be billed
                await self._bank.send(
                    Request(
                        worker=self.worker, lease=lease.id, account=lease.account, day=lease.day, kind="settle",
                        amount=used,
                    )
                )  # fmt: skip
