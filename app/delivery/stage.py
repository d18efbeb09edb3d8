"""A stage: one input topic, one State, and the function that decides on a batch."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from app import metrics
from app.delivery.outbox import Outbox
from app.delivery.state import State, View
from app.errors import StateError
from models.events import Record

if TYPE_CHECKING:
    from app.delivery.lane import Lane
    from app.delivery.runtime import Delivery
    from app.delivery.transaction import Transaction

__all__ = ["Batch", "Logic", "Records", "Stage"]

log = logging.getLogger("headrace.delivery")

Records = Sequence[Record]


@dataclass(slots=True)
class Batch:
    """What an agent gets: records of one partition in order, State to read, and an outbox."""

    records: Records
    partition: int
    state: View
    out: Outbox


class Logic(Protocol):
    """What a stage does. Synchronous and quick: slow work is put into State and done beside the lane."""

    def decide(self, batch: Batch) -> None:
        """Decides on a batch. An exception makes it run again record by record."""

    def dead(self, batch: Batch, record: Record, error: Exception) -> None:
        """Puts a record that failed alone into the outbox as a dead letter."""

    def ready(self, lane: "Lane") -> None:
        """The lane works from State now; also called when it had to begin again. Takes up open work."""

    def closed(self, lane: "Lane") -> None:
        """The lane is given up: cuts off what still runs for it."""

    def committed(self, lane: "Lane") -> None:
        """A batch of the lane took effect."""

    def tick(self, lane: "Lane", now_ms: int) -> None:
        """Called about once a second for a lane that works: timers."""

    def room(self, lane: "Lane") -> bool:
        """False: take no more input for now. Called from the consumer's thread."""


class Stage:
    """Ties a topic, a State and a Logic together."""

    def __init__(
        self, delivery: "Delivery", *, name: str, topic: str, state: State, logic: Logic, start: str = "earliest"
    ) -> None:
        self.delivery, self.name, self.topic, self.state, self.logic = delivery, name, topic, state, logic
        self.start = start
        self.changelog: str = state.changelog_topic.get_topic_name()

    def transactional_id(self, partition: int) -> str:
        """Named by stage and partition, not by worker or role: that is what fences a former owner."""
        return f"{self.delivery.settings.topic('headrace')}-{self.state.name}-{partition}"

    def decide(self, records: Records, lane: "Lane") -> Outbox:
        """Runs the logic on a batch; when it raises, on each record alone."""
        batch = Batch(records, lane.tp.partition, lane.view, Outbox())
        try:
            self.logic.decide(batch)
        except StateError:
            raise  # it isn't the records' fault: the lane begins again
        except Exception:
            log.exception(
                "%s, partition %d of %s, offsets %d to %d: the batch failed; taking its records one by one",
                self.name,
                lane.tp.partition,
                self.topic,
                records[0].offset,
                records[-1].offset,
            )
            batch = self._one_by_one(records, lane)
        return batch.out

    def _one_by_one(self, records: Records, lane: "Lane") -> Batch:
        whole = Batch(records, lane.tp.partition, lane.view, Outbox())
        number = -1  # held apart from the numbers of committed batches, and released below
        lane.view.hold(whole.out.local, number)  # each record sees what those before it wrote
        for record in records:
            one = Batch([record], lane.tp.partition, lane.view, Outbox(whole.out.now_ms))
            try:
                self.logic.decide(one)
            except StateError:
                raise
            except Exception as error:
                log.exception(
                    "%s, partition %d of %s, offset %d: goes to the dead letter topic",
                    self.name,
                    lane.tp.partition,
                    self.topic,
                    record.offset,
                )
                one = Batch([record], lane.tp.partition, lane.view, Outbox(whole.out.now_ms))
                self.logic.dead(one, record, error)
            whole.out.merge(one.out)
        lane.view.release(number)
        return whole

    def committed(self, lane: "Lane", transaction: "Transaction") -> None:
        """Counts what took effect, and tells the logic."""
        if transaction.records:
            metrics.RECORDS_IN.labels(self.name).inc(transaction.records)
        for (outcome, detail), n in transaction.out.counts.items():
            metrics.OUTCOMES.labels(self.name, outcome, detail).inc(n)
        for tier, seconds in transaction.out.latencies.items():
            metrics.observe_many(metrics.APPEND_TO_RESULT_SECONDS.labels(tier), seconds)
        for (task, tier), (events, chars) in transaction.out.decided.items():
            self.delivery.decided(task, tier, events, chars)
        for (topic, _), rows in transaction.out.sends.items():
            metrics.RECORDS_OUT.labels(self.name, topic).inc(len(rows))
        self.logic.committed(lane)

    def lane_ready(self, lane: "Lane") -> None:
        self.logic.ready(lane)

    def lane_closed(self, lane: "Lane") -> None:
        self.logic.closed(lane)

    def room(self, lane: "Lane") -> bool:
        return self.logic.room(lane)
