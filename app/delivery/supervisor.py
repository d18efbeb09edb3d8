"""The supervisor: looks once a second whether the lanes of a worker move, and says what stopped and which inputs are missing."""

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from app import metrics
from app.delivery.hang_watch import HangWatch
from app.errors import StateError
from app.kafka import answers

if TYPE_CHECKING:
    from app.delivery.runtime import Delivery

__all__ = ["Supervisor"]

log = logging.getLogger("headrace.delivery")

ACTIVE_S = 2.0
"""A lane that began a transaction within this time has input."""
LOOK_AGAIN_S = 5.0
"""Inputs that aren't there are asked for this often; else metadata is refreshed once a minute."""
REPORT_AGAIN_S = 60.0
"""A stopped partition and a missing input say so again this often."""


class Supervisor:
    """Owned by `Delivery`; runs from the worker's start to its end. What it raises ends the worker."""

    def __init__(self, delivery: "Delivery") -> None:
        self._delivery = delivery
        self._hang_watch = HangWatch()
        self._missing: set[str] = set()
        """Stages whose input wasn't there at the last look."""

    async def run(self) -> None:
        """Beats for the hang watch, looks for lanes that don't move, updates gauges.

        Raises:
            StateError: a partition with input stands still though Kafka answers.
        """
        self._hang_watch.start()
        reported = looked = 0.0
        while True:
            self._hang_watch.beat()
            await asyncio.sleep(1.0)
            now = time.monotonic()
            again = now - reported > REPORT_AGAIN_S
            reported = now if again else reported
            self._pace(now)
            self._report_missing(again)
            if self._missing and now - looked > LOOK_AGAIN_S:
                looked = now
                self._delivery.look_again()
            self._tick(again)
            await self._check_moving(now)

    def _pace(self, now: float) -> None:
        """Shares the worker's transactions a second among the lanes that had some."""
        active = sum(now - lane.last_begin < ACTIVE_S for lane in self._delivery.lanes.values())
        limits = self._delivery.settings.delivery
        self._delivery.gather_s = min(limits.commit_interval_ms / 1000, active / limits.transactions_per_s)

    def _report_missing(self, again: bool) -> None:
        missing = self._delivery.missing_inputs()
        for stage, topic in missing.items():
            if again or stage not in self._missing:
                log.error(
                    "%s: its input %s isn't there, and nothing is read; others go on. Had it been read before, a new topic "
                    "of that name is refused: see `When a topic was deleted` in docs/operations.md", stage, topic,
                )  # fmt: skip
        for stage in self._missing - set(missing):
            log.info("%s: its input is there again", stage)
        self._missing = set(missing)

    def _tick(self, again: bool) -> None:
        """Timers of lanes that work; a report and a gauge of those that stopped."""
        stopped: dict[str, int] = dict.fromkeys((s.name for s in self._delivery.stages.values()), 0)
        for lane in list(self._delivery.lanes.values()):
            if lane.stopped:
                stopped[lane.stage.name] += 1
                if again:
                    lane.report_stopped()
            elif lane.ready:
                lane.stage.logic.tick(lane, int(time.time() * 1000))
        for name, n in stopped.items():
            metrics.PARTITIONS_STOPPED.labels(name).set(n)

    async def _check_moving(self, now: float) -> None:
        """Raises StateError where a partition with input stands still, unless nothing can move as Kafka isn't there."""
        settings, lanes = self._delivery.settings, self._delivery.lanes.values()
        since = now - settings.delivery.stall_timeout_s
        still = [lane for lane in lanes if lane.ready and not lane.idle_reason and lane.moved_at < since]
        if not still:
            return
        if await answers(settings.kafka):
            lane = still[0]
            raise StateError(
                f"{lane.stage.name}, partition {lane.tp.partition} of {lane.tp.topic} has input at offset "
                f"{lane.position + 1} and didn't move for {now - lane.moved_at:.0f} s; the worker ends so that another "
                "takes over"
            )
        for lane in still:
            lane.moved_at = now
