"""Dead letters for the console: grouped within a budget, one looked into, and sent back or discarded.

The topic has no index, so a group is found by reading, the newest records first (see `app.web.scan`).
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from dataclasses import field as made
from typing import Any

from aiokafka.structs import ConsumerRecord

from agents.markers import Marker, Markers
from agents.redrive import MAX_ATTEMPTS, OnProgress, Redrive, Tally, editable_of, may_edit, targets_of
from app.kafka import KAFKA_FAILURES
from app.logic.redrive import DeadLetter, Selection, examine, position_of
from app.settings import Settings
from app.web.history import History
from app.web.scan import Asked, Budget, Progress, scan
from models.events import Headers

__all__ = ["Found", "Group", "Letters", "Moving", "Opened", "Row", "Wanted"]

ROWS_KEPT = 200
"""Newest dead letters of a group that are shown one by one."""
MAX_GROUPS = 500
"""Further ones are counted together: headers of a stranger's records may say anything."""
SHOWN_CHARS = 200


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
    kept: list[Row] = made(default_factory=list)
    """Those that may be among the newest."""

    @property
    def rows(self) -> list[Row]:
        """The newest, in order."""
        return sorted(self.kept, key=lambda row: row.at_ms, reverse=True)[:ROWS_KEPT]

    def take(self, row: Row) -> None:
        """Counts one more."""
        self.count += 1
        self.first_ms = min(self.first_ms or row.at_ms, row.at_ms)
        self.last_ms = max(self.last_ms, row.at_ms)
        self.kept.append(row)
        if len(self.kept) >= 2 * ROWS_KEPT:
            self.kept = self.rows

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
        shown = frozenset(row.position for row in self.rows)
        return Selection(ids=shown) if self.count == len(shown) else None


@dataclass(slots=True, kw_only=True)
class Found:
    """What a scan has found so far."""

    by_key: dict[tuple[str, ...], Group] = made(default_factory=dict)
    progress: Progress = made(default_factory=Progress)
    partial: str = ""
    """Why it ended before it had read all: `records`, `bytes`, `seconds`, `kafka`. Empty while it goes on, and when it has."""
    done: bool = False

    @property
    def groups(self) -> list[Group]:
        """The largest first."""
        return sorted(self.by_key.values(), key=lambda group: (-group.count, group.reason, group.field))


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


@dataclass(slots=True)
class Moving:
    """A run that moves dead letters: how far it is, for whoever looks, and what stops it."""

    stop: asyncio.Event
    done: int = 0
    total: int = 0


class Letters:
    """The dead letters of a deployment.

    Args:
        settings: for Kafka and topics.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._dead = settings.topic("dead-letter")
        self._targets, self._editable = targets_of(settings), editable_of(settings)
        self._decisions = settings.topic("review-decisions")
        self._markers = Markers(settings)
        self._writing = asyncio.Lock()
        self.moving: Moving | None = None
        """The run of this process that goes on, whichever page began it."""

    # -- looking ---------------------------------------------------------------------------------------------------

    async def scan(self, wanted: Wanted, budget: Budget, show: Callable[[Found], None]) -> Found:
        """Groups what there is, the newest first.

        When Kafka fails, what was found so far stands and `partial` says so.

        Args:
            wanted: which are meant.
            budget: records, bytes and seconds.
            show: called now and then with what was found so far: the same object each time, with more in it.
        """
        found = Found()

        def take(records: list[ConsumerRecord[bytes, bytes]], progress: Progress) -> None:
            for record in records:
                self._group(found.by_key, examine(record, self._targets), wanted)
            found.progress = progress
            show(found)

        try:
            await self._markers.read()
            asked = Asked(topic=self._dead, since_ms=wanted.since_ms, rows=0)
            found.progress = await scan(self._settings, asked, budget, take)
            found.partial = "" if found.progress.why == "complete" else found.progress.why
        except KAFKA_FAILURES:
            found.partial = "kafka"
        found.done = True
        return found

    def _group(self, groups: dict[tuple[str, ...], Group], letter: DeadLetter, wanted: Wanted) -> None:
        if (self._markers.of(letter) is not None and not wanted.handled) or not _has(letter, wanted.text):
            return
        new = Group(reason=letter.reason, field=letter.field, stage=letter.stage, topic=letter.topic)
        if new.key not in groups and len(groups) >= MAX_GROUPS:
            new = Group(reason="", field="", stage="", topic="", mixed=True)
        groups.setdefault(new.key, new).take(_row(letter))

    async def open(self, position: str) -> Opened | None:
        """One dead letter; None where there is none at that position (any more)."""
        place = position_of(position)
        if place is None:
            return None
        await self._markers.read()
        async with History(self._settings) as history:
            record = await history.at(self._dead, *place)
        if record is None:
            return None
        letter = examine(record, self._targets)
        return Opened(letter=letter, headers=list(record.headers), marker=self._markers.of(letter))

    # -- acting ----------------------------------------------------------------------------------------------------

    def withheld(self, *, may_review: bool) -> frozenset[str]:
        """Topics that somebody may send nothing to: what goes to the reviewers' is a decision, or opens a review."""
        return frozenset() if may_review else frozenset([self._decisions])

    def editable(self, letter: DeadLetter) -> bool:
        """Whether it may be sent back with another value, by who may send it back."""
        return may_edit(letter, self._editable)

    async def look(
        self,
        selection: Selection,
        *,
        may_review: bool,
        discard: bool = False,
        progress: OnProgress | None = None,
        stop: asyncio.Event | None = None,
    ) -> Tally:
        """What `redrive` (or `discard`) would move. Writes nothing."""
        run = self._run(selection, progress, stop or asyncio.Event(), withheld=self.withheld(may_review=may_review))
        return await run.look(discard=discard)

    async def redrive(
        self,
        selection: Selection,
        *,
        may_review: bool,
        edited: Mapping[str, bytes | None] | None = None,
        progress: OnProgress | None = None,
        stop: asyncio.Event | None = None,
    ) -> Tally:
        """Sends back what is selected, each once; one run at a time.

        Args:
            selection: which.
            may_review: whoever asks may decide reviews too.
            edited: other values, by position.
            progress: how many records were looked at, of how many.
            stop: once it is set, the run ends after the transaction under way, or doesn't begin.

        Raises:
            BrokerError: Kafka fails, or another program began a redrive; what was moved is marked. Retryable.
        """
        stop = stop or asyncio.Event()  # other pages may set it, see `moving`
        run = self._run(
            selection, self._shown(progress), stop, withheld=self.withheld(may_review=may_review), edited=edited
        )
        return await self._in_turn(run.run, stop)

    async def discard(
        self, selection: Selection, *, progress: OnProgress | None = None, stop: asyncio.Event | None = None
    ) -> Tally:
        """Notes that nothing is to be done with what is selected: it isn't shown and isn't sent back any more.

        Raises:
            BrokerError: as `redrive`.
        """
        stop = stop or asyncio.Event()  # as in `redrive`
        return await self._in_turn(self._run(selection, self._shown(progress), stop).discard, stop)

    def _run(self, selection: Selection, progress: OnProgress | None, stop: asyncio.Event, **rules: Any) -> Redrive:
        return Redrive(self._settings, selection, max_attempts=MAX_ATTEMPTS, progress=progress, stop=stop, **rules)

    async def _in_turn(self, work: Callable[[], Awaitable[Tally]], stop: asyncio.Event) -> Tally:
        async with self._turn(stop) as ours:
            if not ours:
                return Tally(stopped=True)
            self.moving = Moving(stop)
            try:
                return await work()
            finally:
                self.moving = None

    def _shown(self, progress: OnProgress | None) -> OnProgress:
        """Tells other pages too."""

        def tell(done: int, total: int) -> None:
            if self.moving is not None:
                self.moving.done, self.moving.total = done, total
            if progress is not None:
                progress(done, total)

        return tell

    @contextlib.asynccontextmanager
    async def _turn(self, stop: asyncio.Event) -> AsyncIterator[bool]:
        """Waits until no other run of this process goes on; False: it was stopped meanwhile."""
        turn, stopped = asyncio.ensure_future(self._writing.acquire()), asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait((turn, stopped), return_when=asyncio.FIRST_COMPLETED)
            yield turn.done()
        finally:
            stopped.cancel()
            if not turn.cancel():  # it was done: the lock is ours
                self._writing.release()


def _has(letter: DeadLetter, text: str) -> bool:
    if not text:
        return True
    raw = text.encode("utf-8", "surrogatepass")
    return (
        raw in (letter.value or b"") or raw in (letter.key or b"") or text in letter.message or text == letter.position
    )


def _row(letter: DeadLetter) -> Row:
    return Row(
        position=letter.position, at_ms=letter.at_ms, event_id=letter.event_id[:SHOWN_CHARS],
        key=(letter.key or b"").decode("utf-8", "backslashreplace")[:SHOWN_CHARS], message=letter.message[:SHOWN_CHARS],
        attempt=letter.attempt, size_bytes=None if letter.value is None else len(letter.value),
    )  # fmt: skip
