"""Ingest, the rekey hop and the stage `windows` over topics in memory: lanes take turns in any order, and may crash."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from aiokafka.structs import TopicPartition

from agents.aggregate import STAGE, WindowStage
from agents.ingest import Ingest, compiled
from agents.upstream import HOP
from app.delivery.outbox import Outbox
from app.delivery.partitions import partition_for
from app.delivery.stage import Batch
from app.delivery.state import View
from app.settings import Settings
from models.events import Received
from tests.helpers.windows import MemoryDatabase, OneDatabase

__all__ = ["NOW_MS", "Pipeline", "Turn", "clocked"]

NOW_MS = 1_900_000_000_000


class Turn:
    """One lane: a partition of a stage, and what the delivery layer does for it."""

    def __init__(self, pipeline: "Pipeline", stage: str, logic: Any, topic: str, partition: int) -> None:
        self.pipeline, self.stage, self.logic = pipeline, stage, logic
        self.tp, self.database = TopicPartition(topic, partition), MemoryDatabase()
        self.position = 0
        self.ready = True
        self.posted: list[Any] = []
        self.begin()

    @property
    def delivery(self) -> Any:
        return self.pipeline

    @property
    def behind(self) -> int:
        return len(self.pipeline.logs[self.tp]) - self.position

    def begin(self) -> None:
        """A new owner: nothing but State is known."""
        state: Any = OneDatabase(self.database)
        self.view, self.posted = View(state, self.tp.partition), []
        self.logic.closed(self)
        self.logic.ready(self)

    def post(self, work: Any) -> None:
        self.posted.append(work)

    def step(self, count: int, *, crash: bool = False) -> None:
        """Up to so many records and the work that waits, as one transaction; with `crash` it is computed and lost."""
        records = self.pipeline.logs[self.tp][self.position : self.position + count]
        posted, self.posted = self.posted, []
        if not records and not posted:
            return
        out = Outbox(self.pipeline.now_ms)
        if records:
            self.logic.decide(Batch(records, self.tp.partition, self.view, out))
        for work in posted:
            work(self.view, out)
        self.view.hold(out.local, 1)
        if crash:
            self.begin()
            return
        self.database.write(out.local.items())
        self.view.release(1)
        self.position += len(records)
        self.pipeline.write(out)
        self.logic.committed(self)


class Pipeline:
    """All lanes of a deployment."""

    def __init__(self, settings: Settings, partitions: dict[str, int]) -> None:
        self.settings = settings
        ours = ("rekeyed", "window-events", "agg-events", "late-events", "clean-events", "sink-noise", "dead-letter",
                "model-requests", "ai-results", "agent-trigger")  # fmt: skip
        self.partitions = {settings.topic(name): partitions.get(name, 2) for name in ours}
        self.partitions |= {settings.source_topic(s): partitions[s.name] for s in settings.sources}
        self.logs: dict[TopicPartition, list[Received]] = defaultdict(list)
        self.counts: Counter[tuple[str, str]] = Counter()
        self.now_ms = NOW_MS
        sources, rules = compiled(settings)
        self.lanes: list[Turn] = []
        for source in settings.sources:
            topic = settings.source_topic(source)
            name = f"ingest-{source.name}"
            logic = Ingest(settings, name, {source.name: sources[source.name]}, rules, hop=False, topic=topic)
            self._add(name, logic, topic)
        self._add(HOP, Ingest(settings, HOP, sources, rules, hop=True), settings.topic("rekeyed"))
        topic = settings.topic("window-events")
        self.windows = WindowStage(settings, sources, topic)
        self._add(STAGE, self.windows, topic)

    def _add(self, stage: str, logic: Any, topic: str) -> None:
        self.lanes += [Turn(self, stage, logic, topic, p) for p in range(self.partitions[topic])]

    def room(self) -> None:
        """A lane says that it has room again."""

    def caught_up(self, lane: Turn) -> bool:
        return lane.behind == 0

    def append(self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Any = ()) -> None:
        log = self.logs[TopicPartition(topic, partition)]
        log.append(Received(topic, partition, len(log), self.now_ms, key, value, tuple(headers)))

    def write(self, out: Outbox) -> None:
        """As a transaction does: topic by topic, in the order of the outbox."""
        self.counts.update(out.counts)
        for (topic, where), rows in out.sends.items():
            for key, value, headers in rows:
                partition = partition_for(key or b"", self.partitions[topic]) if where is None else where
                self.append(topic, partition, key, value, headers)

    def of(self, topic: str) -> list[Received]:
        name = self.settings.topic(topic)
        return [record for tp, log in sorted(self.logs.items()) if tp.topic == name for record in log]

    def windows_written(self) -> list[dict[str, Any]]:
        return [json.loads(record.value or b"") for record in self.of("agg-events")]

    def settle(self) -> None:
        """Until nothing is left to do."""
        while any(lane.behind or lane.posted for lane in self.lanes):
            for lane in self.lanes:
                lane.step(1000)

    def tick(self, seconds: float, clock: Any) -> None:
        clock.at += seconds
        self.now_ms += round(seconds * 1000)
        for lane in self.lanes:
            lane.logic.tick(lane, self.now_ms)
        self.settle()


@contextmanager
def clocked() -> Iterator[Any]:
    """The monotonic clock of the stages in the test's hand."""
    clock = SimpleNamespace(at=1000.0)
    clock.monotonic = lambda: clock.at
    with ExitStack() as stack:
        for module in ("upstream", "hopping", "windows"):
            stack.enter_context(patch(f"agents.{module}.time", clock))
        yield clock
