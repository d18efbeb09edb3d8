"""Where a sink's partitions stand, and whether each is still the topic that was written.

A topic that was deleted and made anew has the same name and offsets, and other records. So reading goes on with the last record
that was written, to see it again: another one there, or none, ends the sink.
"""

import contextlib
import logging
from collections.abc import Awaitable, Callable

from aiokafka.errors import IllegalStateError, TopicAuthorizationFailedError
from aiokafka.structs import TopicPartition

from app import metrics
from app.errors import SinkError
from app.sinks.batch import Mark, Place, mark_of
from models.events import Record

__all__ = ["Positions"]

log = logging.getLogger("headrace.sinks")

ANEW = (
    "the topic was made anew or cut. To take it from its beginning, delete the sink's rows in headrace_positions, and the "
    "topic's table"
)


class Positions:
    """Of the partitions that this process has taken up.

    Args:
        sink: its name.
        cleanup_policy: asks Kafka for a topic's.
    """

    def __init__(self, sink: str, cleanup_policy: Callable[[str], Awaitable[str]]) -> None:
        self._sink, self._cleanup_policy = sink, cleanup_policy
        self.at: dict[Place, int] = {}
        """Where they stand in the database."""
        self.generation = 0
        """Changes whenever what was gathered isn't to be written by this process any more."""
        self._marks: dict[Place, Mark] = {}
        """The last records that were written, of partitions that are read from there on: the first to come must be that."""
        self._lost_to: dict[Place, int] = {}
        """Up to where lost records are counted."""

    def forget(self) -> None:
        """Partitions moved, or may be others now: the database is to be asked anew."""
        for topic, partition in self.at:
            metrics.SINK_LAG.remove(self._sink, topic, partition)
        self.at.clear()
        self.generation += 1

    def begin(self, place: Place, at: int, mark: Mark | None, start: int, end: int) -> int:
        """Where reading goes on in a partition whose position is `at`: with the last record that was written, to see it again.

        Raises:
            SinkError: it is another topic than the one that was written.
        """
        topic, partition = place
        if at > end:
            raise SinkError(
                f"sink {self._sink}: {topic} partition {partition} ends at {end}, and stands at {at}: {ANEW}"
            )
        if (lost := start - max(at, self._lost_to.get(place, 0))) > 0:
            self._lost_to[place] = start
            metrics.RECORDS_LOST.labels(f"sink-{self._sink}", partition).inc(lost)
            log.error(
                "sink %s: %s partition %d: up to %d records were removed by retention before they were written",
                self._sink, topic, partition, lost,
            )  # fmt: skip
        self.at[place] = at
        if mark is None or not start <= mark.offset < at:
            self._marks.pop(place, None)
            return max(at, start)
        self._marks[place] = mark
        return mark.offset

    def recognise(self, record: Record) -> None:
        """Looks at a record below the position: it must be the last that was written.

        Raises:
            SinkError: it is another.
        """
        if self._marks.pop((record.topic, record.partition), None) != mark_of(record):
            raise SinkError(
                f"sink {self._sink}: {record.topic} partition {record.partition}: another record stands at offset "
                f"{record.offset} than the one that was written: {ANEW}"
            )

    async def passed(self, place: Place, position: int) -> None:
        """Finds out that no record stands where the last one was written: a transaction's marker may, in another topic.

        Raises:
            SinkError: the topic isn't compacted, so it is another. Where that may not be asked, nothing is known.
        """
        mark = self._marks.get(place)
        if mark is None or position <= mark.offset:
            return
        del self._marks[place]
        topic, partition = place
        with contextlib.suppress(TopicAuthorizationFailedError):
            if "compact" not in await self._cleanup_policy(topic):
                raise SinkError(
                    f"sink {self._sink}: {topic} partition {partition}: no record stands at offset {mark.offset} any more: "
                    f"{ANEW}"
                )

    def measure(self, end_of: Callable[[TopicPartition], int | None]) -> None:
        """Shows each partition's lag.

        Args:
            end_of: a partition's last stable offset; None: it isn't known yet.
        """
        for (topic, partition), at in self.at.items():
            try:
                end = end_of(TopicPartition(topic, partition))
            except IllegalStateError:  # it has just been moved
                continue
            metrics.SINK_LAG.labels(self._sink, topic, partition).set(max(0, (end or 0) - at))
