"""Open items of this worker's partitions: taken up from State, and closed with their outcome in one transaction."""

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import msgspec
from aiokafka.structs import TopicPartition

from agents.answers import model_result, review_of
from agents.pools import Open
from app.delivery.lane import Lane, Work
from app.delivery.outbox import Outbox
from app.delivery.state import View
from app.settings import Settings
from models.events import Answer
from models.results import Tier
from models.reviews import Opened
from tables.open_work import ANSWERED, OPEN, Answered, OpenItem

__all__ = ["OpenItems", "now_ms"]

_json = msgspec.json.Encoder().encode
_pack = msgspec.msgpack.Encoder().encode


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return int(time.time() * 1000)


class _Taken:
    """What is taken up of one partition."""

    __slots__ = ("closing", "highest", "known", "lane")

    def __init__(self) -> None:
        self.lane: Lane | None = None
        """None: it was given up. Most partitions come back with the next assignment, and calls go on meanwhile."""
        self.known: dict[bytes, Open] = {}
        """By key, and so in the order of their offsets."""
        self.highest = b""
        """Newer keys aren't looked at yet."""
        self.closing: set[bytes] = set()
        """Answered items whose transaction isn't known to be committed: not asked again."""


class OpenItems:
    """What State holds as open, in memory.

    Args:
        settings: topics and tasks.
        opened: told of each item that is taken up.
        gone: told of each that isn't ours any more, or has its outcome by age.
    """

    def __init__(self, settings: Settings, opened: Callable[[Open], None], gone: Callable[[Open], None]) -> None:
        self._results, self._reviews = settings.topic("ai-results"), settings.topic("manual-review")
        self._decisions = settings.topic("review-decisions") if settings.reviews.keep_s else ""
        self._opened, self._gone = opened, gone
        self.use(settings)
        self._partitions: dict[TopicPartition, _Taken] = {}

    def use(self, settings: Settings) -> None:
        """Takes other tasks."""
        self._categories = {task.name: [category.id for category in task.categories] for task in settings.tasks}

    # -- what there is ---------------------------------------------------------------------------------------------

    def _of(self, lane: Lane) -> _Taken | None:
        """None: the lane wasn't ready yet, or is given up."""
        taken = self._partitions.get(lane.tp)
        return taken if taken is not None and taken.lane is lane else None

    def _known(self, lane: Lane) -> dict[bytes, Open]:
        taken = self._of(lane)
        return {} if taken is None else taken.known

    def count(self, lane: Lane) -> int:
        return len(self._known(lane))

    @property
    def _ours(self) -> list[dict[bytes, Open]]:
        return [taken.known for taken in self._partitions.values() if taken.lane is not None]

    @property
    def total(self) -> int:
        return sum(map(len, self._ours))

    @property
    def oldest_ms(self) -> int | None:
        """When the oldest was opened, ms since the epoch."""
        return min((open_.item.opened_ms for known in self._ours for open_ in islice(known.values(), 1)), default=None)

    def of_event(self, lane: Lane, event_id: str) -> Iterator[tuple[bytes, OpenItem]]:
        """Those of one event, by key."""
        for key, open_ in self._known(lane).items():
            if open_.item.request.event_id == event_id:
                yield key, open_.item

    # -- the lane --------------------------------------------------------------------------------------------------

    def ready(self, lane: Lane) -> None:
        """Takes up what isn't known yet; and what was asked about before a rebalance, where the partition came back."""
        taken = self._partitions.setdefault(lane.tp, _Taken())
        parked: dict[bytes, Open] = {}
        if taken.lane is not lane:
            parked, taken.known, taken.closing = taken.known, {}, set()
        taken.lane, taken.highest = lane, b""
        self._take_up(lane, taken, parked)
        left = list(parked.values())  # their outcome is written, or others went on with them
        for tp in [tp for tp, each in self._partitions.items() if each.lane is None and tp not in lane.delivery.lanes]:
            left += self._partitions.pop(tp).known.values()  # others have these
        for open_ in left:
            self._let_go(open_)

    def committed(self, lane: Lane) -> bool:
        """Takes up what was stored and forgets what was closed; returns whether there is room again."""
        taken = self._of(lane)
        if taken is None:
            return False
        self._take_up(lane, taken, {})
        closing = list(taken.closing)
        for key, raw in zip(closing, lane.view.get_raw(OPEN, closing) if closing else (), strict=True):
            if raw is None:
                taken.closing.discard(key)
                taken.known.pop(key, None)
        return bool(closing)

    def _take_up(self, lane: Lane, taken: _Taken, parked: dict[bytes, Open]) -> None:
        for key, item in lane.view.scan(OPEN, taken.highest):
            taken.highest = key + b"\x00"
            if key in taken.known:
                continue
            before = parked.get(key)
            if before is not None and _goes_on(before.item, item):
                taken.known[key] = parked.pop(key)
                self._adopt(lane, before, item)
            else:
                taken.known[key] = Open(lane, key, item)
                self._opened(taken.known[key])

    def _adopt(self, lane: Lane, open_: Open, stored: OpenItem) -> None:
        """Goes on with an item in its partition's new lane."""
        open_.lane = lane
        if open_.outcome is not None:
            self._write(open_, open_.outcome)
        elif open_.item != stored:
            self.keep(open_)

    def closed(self, lane: Lane) -> None:
        """What runs goes on; if the partition doesn't come back, its next owner asks again and the answers are dropped."""
        taken = self._of(lane)
        if taken is not None:  # else it was never ready, and what waits for it waits on
            taken.lane = None

    def dropped(self, open_: Open) -> None:
        """Its lane begins again and will find the item in State."""
        taken = self._partitions.get(open_.lane.tp)
        if taken is not None and taken.known.get(open_.key) is open_:
            del taken.known[open_.key]
        self._let_go(open_)

    def _let_go(self, open_: Open) -> None:
        open_.done = True
        self._gone(open_)

    # -- changes ---------------------------------------------------------------------------------------------------

    def keep(self, open_: Open) -> None:
        """Writes the item as it is now, unless it is gone."""
        item = msgspec.structs.replace(open_.item)

        def write(view: View, out: Outbox) -> None:
            if view.get_raw(OPEN, [open_.key])[0] is not None:
                out.put(OPEN, open_.key, item)

        open_.lane.post(write)

    def finish(
        self, open_: Open, answer: Answer, tier: Tier, why: str, also: Iterable[Callable[[Outbox], None]] = ()
    ) -> None:
        """Writes the result; `also` adds what else belongs to its transaction."""
        item = open_.item

        def write(out: Outbox) -> tuple[str, str, str]:
            done = model_result(item, answer, tier, why, out.now_ms)
            out.send(self._results, done.event_id.encode(), _json(done))
            out.count(done.tier, done.task)
            out.decide(done.task, done.tier, item.request.text)
            out.latencies.setdefault(done.tier, []).append(done.latency_ms / 1000)
            for add in also:
                add(out)
            return done.tier, done.category, done.why

        self._close(open_, write)

    def review(self, open_: Open, cause: str, attempts: int, also: Iterable[Callable[[Outbox], None]] = ()) -> None:
        """A person decides; `also` as in `finish`."""
        categories = self._categories.get(open_.item.request.task, [])

        def write(out: Outbox) -> tuple[str, str, str]:
            done = review_of(open_.item, categories, cause, attempts, out.now_ms)
            out.send(self._reviews, done.event_id.encode(), _json(done))
            if self._decisions:  # the stage `review` reads one topic, so it learns there what waits for a decision
                out.send(self._decisions, done.event_id.encode(), _json(Opened(review=done)))
            out.count("review", done.task)
            out.decide(done.task, "review", done.text)
            for add in also:
                add(out)
            return "review", "", done.cause

        self._close(open_, write)

    def review_old(self, lane: Lane, limit_ms: int) -> None:
        """Those that were opened before. Items are known in the order of their offsets, so the oldest come first."""
        for open_ in list(self._known(lane).values()):
            if open_.item.opened_ms > limit_ms:
                return
            if not (open_.done or open_.running):
                self.review(open_, "too-old", 0)
                self._let_go(open_)

    def _close(self, open_: Open, write: Callable[[Outbox], tuple[str, str, str]]) -> None:
        """Writes the outcome and removes the item, in one transaction of its lane."""
        if open_.done:
            return
        open_.done = True

        def work(view: View, out: Outbox) -> None:
            if view.get_raw(OPEN, [open_.key])[0] is None:
                return  # written by a transaction whose outcome was unknown
            tier, category, why = write(out)
            out.delete(OPEN, open_.key)
            row = (open_.item.request.event_id.encode(), _pack(Answered(out.now_ms, tier, category, why)))
            out.put_packed(ANSWERED, out.now_ms, int.from_bytes(open_.key, "big"), [row])

        self._write(open_, work)

    def _write(self, open_: Open, work: Work) -> None:
        open_.outcome = work
        taken = self._of(open_.lane)
        if taken is not None:  # else it is written if the partition comes back
            taken.closing.add(open_.key)
            open_.lane.post(work)


def _goes_on(held: OpenItem, stored: OpenItem) -> bool:
    """Whether what is held in memory is the stored item, and not what it was before another worker had it."""
    return held.request.event_id == stored.request.event_id and (held.round, held.attempts) >= (
        stored.round, stored.attempts,
    )  # fmt: skip
