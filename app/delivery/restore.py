"""Restore: after every assignment local State is brought up to its changelogs, before any lane starts.

Takes the place of Faust's Recovery service inside its table manager (see `app.delivery.changelog` for why). A local copy
that isn't one of its changelog is set aside and rebuilt; a changelog that was lost is written anew from a copy that
matches the input. Standby partitions are followed as long as the assignment lasts.
"""

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING, Any

from aiokafka.errors import KafkaError
from aiokafka.structs import TopicPartition
from faust.tables.manager import TableManager as FaustTableManager
from faust.types import TP
from mode import Service

from app import metrics
from app.delivery.changelog import ChangelogReader, Copy, changelog_reader, in_thread, is_foreign
from app.delivery.database import RESEEDING
from app.delivery.kinds import KINDS, misfit
from app.delivery.probe import config_of
from app.delivery.reseed import matches_input, reseed
from app.delivery.state import UNFINISHED, State
from app.errors import ChangelogLost, HeadraceError, StateError
from app.kafka import KAFKA_FAILURES, explained
from app.memory import give_back

if TYPE_CHECKING:
    from app.delivery.runtime import Delivery

__all__ = ["Progress", "Restore", "TableManager", "catch_up"]

log = logging.getLogger("headrace.delivery")

SAY_EVERY_S = 5.0
RETRY_S = 1.0
OLD_MS = 3600 * 1000
"""A copy younger than this is within half of any sensible delete.retention.ms, and the topic isn't asked for it."""
DELETE_RETENTION_MS = 24 * 3600 * 1000
"""Kafka's default, where the topic's own can't be read."""


class Progress:
    """How far a restore is: for the log, the metrics and the web port."""

    def __init__(self) -> None:
        self.running = False
        self.total = self.done = self.rows = 0
        self._begun = self._said = time.monotonic()

    def begin(self, total: int) -> None:
        self.running, self.total, self.done, self.rows = True, total, 0, 0
        self._begun = self._said = time.monotonic()
        metrics.RESTORE_REMAINING.set(total)
        if total:
            log.info("restoring state: %d changelog records to read", total)

    def tell(self, records: int, rows: int) -> None:
        """Some offsets are done; says so in the log now and then."""
        self.done += records
        self.rows += rows
        metrics.RESTORE_REMAINING.set(max(0, self.total - self.done))
        metrics.RESTORED_ROWS.inc(rows)
        now = time.monotonic()
        if now - self._said > SAY_EVERY_S:
            self._said = now
            log.info(
                "restoring state: %d of %d changelog records, %d rows, %.0f rows/s, about %.0f s left",
                self.done,
                self.total,
                self.rows,
                self.rows / self.seconds,
                self.left_s,
            )

    def done_with(self) -> None:
        """Says what was restored."""
        if self.total:
            log.info(
                "restored %d rows from %d changelog records in %.2f s, %.0f rows/s",
                self.rows,
                self.done,
                self.seconds,
                self.rows / self.seconds,
            )

    def end(self) -> None:
        """Also after one that was cut off by a rebalance: the next assignment begins anew."""
        self.running = False
        metrics.RESTORE_REMAINING.set(0)

    @property
    def seconds(self) -> float:
        return max(0.001, time.monotonic() - self._begun)

    @property
    def left_s(self) -> float:
        return self.seconds / self.done * max(0, self.total - self.done) if self.done else 0.0


class Restore(Service):
    """What Faust's table manager takes for its Recovery."""

    def __init__(self, app: Any, tables: Any, **kwargs: Any) -> None:
        self.app, self.tables = app, tables
        self.delivery: Delivery = app.delivery
        self.delivery.restore = self
        self.completed = asyncio.Event()
        self.progress = Progress()
        self._task: asyncio.Task[None] | None = None
        super().__init__(**kwargs)

    # -- what Faust calls ------------------------------------------------------------------------------------------

    async def on_rebalance(
        self, assigned: set[TP], revoked: set[TP], newly_assigned: set[TP], generation_id: int = 0
    ) -> None:
        """Begins with the new assignment, beside the group's own work."""
        if generation_id != self.app.consumer_generation_id:
            return  # another rebalance is under way already
        await self.halt()
        self._task = self.delivery.watch(self._run(generation_id), "restore")

    def on_partitions_revoked(self, revoked: set[TP]) -> None:
        """Nothing: the transport halts the restore first, and waits for it."""

    async def on_stop(self) -> None:
        await self.halt()

    async def halt(self) -> None:
        """Ends what is under way; local copies are whole and closed to it when this returns."""
        task, self._task = self._task, None
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task])

    # -- the work --------------------------------------------------------------------------------------------------

    async def _run(self, generation: int) -> None:
        # By the inputs, not by the changelogs that were assigned with them: the group's leader leaves out a topic that it
        # doesn't know yet, as a new changelog, and State would be taken for empty.
        actives = set(self.delivery.lanes)
        standbys = {TopicPartition(tp.topic, tp.partition) for tp in self.app.assignor.assigned_standbys()} - actives
        await self._patiently(lambda: self._restore(self._copies(actives)))
        await self._finish(generation)
        if any(tp.topic in self.delivery.stages for tp in standbys):
            await self._patiently(lambda: self._stand_by(self._copies(standbys, active=False)))

    def _copies(self, inputs: set[TopicPartition], *, active: bool = True) -> list[Copy]:
        """The State partitions behind input partitions."""
        stages = self.delivery.stages
        return [
            Copy(stages[tp.topic].state, TopicPartition(stages[tp.topic].changelog, tp.partition), active)
            for tp in sorted(inputs)
            if tp.topic in stages
        ]

    async def _patiently(self, work: Any) -> None:
        """Kafka may be away for a while; a copy that turns out damaged is set aside by the next try."""
        wait_s = RETRY_S
        while True:
            try:
                await work()
            except KAFKA_FAILURES as error:
                if isinstance(error, HeadraceError) and not error.retryable:
                    raise
                why = explained(self.delivery.settings.kafka, error)
                log.warning("restore: %s; trying again in %.0f s", why, wait_s)
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, 30.0)
            else:
                return

    async def _restore(self, copies: list[Copy]) -> None:
        """Local copies of the partitions this worker owns: judged, brought up to date, and looked at."""
        if not copies:
            return
        try:
            async with changelog_reader(self.delivery.settings.kafka, self.progress.tell) as reader:
                gone = await reader.missing(copies)
                for lane in [self.delivery.lane_of(copy.tp) for copy in gone]:
                    if lane is not None:
                        lane.hold()
                copies = [copy for copy in copies if copy not in gone]
                await self._prepare(reader, copies)
                self.progress.begin(sum(copy.remaining for copy in copies))
                await reader.catch_up(copies)
                self.progress.done_with()
            if self.progress.rows:
                await in_thread(give_back)
        finally:
            self.progress.end()
        for copy in copies:
            check_kinds(copy)

    async def _stand_by(self, copies: list[Copy]) -> None:
        async with changelog_reader(self.delivery.settings.kafka, self._told_standby) as reader:
            gone = await reader.missing(copies)
            copies = [copy for copy in copies if copy not in gone]
            await self._prepare(reader, copies)
            kept = [copy for copy in copies if copy.next <= copy.end]
            await reader.catch_up(kept)
            self.tables.on_standbys_ready()
            log.info("standing by for %d State partitions", len(kept))
            lag = asyncio.ensure_future(self._measure_standbys(kept))
            try:
                await reader.follow(kept)
            finally:
                lag.cancel()

    @staticmethod
    def _told_standby(records: int, rows: int) -> None:
        metrics.STANDBY_ROWS.inc(rows)

    @staticmethod
    async def _measure_standbys(copies: list[Copy]) -> None:
        while True:
            metrics.STANDBY_LAG.set(sum(copy.remaining for copy in copies))
            await asyncio.sleep(1.0)

    async def _prepare(self, reader: ChangelogReader, copies: list[Copy]) -> None:
        """Finds where each copy stands, and what has to happen to it first."""
        await reader.measure(copies)
        for copy in copies:
            await in_thread(copy.state.settle, copy.partition)
            await judge(self.delivery, copy)

    async def _finish(self, generation: int) -> None:
        """Lanes start and input flows."""
        app, consumer = self.app, self.app.consumer
        await app.on_rebalance_complete.send()
        if app.consumer_generation_id != generation:
            return
        assignment = consumer.assignment()
        consumer.resume_partitions({tp for tp in assignment if tp.topic not in self.tables.changelog_topics})
        await consumer.perform_seek()
        self.completed.set()
        app.flow_control.resume()
        consumer.resume_flow()
        await app._fetcher.maybe_start()
        self.tables.on_actives_ready()
        if not app.assignor.assigned_standbys():
            self.tables.on_standbys_ready()
        app.on_rebalance_end()


async def judge(delivery: "Delivery", copy: Copy) -> None:
    """Finds where a measured copy goes on, and does what has to happen to it first."""
    why = is_foreign(copy)
    if why:
        copy.set_aside(f"is a copy of {why}; rebuilding it")
    elif await _is_old(delivery, copy):
        copy.set_aside("is older than the changelog keeps deletions; rebuilding it")
    elif await _is_ahead(delivery, copy):
        return
    copy.locate()


async def _is_ahead(delivery: "Delivery", copy: Copy) -> bool:
    """The copy holds more than its changelog. Returns True when the copy is all there is to say."""
    database = copy.state.database(copy.partition)
    reached = database.changelog_offset
    reseeding = database.get(RESEEDING) is not None
    if reached is None or (reached < copy.end and not reseeding):
        return False
    if not copy.active:
        log.warning(
            "%s, partition %d ends at %d, before what this standby holds (%d): its copy is kept as it is",
            copy.tp.topic,
            copy.partition,
            copy.end,
            reached,
        )
        copy.next = copy.end + 1
        return True
    lane = delivery.lane_of(copy.tp)
    if lane is None:  # it is being closed: this copy may be the only one, and serves whoever looks next
        raise ChangelogLost(
            f"{copy.tp.topic}, partition {copy.partition}, ends before the local copy, and isn't ours now"
        )
    if not await matches_input(delivery, lane):
        copy.set_aside(f"has read up to {reached} of a changelog that ends at {copy.end}, and doesn't match the input")
        return False
    await reseed(delivery, lane, copy)
    copy.next = copy.end
    return True


async def _is_old(delivery: "Delivery", copy: Copy) -> bool:
    """Tombstones of what was deleted since may be gone by now; then reading on would leave deleted rows behind."""
    database = copy.state.database(copy.partition)
    reached, written_ms = database.changelog_offset, database.written_ms
    if reached is None or written_ms is None or reached >= copy.end - 1:
        return False
    age_ms = time.time() * 1000 - written_ms
    return age_ms > OLD_MS and age_ms > await _delete_retention_ms(delivery, copy.tp.topic) / 2


async def _delete_retention_ms(delivery: "Delivery", topic: str) -> int:
    with contextlib.suppress(KafkaError, ValueError, KeyError):
        return int((await config_of(delivery.settings.kafka, topic))["delete.retention.ms"])
    return DELETE_RETENTION_MS


def check_kinds(copy: Copy) -> None:
    """Raises StateError when rows were written with other types than the maps have now."""
    database = copy.state.database(copy.partition)
    stored = database.get(KINDS)
    if database.get(UNFINISHED) is not None:
        raise StateError(
            f"State {copy.state.name} is being divided: a `headrace tables repartition` was begun and not finished; run it "
            "again, to the same count"
        )
    why = "" if stored is None else misfit(stored, copy.state.maps.values())
    if why:
        raise StateError(
            f"State {copy.state.name} can't be read: {why}. Run the version that wrote it; or `headrace tables export` "
            f"with that version, `headrace tables reset {copy.state.name}` and import what still fits with this one"
        )


class TableManager(FaustTableManager):
    """Faust's, with our restore."""

    async def on_start(self) -> None:
        # Faust sleeps a second here, for tables that are declared late; ours are all declared at import.
        if not self.should_stop:
            await self._update_channels()
            await self.recovery.start()

    @property
    def recovery(self) -> Any:
        """The restore of this app."""
        if self._recovery is None:
            restore: Any = Restore(self.app, self, beacon=self.beacon, loop=self.loop)
            self._recovery = restore
        return self._recovery


async def catch_up(delivery: "Delivery", state: State, tp: TopicPartition, *, restored: bool = True) -> None:
    """Brings one open local copy up to its changelog: for a lane that begins again.

    Args:
        delivery: of this worker.
        state: of the lane's stage.
        tp: the changelog partition.
        restored: False: it couldn't be judged at the assignment, so it is now.

    Raises:
        KafkaError, StateError: retryable.
    """
    copy = Copy(state, tp)
    async with changelog_reader(delivery.settings.kafka) as reader:
        await reader.measure([copy])
        await in_thread(state.settle, copy.partition)
        if not restored:
            await judge(delivery, copy)
        elif not await _is_ahead(delivery, copy):
            copy.locate()
        await reader.catch_up([copy])
    check_kinds(copy)
