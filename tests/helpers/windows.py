"""Windows offline: a recomputation of its own, and the product's chain on a real local store without Kafka."""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiokafka.structs import TopicPartition

from agents.windows import WindowChain, chained
from app.delivery.outbox import Outbox
from app.delivery.stage import Batch
from app.delivery.state import View
from app.settings import Settings
from models.events import Event, Received

__all__ = ["Given", "Offline", "Rig", "comparable", "differences", "recompute"]


@dataclass(frozen=True)
class Given:
    """One event, as a test writes it."""

    entity: str
    at_ms: int
    kind: str = "click"
    amount: Any = None
    append_ms: int = 1_900_000_000_000

    def record(self, offset: int) -> Received:
        return Received("raw", 0, offset, self.append_ms, self.entity.encode(), b"{}", ())

    def event(self, offset: int) -> Event:
        return Event(f"e{offset}", self.kind, self.at_ms, self.entity, fields={"payload.amount": self.amount})


@dataclass
class Offline:
    """What must come out."""

    windows: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)
    """Closed windows by entity and start."""
    open: set[tuple[str, int]] = field(default_factory=set)
    late: list[tuple[int, list[int]]] = field(default_factory=list)
    """Offset and starts of the windows it missed."""
    ahead: list[int] = field(default_factory=list)


def recompute(
    events: Sequence[Given], size_ms: int, hop_ms: int, grace_ms: int, max_ahead_ms: int = 600_000, keep: int = 100,
    *, ended: bool = False,
) -> Offline:  # fmt: skip
    """Windows straight from their definition: every event against every window, one list of events a window.

    With `ended` the stream is over and idle: all windows close.
    """
    found, members, high = Offline(), defaultdict(list), -1
    for offset, given in enumerate(events):
        if given.at_ms > high:
            if given.at_ms > given.append_ms + max_ahead_ms:
                found.ahead.append(offset)
                continue
            high = given.at_ms
        missed = []
        start = math.floor((given.at_ms - size_ms) / hop_ms) * hop_ms
        while start <= given.at_ms:
            if start <= given.at_ms < start + size_ms:
                if start + size_ms <= high - grace_ms:
                    missed.append(start)
                else:
                    members[given.entity, start].append((given.at_ms, offset, given))
            start += hop_ms
        if missed:
            found.late.append((offset, missed))
    for (entity, start), inside in members.items():
        if start + size_ms > high - grace_ms and not ended:
            found.open.add((entity, start))
            continue
        found.windows[entity, start] = _summed(sorted(inside), keep)
    return found


def _summed(inside: list[tuple[int, int, Given]], keep: int) -> dict[str, Any]:
    amounts = [given.amount for _, _, given in inside if isinstance(given.amount, int)]
    return {
        "events": len(inside),
        "first_ms": inside[0][0],
        "last_ms": inside[-1][0],
        "counts": dict(Counter(given.kind for _, _, given in inside)),
        "sequence": [(at, given.kind) for at, _, given in inside][-keep:] if keep else [],
        "cut": max(0, len(inside) - keep) if keep else 0,
        "features": {
            "total": sum(amounts) if amounts else None,
            "least": min(amounts, default=None),
            "most": max(amounts, default=None),
            "first": amounts[0] if amounts else None,
            "last": amounts[-1] if amounts else None,
            "kinds": len({given.kind for _, _, given in inside}),
        },
    }


def comparable(values: Iterable[dict[str, Any]]) -> dict[tuple[str, int], dict[str, Any]]:
    """Records of agg-events as `recompute` has windows; fails when one came twice."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for value in values:
        place = (value["entity"], value["start_ms"])
        assert place not in found, f"{place} was written twice"
        found[place] = {
            "sequence": [(step["at_ms"], step["label"]) for step in value["sequence"]],
            **{name: value[name] for name in ("events", "first_ms", "last_ms", "counts", "cut", "features")},
        }
    return found


def differences(want: Mapping[Any, Any], got: Mapping[Any, Any]) -> tuple[int, int, int]:
    """How many windows are lost, invented and wrong."""
    wrong = sum(got[place] != want[place] for place in want.keys() & got.keys())
    return len(want.keys() - got.keys()), len(got.keys() - want.keys()), wrong


class MemoryDatabase:
    """What a View reads of a Database, in a dict: a hundred times as quick to open."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        return [self.rows.get(key) for key in keys]

    def scan(self, prefix: bytes, start: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        begin = prefix if start is None else start
        yield from sorted((key, raw) for key, raw in self.rows.items() if key.startswith(prefix) and key >= begin)

    def write(self, writes: Iterable[tuple[bytes, bytes | None]]) -> None:
        for key, value in writes:
            if value is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = value


class OneDatabase:
    """A State of one partition."""

    def __init__(self, database: MemoryDatabase) -> None:
        self._database = database

    def database(self, partition: int) -> MemoryDatabase:
        return self._database


class Rig:
    """A chain over one partition, and the lane that it runs in, without Kafka: batches take effect at once, or never."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.database = settings, MemoryDatabase()
        self.written: list[tuple[str, bytes, dict[str, Any], dict[str, bytes]]] = []
        """Topic, key, value and headers of every committed record."""
        self.counts: Counter[tuple[str, str]] = Counter()
        self.idle = False
        """What the consumer says: all is read."""
        self.tp = TopicPartition("raw", 0)
        self.delivery = self
        self.begin()

    def begin(self) -> None:
        """A new owner of the partition: nothing but State is known."""
        state: Any = OneDatabase(self.database)
        self.view = View(state, 0)
        self.posted: list[Any] = []
        self.chain = WindowChain(self.settings, chained(self.settings, self.settings.sources[0].name), "raw")
        self.chain.ready(self.lane)

    @property
    def lane(self) -> Any:
        """This, as the chain sees it."""
        return self

    @staticmethod
    def fresh() -> Outbox:
        return Outbox(2_000_000_000_000)

    def post(self, work: Any) -> None:
        self.posted.append(work)

    def room(self) -> None:
        """The chain says that it has room again."""

    def caught_up(self, lane: Any) -> bool:
        return self.idle

    def take(self, events: Iterable[tuple[int, Given]], *, crash: bool = False) -> Outbox:
        """One batch of offsets and events, with the work that waits. With `crash` it is computed and lost."""
        out = self.fresh()
        batch = Batch([], 0, self.view, out)
        self.chain.take(batch, [(given.record(offset), given.event(offset)) for offset, given in events])
        self._finish(out, crash)
        return out

    def _finish(self, out: Outbox, crash: bool) -> None:
        posted, self.posted = self.posted, []
        for work in posted:
            work(self.view, out)
        if crash:
            self.begin()
            return
        self.commit(out)
        self.chain.committed(self.lane)

    def work(self, work: Any) -> None:
        """Work without input."""
        self.posted.append(work)
        self.settle()

    def settle(self) -> None:
        """Does the work that waits, and what follows from it."""
        while self.posted:
            self._finish(self.fresh(), crash=False)

    def commit(self, out: Outbox) -> None:
        self.view.hold(out.local, 1)
        self.database.write(out.local.items())
        self.view.release(1)
        self.counts.update(out.counts)
        for (topic, _), rows in out.sends.items():
            for key, value, headers in rows:
                shown = {name: content for name, content in headers if content is not None}
                self.written.append((topic, key or b"", json.loads(value or b"null"), shown))

    def of(self, topic: str) -> list[tuple[bytes, dict[str, Any], dict[str, bytes]]]:
        return [(key, value, headers) for name, key, value, headers in self.written if name == topic]

    def windows(self) -> dict[tuple[str, int], dict[str, Any]]:
        """Emitted windows; fails when one came twice."""
        return comparable(value for _, value, _ in self.of("agg-events"))

    def rows(self) -> dict[bytes, bytes]:
        """All of State."""
        return dict(self.database.rows)
