"""Classify: events that no rule decided, for the light and then the deep model.

The batch's transaction stores each event as open work and moves on; model calls run beside it, bounded; an answer is
written with its outputs and the removal of the item in one transaction. So a slow or dead model blocks no partition,
and at most the calls in flight at a crash are repeated. Equal texts are in one partition: one call serves them all.
"""

from collections.abc import Callable

import msgspec

from agents import budget
from agents.budget import KafkaBank
from agents.dead import bury, failed
from agents.expiry import Expiry
from agents.open_items import OpenItems, now_ms
from agents.tiers import Tiers
from app import metrics
from app.core import App, add_stage
from app.delivery.lane import Lane
from app.delivery.stage import Batch
from app.llm.budget import terms_of
from app.llm.purse import Purse
from app.settings import Settings
from models.events import Bad, ModelRequest, Record
from tables.open_work import ANSWERED, CACHE, CALLS, OPEN, PROMPTS, OpenItem, open_key

__all__ = ["Classify", "declare"]

_read = msgspec.json.Decoder(ModelRequest).decode


class Classify:
    """The stage's logic."""

    def __init__(self, settings: Settings, app: App, purse: Purse | None = None) -> None:
        self.settings, self.app = settings, app
        self.dead_topic = settings.topic("dead-letter")
        self.expiry = Expiry(ANSWERED, int(settings.classify.trace_horizon_s * 1000))
        self.items = OpenItems(
            settings, opened=lambda open_: self.tiers.enqueue(open_), gone=lambda open_: self.tiers.let_go(open_)
        )
        self.tiers = Tiers(settings, self.items, app.ledger, purse)

    def decide(self, batch: Batch) -> None:
        """Stores each request as open work."""
        for record in batch.records:
            try:
                request = _read(record.value or b"")
                if request.task not in self.tiers.tasks:
                    raise msgspec.ValidationError(f"task {request.task!r} isn't declared any more")
            except msgspec.MsgspecError as error:
                bury(batch.out, self.dead_topic, record, Bad(reason="bad-request", message=str(error)), "classify")
                continue
            batch.out.put(OPEN, open_key(record.offset), OpenItem(request=request, opened_ms=batch.out.now_ms))

    def dead(self, batch: Batch, record: Record, error: Exception) -> None:
        bury(batch.out, self.dead_topic, record, failed(error, "classify"), "classify")

    def ready(self, lane: Lane) -> None:
        self.items.ready(lane)

    def committed(self, lane: Lane) -> None:
        if self.items.committed(lane):
            self.app.delivery.room()

    def closed(self, lane: Lane) -> None:
        self.items.closed(lane)
        self._show(now_ms())

    def room(self, lane: Lane) -> bool:
        return self.items.count(lane) < self.settings.classify.max_open

    def tick(self, lane: Lane, now_ms: int) -> None:
        self.expiry.tick(lane, now_ms)
        self.tiers.same.expiry.tick(lane, now_ms)
        self.tiers.prompts.tick(lane, now_ms)
        self.items.review_old(lane, now_ms - int(self.settings.classify.max_age_s * 1000))
        self.tiers.tick(now_ms)
        self._show(now_ms)

    def _show(self, now_ms: int) -> None:
        oldest_ms = self.items.oldest_ms
        metrics.OPEN_ITEMS.labels("classify").set(self.items.total)
        metrics.OLDEST_OPEN_SECONDS.labels("classify").set(0 if oldest_ms is None else (now_ms - oldest_ms) / 1000)

    def open_items(self, lane: Lane, event_id: str) -> list[tuple[bytes, OpenItem]]:
        """Open items of an event in a lane; from memory, bounded by classify.max_open."""
        return list(self.items.of_event(lane, event_id))

    def prepare(self, settings: Settings) -> Callable[[], None]:
        """Gets ready for other settings.

        Raises:
            SettingsError: a provider's key, headers or CA can't be used. Nothing has changed.
        """
        switch_tiers = self.tiers.prepare(settings)

        def switch() -> None:
            self.settings = settings
            self.items.use(settings)
            switch_tiers()

        return switch


def declare(app: App) -> None:
    """Adds the classify stage, where there are tasks."""
    settings = app.settings
    if not settings.tasks:
        return
    bank = KafkaBank(app)
    purse = Purse(settings, bank) if terms_of(settings) else None
    logic = Classify(settings, app, purse)
    add_stage(
        app,
        name="classify",
        topic=settings.topic("model-requests"),
        logic=logic,
        maps=[OPEN, ANSWERED, CACHE, PROMPTS, CALLS],
        help="Asks the light and then the deep model about events that no rule decided.",
    )

    async def providers() -> None:
        _ = logic.tiers.client  # a missing key or CA ends the worker here, with its name

    app.helpers.append(("model providers", providers))
    app.reloadable.append(logic.prepare)
    app.closers.append(logic.tiers.stop)
    if purse is not None:
        app.helpers.append(("budget bank", lambda: bank.run(purse)))
        app.closers.append(bank.close)
        budget.declare(app)
