"""One look at the whole deployment for all pages: every second while somebody watches, every 15 s for the charts else."""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable
from http import HTTPStatus

import msgspec
from nicegui import Event

from app.kafka import KAFKA_FAILURES
from app.settings import Settings
from app.web.announce import Worker
from app.web.console.tail import Shown, Tail
from app.web.numbers import Counters, Growth, Numbers, Samples, merge, parse, summed
from app.web.problems import Problem
from app.web.workers import Answer, Workers
from app.web.writer import Writer

__all__ = ["OUTCOMES", "POINT_S", "TIERS", "Point", "Snapshot", "Snapshots"]

log = logging.getLogger("headrace.web")

OUTCOMES = "headrace_outcomes_total"
TIERS = ("rule", "light", "deep", "review")

WATCHED_S = 1.0
POINT_S = 15.0
POINTS = int(3600 / POINT_S)
RATE_S = 10.0
"""Rates are over about so long: workers measure lag every 5 s, and a second holds one transaction or none."""
TAIL_TIMEOUT_S = 2.0
"""Results are in a broker's memory. One that hangs for longer is asked anew, by a new consumer."""
UNWATCHED_S = 30.0
"""So long after the last page went the consumer of results is kept: a page that is loaded anew needs it again."""


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A point of the charts, of 15 s. None: it isn't known, which isn't zero."""

    at_ms: int
    events: float | None
    """A second."""
    tiers: dict[str, float] | None
    """Results by tier, a second; `review` is one."""
    lag: float | None
    cost_usd: float | None
    """In these 15 s."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What is known at one moment."""

    at_ms: int
    workers: list[Worker]
    """Alive, and they answered."""
    silent: list[tuple[Worker, str]]
    """With why: alive by their beat, but without an answer: what they know is missing from the numbers."""
    now: Numbers
    """Totals since each worker's start."""
    rates: Numbers | None
    """Counters a second, over `rate_s`; None: not known yet."""
    rate_s: float
    hour: Numbers
    """Counters, added up over the last hour at most; see `hour_s`."""
    hour_s: float
    results: list[Shown]
    """The newest last; a sample."""
    kafka: bool
    points: list[Point]


class Added(msgspec.Struct, frozen=True):
    """What counters grew by, and in which time."""

    at_s: float
    span_s: float
    grown: Growth | None
    """None: nobody answered twice."""


class Snapshots:
    """Makes them, and tells who subscribed.

    Args:
        settings: the tree.
        workers: who is alive.
        writer: tells whether Kafka is there, and how many partitions topics have.
    """

    def __init__(self, settings: Settings, workers: Workers, writer: Writer) -> None:
        self._topic = settings.topic("ai-results")
        self._workers, self._writer = workers, writer
        self._event: Event[[Snapshot]] = Event()
        self._wanted = asyncio.Event()
        self._tail = Tail(settings)
        self._counters = Counters()
        self._looked_s = time.monotonic()
        self._recent: list[Added] = []
        """Of the last RATE_S."""
        self._open_point: list[Added] = []
        """Since the last point of the charts."""
        self._hour: deque[Samples] = deque(maxlen=POINTS)
        self._hour_total = Numbers({})
        self._points: deque[Point] = deque(maxlen=POINTS)
        self.latest: Snapshot | None = None

    def subscribe(self, callback: Callable[[Snapshot], object]) -> None:
        """Calls back with every snapshot, the newest at once, until the page goes. For page builders."""
        self._event.subscribe(callback)
        self._wanted.set()
        if self.latest is not None:
            callback(self.latest)

    @property
    def watched(self) -> bool:
        return bool(self._event.callbacks)

    async def run(self) -> None:
        """Runs until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._look_on())
            group.create_task(self._follow_results())

    async def _look_on(self) -> None:
        while True:
            if not self.watched:
                await self._idle()
            begun = time.monotonic()
            self.latest = await self._look(begun)
            self._event.emit(self.latest)
            await asyncio.sleep(max(0.1, begun + WATCHED_S - time.monotonic()))

    async def _follow_results(self) -> None:
        """Beside the looks at workers: a Kafka that hangs must not hold those up."""
        watched_s = float("-inf")
        try:
            while True:
                if self.watched:
                    watched_s = time.monotonic()
                    await self._look_at_results()
                elif time.monotonic() - watched_s > UNWATCHED_S:
                    await self._tail.close()
                await asyncio.sleep(WATCHED_S)
        finally:
            await self._tail.close()

    async def _idle(self) -> None:
        """Until the next point of the charts is due, or somebody looks."""
        now = time.monotonic()
        self._wanted.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, self._looked_s + POINT_S - now)):
                await self._wanted.wait()

    async def _look(self, now: float) -> Snapshot:
        pages, answered, silent = await self._ask()
        added = Added(now, now - self._looked_s, self._counters.added(pages, now))
        self._looked_s = now
        self._recent = [*(each for each in self._recent if each.at_s > now - RATE_S), added]
        self._open_point.append(added)
        numbers = Numbers(merge(list(pages.values())))
        if sum(each.span_s for each in self._open_point) >= POINT_S - WATCHED_S / 2:
            self._close_point(numbers)
        rates, rate_s = _known(self._recent)
        rate = Numbers(summed([each.paced for each in rates], rate_s)) if rate_s else None
        return Snapshot(
            at_ms=int(time.time() * 1000), workers=answered, silent=silent, now=numbers, kafka=self._writer.reachable,
            rates=rate, rate_s=rate_s, hour=self._hour_total,
            hour_s=len(self._hour) * POINT_S, results=list(self._tail.kept), points=list(self._points),
        )  # fmt: skip

    async def _ask(self) -> tuple[dict[str, Samples], list[Worker], list[tuple[Worker, str]]]:
        try:
            answers = await self._workers.ask_all("/metrics")
        except Problem:  # none is alive
            return {}, [], []
        pages: dict[str, Samples] = {}
        answered, silent = [], []
        for answer in answers:
            page = await asyncio.to_thread(_page, answer)
            if isinstance(page, str):
                silent.append((answer.worker, page))
            else:
                pages[answer.worker.id] = page
                answered.append(answer.worker)
        return pages, answered, silent

    async def _look_at_results(self) -> None:
        if not self._writer.reachable:
            return
        try:
            async with asyncio.timeout(TAIL_TIMEOUT_S):
                await self._tail.look(self._writer.partitions(self._topic))
        except (*KAFKA_FAILURES, Problem) as error:
            log.debug("console: results can't be read (%s)", type(error).__name__)
            await self._tail.close()

    def _close_point(self, numbers: Numbers) -> None:
        """The charts' next point, of what came since the last one."""
        known, span_s = _known(self._open_point)
        self._open_point = []
        grown = summed([each.whole for each in known])
        self._hour.append(grown)
        self._hour_total = Numbers(summed(list(self._hour)))
        rates = Numbers(summed([each.paced for each in known], span_s)) if known else None
        self._points.append(
            Point(
                at_ms=int(time.time() * 1000),
                events=rates.events_in or 0.0 if rates else None,
                tiers={tier: rates.total(OUTCOMES, outcome=tier) or 0.0 for tier in TIERS} if rates else None,
                lag=numbers.total("headrace_lag_records"),
                cost_usd=Numbers(grown).total("headrace_model_cost_usd_total") or 0.0 if rates else None,
            )
        )


def _page(answer: Answer) -> Samples | str:
    """The samples that a worker sent, or why there are none."""
    if answer.status != HTTPStatus.OK:
        return answer.why or str(answer.status)
    try:
        return parse(answer.body.decode())
    except (ValueError, LookupError):  # of the parser, or of the encoding
        return "its metrics can't be read"


def _known(parts: list[Added]) -> tuple[list[Growth], float]:
    """Those of which something is known, and the time they span."""
    known = [each for each in parts if each.grown is not None]
    return [each.grown for each in known if each.grown is not None], sum(each.span_s for each in known)
