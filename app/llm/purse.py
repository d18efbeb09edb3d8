"""What this worker may spend on calls: leases of the day's budget, taken before and settled after.

A call's cost isn't known before its answer, so its upper bound is set aside: a prompt has at most as many tokens as
bytes, and an answer at most `max_tokens`. Spending from a lease needs no message; one message asks for the next lease.
"""

import asyncio
import itertools
import logging
import time
import uuid
from collections.abc import Callable
from typing import Protocol
from zoneinfo import ZoneInfo

from app.llm.budget import Request, day_of
from app.settings import Settings

__all__ = ["DENIED_S", "Bank", "Purse", "Reservation"]

log = logging.getLogger(__name__)

GRANT_TIMEOUT_S = 10.0
"""A grant takes two transactions, about 0.3 s; the stage may be moving to another worker, so callers wait for it."""
DENIED_S = 1.0
"""Others give back what they didn't use, so a worker that was refused asks again after this ..."""
FINAL_S = 30.0
"""... or after this, where that wouldn't do: settlements can't make it true, but a changed limit can."""
SETTLE_IDLE_S = 3.0
"""A lease that nobody used for so long is given back."""


class Bank(Protocol):
    """Carries requests to the budget's stage."""

    async def send(self, request: Request) -> None:
        """Writes a request; its answer comes through `Purse.granted`."""
        ...


class Lease:
    """Money of one task and day."""

    __slots__ = ("day", "id", "set_aside", "task", "touched", "usd", "used")

    def __init__(self, id: str, task: str, day: str, usd: float, now: float) -> None:
        self.id, self.task, self.day, self.usd, self.touched = id, task, day, usd, now
        self.used = self.set_aside = 0.0

    @property
    def left(self) -> float:
        return self.usd - self.used - self.set_aside


class Reservation:
    """Money set aside for one call."""

    __slots__ = ("lease", "usd")

    def __init__(self, lease: Lease | None, usd: float) -> None:
        self.lease, self.usd = lease, usd


class Purse:
    """One a worker. Tasks without a budget spend freely.

    Args:
        settings: budgets.
        bank: where leases come from.
        now: seconds since the epoch.
    """

    def __init__(self, settings: Settings, bank: Bank, now: Callable[[], float] = time.time) -> None:
        self.worker = uuid.uuid4().hex
        self._budget, self._bank, self._now = settings.budget, bank, now
        self._limits = {task.name: settings.day_usd(task) for task in settings.tasks}
        self._zone = ZoneInfo(settings.budget.timezone)
        self._leases: dict[str, Lease] = {}
        self._old: list[Lease] = []
        self._asked: dict[str, tuple[str, str, asyncio.Event]] = {}
        self._denied: dict[str, tuple[str, float, bool]] = {}
        self._numbers = itertools.count()

    async def reserve(self, task: str, usd: float) -> Reservation | None:
        """Sets money aside for a call; None: there is none now, and `is_final` says whether there may be soon.

        Args:
            task: whose budget.
            usd: the most that the call can cost.

        Raises:
            TimeoutError: the budget's stage didn't answer. Retryable.
        """
        limit = self._limits.get(task)
        if limit is None or usd <= 0:
            return Reservation(None, 0.0)
        deadline = self._now() + GRANT_TIMEOUT_S
        while self._now() < deadline:
            day = self._day()
            lease = self._current(task, day)
            if lease is not None and lease.left >= usd:
                lease.set_aside += usd
                lease.touched = self._now()
                return Reservation(lease, usd)
            denied = self._denied.get(task)
            if denied is not None and denied[0] == day and self._now() < denied[1]:
                return None
            await self._ask(task, day, max(usd, limit * self._budget.lease_share), usd)
        log.warning("no grant for task %s within %g s; its calls wait", task, GRANT_TIMEOUT_S)
        raise TimeoutError(f"no grant for task {task}")

    def is_final(self, task: str) -> bool:
        """The last refusal was for the day."""
        denied = self._denied.get(task)
        return denied is not None and denied[2]

    def _day(self) -> str:
        return day_of(self._now(), self._zone, self._budget.period_s)

    def _current(self, task: str, day: str) -> Lease | None:
        lease = self._leases.get(task)
        if lease is not None and lease.day != day:
            self._old.append(self._leases.pop(task))
            return None
        return lease

    async def _ask(self, task: str, day: str, usd: float, least_usd: float) -> None:
        """Asks once for all calls that need it, and waits a while for the answer."""
        asked = self._asked.get(task)
        if asked is None or asked[1] != day:
            asked = self._asked[task] = (f"{self.worker}-{next(self._numbers)}", day, asyncio.Event())
            try:
                await self._bank.send(
                    Request(
                        worker=self.worker,
                        lease=asked[0],
                        task=task,
                        day=day,
                        kind="lease",
                        usd=usd,
                        least_usd=least_usd,
                    )
                )
            except BaseException:
                self._asked.pop(task, None)
                raise
        try:
            async with asyncio.timeout(GRANT_TIMEOUT_S):
                await asked[2].wait()
        except TimeoutError:
            if self._asked.get(task) is asked:
                del self._asked[task]

    def granted(self, lease: str, task: str, day: str, usd: float, final: bool) -> None:
        """The stage's answer; 0 is a refusal. A grant that nobody waits for any more is given back by `tidy`."""
        if (old := self._leases.pop(task, None)) is not None:
            self._old.append(old)  # it has too little left for a call; others may have it
        if usd > 0:
            self._leases[task] = Lease(lease, task, day, usd, self._now())
            self._denied.pop(task, None)
        else:
            self._denied[task] = (day, self._now() + (FINAL_S if final else DENIED_S), final)
        asked = self._asked.get(task)
        if asked is not None and asked[0] == lease:
            del self._asked[task]
            asked[2].set()

    def settle(self, reservation: Reservation, used_usd: float) -> None:
        """Tells what a call cost; the rest is free for other calls of this worker."""
        lease = reservation.lease
        if lease is None:
            return
        lease.set_aside -= reservation.usd
        lease.used += used_usd
        lease.touched = self._now()

    async def tidy(self, everything: bool = False) -> None:
        """Gives back leases that are used up, of yesterday, or not needed. Called now and then, and at the end."""
        day, now = self._day(), self._now()
        for task, lease in list(self._leases.items()):
            idle = lease.set_aside <= 1e-12 and (lease.day != day or now - lease.touched > SETTLE_IDLE_S)
            if everything or idle:
                self._old.append(self._leases.pop(task))
        for lease in list(self._old):
            if everything or lease.set_aside <= 1e-12:
                self._old.remove(lease)
                used = lease.used + max(lease.set_aside, 0.0)  # a call cut off may be billed
                await self._bank.send(
                    Request(worker=self.worker, lease=lease.id, task=lease.task, day=lease.day, kind="settle", usd=used)
                )
