"""Dead letters for the console: grouped within a budget, one looked into, and sent back or discarded.

The topic has no index, so a group is found by reading. The newest records are read first, a piece of each partition in
turn, and what was found is shown meanwhile; a budget of records, bytes and seconds ends it.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from dataclasses import field as made
from typing import Any

import aiokafka
from aiokafka.errors import KafkaError
from aiokafka.structs import ConsumerRecord, TopicPartition

from agents.redrive import Marker, Redrive, Tally, editable_of, marker_of, may_edit, targets_of
from app import topics
from app.delivery.probe import probe, read_tail, record_at
from app.errors import HeadraceError
from app.logic.redrive import DeadLetter, Selection, examine, position_of
from app.settings import Settings
from models.events import Headers

__all__ = ["Budget", "Found", "Group", "Letters", "Opened", "Row", "Wanted"]

PIECE_RECORDS = 1000
"""Offsets read of a partition at a time: a fraction of a second, so that it can be ended and shows what it found."""
ROWS_KEPT = 200
"""Newest dead letters of a group that are shown one by one."""
MAX_GROUPS = 500
"""Further ones are counted together: headers of a stranger's records may say anything."""
SHOWN_CHARS = 200
MAX_ATTEMPTS = 5
"""What came back so often isn't sent again before somebody finds out why; as `headrace redrive` has it."""


Progress = Callable[[int, int], None]
"""Told how many records were looked at, and how many there are."""


def _no_progress(done: int, total: int) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a scan may cost."""

    rows: int = 200_000
    bytes: int = 128 << 20
    seconds: float = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which dead letters are shown."""

    text: str = ""
    """In the event's id, the key, the value or the message."""
    since_ms: int | None = None
    handled: bool = False
    """Also those that were sent back or discarded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One dead letter in short."""

    position: str
    at_ms: int
    event_id: str
    key: str
    message: str
    attempt: int
    size_bytes: int | None
    """None: it has no value."""
    handled: bool


@dataclass(slots=True, kw_only=True)
class Group:
    """Dead letters of one reason, field, stage and topic."""

    reason: str
    field: str
    stage: str
    topic: str
    """Where they'd be sent back to; empty when they can't be."""
    mixed: bool = False
    """Of all other reasons, fields, stages and topics, that there were too many of."""
    count: int = 0
    first_ms: int = 0
    last_ms: int = 0
    rows: list[Row] = made(default_factory=list)
    """The newest."""

    @property
    def key(self) -> tuple[str, ...]:
        """Names it, also in the next scan."""
        return () if self.mixed else (self.reason, self.field, self.stage, self.topic)

    def selection(self, wanted: Wanted) -> Selection | None:
        """What an action on the whole group is about; None where that can't be said.

        Without a search text it is all that there was when the scan met the newest, also what the scan didn't come to. With
        one it is the rows that are shown, if these are all that were found.
        """
        if self.mixed:
            return None
        if not wanted.text:
            return Selection(
                reasons=frozenset([self.reason]), fields=frozenset([self.field]), stages=frozenset([self.stage]),
                topics=frozenset([self.topic]), since_ms=wanted.since_ms, until_ms=self.last_ms + 1,
            )  # fmt: skip
        return Selection(ids=frozenset(row.position for row in self.rows)) if self.count == len(self.rows) else None


@dataclass(slots=True, kw_only=True)
class Found:
    """What a scan has found so far."""

    groups: list[Group] = made(default_factory=list)
    """The largest first."""
    read: int = 0
    total: int = 0
    """Records in the topic, about: markers of transactions count too."""
    bytes: int = 0
    seconds: float = 0.0
    partial: str = ""
    """Why it ended before it had read all: `rows`, `bytes`, `seconds`, `kafka`. Empty while it goes on, and when it has."""
    done: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """One dead letter, whole."""

    letter: DeadLetter
    headers: Headers
    """All, as they stand on the dead letter topic."""
    marker: Marker | None
    """What became of it already."""

    @property
    def text(self) -> str | None:
        """The value as text; None where it has none, or isn't UTF-8."""
        try:
            return None if self.letter.value is None else self.letter.value.decode()
        except UnicodeDecodeError:
            return None


class Letters:
    """The dead letters of a deployment.

    Args:
        settings: for Kafka and topics.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._dead, self._redriven = settings.topic("dead-letter"), settings.topic("redriven")
        self._targets, self._editable = targets_of(settings), editable_of(settings)
        self._decisions = settings.topic("review-decisions")
        self._markers: dict[str, Marker] = {}
        self._markers_next = 0
        self._writing = asyncio.Lock()

    # -- looking ---------------------------------------------------------------------------------------------------

    async def scan(self, wanted: Wanted, budget: Budget) -> AsyncGenerator[Found, None]:
        """Groups what there is, the newest first. Each step gives the same object, with more in it.

        Closing the iterator ends it. When Kafka fails, what was found so far stands and `partial` says so.
        """
        found, groups, begun = Found(), dict[tuple[str, ...], Group](), time.monotonic()
        try:
            async with probe(self._settings.kafka) as consumer:
                await self._learn_markers(consumer)
                ranges = await self._ranges(consumer, wanted)
                found.total = sum(end - start for start, end in ranges.values())
                async for letter in self._newest(consumer, ranges):
                    found.seconds = time.monotonic() - begun
                    if letter is not None:
                        found.read, found.bytes = found.read + 1, found.bytes + len(letter.value or b"")
                        self._group(groups, letter, wanted)
                        found.partial = _spent(found, budget)
                    elif found.seconds >= budget.seconds:
                        found.partial = "seconds"
                    if found.partial:
                        break
                    if letter is None:
                        found.groups = _sorted(groups)
                        yield found
        except (HeadraceError, KafkaError, OSError, TimeoutError):
            found.partial = "kafka"
        found.groups, found.seconds, found.done = _sorted(groups), time.monotonic() - begun, True
        yield found

    async def _ranges(
        self, consumer: aiokafka.AIOKafkaConsumer, wanted: Wanted
    ) -> dict[TopicPartition, tuple[int, int]]:
        count = (await topics.counts(self._settings, [self._dead])).get(self._dead, 0)
        tps = [TopicPartition(self._dead, partition) for partition in range(count)]
        if not tps:
            return {}
        starts, ends = dict(await consumer.beginning_offsets(tps)), await consumer.end_offsets(tps)
        if wanted.since_ms is not None:
            later = await consumer.offsets_for_times(dict.fromkeys(tps, wanted.since_ms))
            starts = {tp: ends[tp] if later.get(tp) is None else max(starts[tp], later[tp].offset) for tp in tps}
        return {tp: (starts[tp], ends[tp]) for tp in tps if starts[tp] < ends[tp]}

    async def _newest(
        self, consumer: aiokafka.AIOKafkaConsumer, ranges: dict[TopicPartition, tuple[int, int]]
    ) -> AsyncIterator[DeadLetter | None]:
        """Dead letters from the end backwards, a piece of each partition in turn; None after each piece."""
        left = dict(ranges)
        while left:
            for tp, (start, end) in list(left.items()):
                begin = max(start, end - PIECE_RECORDS)
                async for record in read_tail(consumer, tp, begin, end):
                    yield examine(record, self._targets)
                yield None
                if begin > start:
                    left[tp] = start, begin
                else:
                    del left[tp]

    def _group(self, groups: dict[tuple[str, ...], Group], letter: DeadLetter, wanted: Wanted) -> None:
        handled = self._handled(letter) is not None
        if (handled and not wanted.handled) or not _has(letter, wanted.text):
            return
        new = Group(reason=letter.reason, field=letter.field, stage=letter.stage, topic=letter.topic)
        if new.key not in groups and len(groups) >= MAX_GROUPS:
            new = Group(reason="", field="", stage="", topic="", mixed=True)
        group = groups.setdefault(new.key, new)
        group.count += 1
        group.first_ms = min(group.first_ms or letter.at_ms, letter.at_ms)
        group.last_ms = max(group.last_ms, letter.at_ms)
        group.rows.append(_row(letter, handled=handled))
        if len(group.rows) >= 2 * ROWS_KEPT:
            group.rows = _newest_rows(group.rows)

    def _handled(self, letter: DeadLetter) -> Marker | None:
        marker = self._markers.get(letter.position)
        return marker if marker is not None and marker.letter_ms == letter.at_ms else None

    async def _learn_markers(self, consumer: aiokafka.AIOKafkaConsumer) -> None:
        """Reads what was added to the markers since the last time."""
        if self._redriven not in await consumer.topics():
            return
        tp = TopicPartition(self._redriven, 0)
        start, end = (await consumer.beginning_offsets([tp]))[tp], (await consumer.end_offsets([tp]))[tp]
        if end < self._markers_next:  # the topic was made anew
            self._markers, self._markers_next = {}, 0
        async for record in read_tail(consumer, tp, max(start, self._markers_next), end):
            self._take_marker(record)
        self._markers_next = end

    def _take_marker(self, record: ConsumerRecord[bytes, bytes]) -> None:
        found = marker_of(record)
        if found is None:
            return
        position, marker = found
        if marker is None:
            self._markers.pop(position, None)
        else:
            self._markers[position] = marker

    async def open(self, position: str) -> Opened | None:
        """One dead letter; None where there is none at that position (any more)."""
        place = position_of(position)
        if place is None:
            return None
        tp, offset = TopicPartition(self._dead, place[0]), place[1]
        if tp.partition >= (await topics.counts(self._settings, [self._dead])).get(self._dead, 0):
            return None
        async with probe(self._settings.kafka) as consumer:
            await self._learn_markers(consumer)
            start, end = (await consumer.beginning_offsets([tp]))[tp], (await consumer.end_offsets([tp]))[tp]
            record = await record_at(consumer, tp, offset, end) if start <= offset < end else None
        if record is None:
            return None
        letter = examine(record, self._targets)
        return Opened(letter=letter, headers=list(record.headers), marker=self._handled(letter))

    # -- acting ----------------------------------------------------------------------------------------------------

    def withheld(self, *, may_review: bool) -> frozenset[str]:
        """Topics that somebody may send nothing to: what goes to the reviewers' is a decision, or opens a review."""
        return frozenset() if may_review else frozenset([self._decisions])

    def editable(self, letter: DeadLetter) -> bool:
        """Whether it may be sent back with another value, by who may send it back."""
        return may_edit(letter, self._editable)

    async def look(
        self, selection: Selection, *, may_review: bool, discard: bool = False, progress: Progress = _no_progress
    ) -> Tally:
        """What `redrive` (or `discard`) would move. Writes nothing."""
        return await self._run(selection, progress, withheld=self.withheld(may_review=may_review)).look(discard=discard)

    async def redrive(
        self,
        selection: Selection,
        *,
        may_review: bool,
        edited: Mapping[str, bytes | None] | None = None,
        progress: Progress = _no_progress,
    ) -> Tally:
        """Sends back what is selected, each once; one run at a time.

        Args:
            selection: which.
            may_review: whoever asks may decide reviews too.
            edited: other values, by position.
            progress: how many records were looked at, of how many.

        Raises:
            BrokerError: Kafka fails, or another program began a redrive; what was moved is marked. Retryable.
        """
        async with self._writing:
            return await self._run(
                selection, progress, withheld=self.withheld(may_review=may_review), edited=edited
            ).run()

    async def discard(self, selection: Selection, *, progress: Progress = _no_progress) -> Tally:
        """Notes that nothing is to be done with what is selected: it isn't shown and isn't sent back any more.

        Raises:
            BrokerError: as `redrive`.
        """
        async with self._writing:
            return await self._run(selection, progress).discard()

    def _run(self, selection: Selection, progress: Progress, **rules: Any) -> Redrive:
        return Redrive(self._settings, selection, max_attempts=MAX_ATTEMPTS, progress=progress, **rules)


def _spent(found: Found, budget: Budget) -> str:
    if found.read >= budget.rows:
        return "rows"
    return "bytes" if found.bytes >= budget.bytes else ""


def _has(letter: DeadLetter, text: str) -> bool:
    if not text:
        return True
    raw = text.encode("utf-8", "surrogatepass")
    return (
        raw in (letter.value or b"") or raw in (letter.key or b"") or text in letter.message or text == letter.position
    )


def _row(letter: DeadLetter, *, handled: bool) -> Row:
    return Row(
        position=letter.position, at_ms=letter.at_ms, event_id=letter.event_id[:SHOWN_CHARS],
        key=(letter.key or b"").decode("utf-8", "backslashreplace")[:SHOWN_CHARS], message=letter.message[:SHOWN_CHARS],
        attempt=letter.attempt, size_bytes=None if letter.value is None else len(letter.value), handled=handled,
    )  # fmt: skip


def _newest_rows(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row.at_ms, reverse=True)[:ROWS_KEPT]


def _sorted(groups: dict[tuple[str, ...], Group]) -> list[Group]:
    for group in groups.values():
        group.rows = _newest_rows(group.rows)
    return sorted(groups.values(), key=lambda group: (-group.count, group.reason, group.field))
