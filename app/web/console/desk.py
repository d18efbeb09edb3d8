"""The reviewers' desk: what waits, who looks at what, and decisions on their way. One a console process."""

import time
from typing import Any

import msgspec

from agents.review import STAGE
from app.delivery.partitions import partition_for
from app.settings import Settings
from app.web import tables
from app.web.console.looks import Looks
from app.web.workers import Heard, Workers, heard
from app.web.writer import Writer
from models.reviews import Decision
from tables.reviews import REVIEWS

__all__ = ["Desk", "Waiting"]

CLAIM_S = 300.0
"""What somebody looks at isn't shown to others for so long: a person who left gives it back by then."""
SETTLES_S = 60.0
"""A decision is in State within a second. What was decided here isn't shown again for so long, should State lag."""
SHARED_S = 2.5
"""Pages on which nothing waits look every 3 s, and share one look at the workers."""


class Claim(msgspec.Struct, frozen=True):
    """Somebody looks at an event."""

    session: str
    page: str
    until: float
    """time.monotonic"""


class Waiting(msgspec.Struct, kw_only=True):
    """The queue, from its oldest end."""

    reviews: list[dict[str, Any]]
    """As `GET /reviews` of a worker has them."""
    waiting: int
    """All that wait, those that somebody looks at too."""
    restoring: list[int]
    """Partitions whose part is missing."""
    silent: list[str]
    """Workers that didn't answer, refused or failed, and why."""


class Desk:
    """Hands out reviews, each to one person at a time, and takes decisions.

    Args:
        settings: the tree.
        workers: who has the queue.
        writer: how decisions get to Kafka.
    """

    def __init__(self, settings: Settings, workers: Workers, writer: Writer) -> None:
        self._settings, self._workers, self._writer = settings, workers, writer
        self._topic = settings.topic("review-decisions")
        self._claims: dict[str, Claim] = {}
        """By event."""
        self._decided: dict[str, float] = {}
        """Events decided here, and until when State may not know it yet."""
        self._looks = Looks(SHARED_S)

    # -- the queue -------------------------------------------------------------------------------------------------

    async def waiting(self, session: str, *, task: str = "", limit: int = 20, fresh: bool = True) -> Waiting:
        """The oldest reviews that nobody else looks at.

        Args:
            session: whose page asks.
            task: only of this one; empty: of all.
            limit: how many.
            fresh: else what the workers said to another page within `SHARED_S` is as good.

        Raises:
            Problem: 503, no worker is alive.
        """
        now = time.monotonic()
        self._claims = {event_id: claim for event_id, claim in self._claims.items() if claim.until > now}
        self._decided = {event_id: until for event_id, until in self._decided.items() if until > now}
        hidden = len(self._claims) + len(self._decided)
        answers = await self._ask(task, min(tables.MAX_PAGE, limit + hidden), fresh=fresh)
        good = [body for _, body in answers.bodies]
        rows = sorted((row for each in good for row in each["reviews"]), key=lambda row: int(row["at_ms"]))
        return Waiting(
            reviews=[row for row in rows if self._free(row["review"]["event_id"], session)][:limit],
            waiting=sum(each["waiting"] for each in good),
            restoring=sorted({partition for each in good for partition in each["restoring"]}),
            silent=[str(each) for each in answers.silent],
        )

    async def _ask(self, task: str, limit: int, *, fresh: bool) -> Heard:
        params = {"limit": str(limit), **({"task": task} if task else {})}
        return await self._looks.look(task, lambda: self._heard(params), size=limit, fresh=fresh)

    async def _heard(self, params: dict[str, str]) -> Heard:
        return heard(await self._workers.ask_all("/reviews", params))

    def _free(self, event_id: str, session: str) -> bool:
        claim = self._claims.get(event_id)
        mine = claim is None or claim.session == session or claim.until <= time.monotonic()
        return mine and event_id not in self._decided

    def claim(self, event_id: str, session: str, page: str) -> bool:
        """Takes an event to look at; False when it is decided, or somebody else looks at it. Of one's pages the last has it."""
        if not self._free(event_id, session):
            return False
        self._claims[event_id] = Claim(session, page, time.monotonic() + CLAIM_S)
        return True

    def holds(self, event_id: str, session: str) -> bool:
        """Whether somebody's claim of an event hasn't run out."""
        claim = self._claims.get(event_id)
        return claim is not None and claim.session == session and claim.until > time.monotonic()

    def release(self, page: str) -> None:
        """Gives back what a page looks at."""
        self._claims = {event_id: claim for event_id, claim in self._claims.items() if claim.page != page}

    async def find(self, event_id: str) -> dict[str, Any]:
        """The review of an event with its decision.

        Raises:
            Problem: no worker is alive.
            LookupError: it isn't known: its worker doesn't answer, its partition is being restored, or it isn't kept.
        """
        found = await tables.find(self._workers.ask_all, STAGE, REVIEWS.name, event_id)
        if not found.rows:
            raise LookupError(", ".join(map(str, found.silent)) or "no worker has this review now")
        review: dict[str, Any] = found.rows[0]["value"]
        return review

    # -- decisions -------------------------------------------------------------------------------------------------

    def taken(self, event_id: str) -> None:
        """An event is decided, or about to be: it isn't shown any more."""
        self._decided[event_id] = time.monotonic() + SETTLES_S
        self._claims.pop(event_id, None)

    def settling(self, event_id: str) -> bool:
        """Whether it was decided here so lately that nobody else of this console can have decided it since."""
        return self._decided.get(event_id, float("-inf")) > time.monotonic()

    def given_back(self, event_id: str) -> None:
        """It waits again: its decision was undone, or couldn't be written."""
        self._decided.pop(event_id, None)

    async def write(self, decision: Decision) -> None:
        """Hands a decision to the stage `review`, and waits until Kafka has acked it.

        Raises:
            Problem: Kafka hasn't been reached yet.
            KafkaError: it isn't known to be stored.
            TimeoutError: likewise.
        """
        key = decision.event_id.encode()
        partition = partition_for(key, self._writer.partitions(self._topic))
        await self._writer.send_aside(self._topic, key, msgspec.json.encode(decision), partition)
