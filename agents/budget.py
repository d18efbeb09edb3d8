"""Budget: keeps the day's accounts of all tasks and grants leases. One owner an account, whichever worker that is."""

import asyncio
import contextlib
import logging
import time

import aiokafka
import msgspec
from aiokafka.errors import KafkaError
from aiokafka.structs import ConsumerRecord, TopicPartition

from app import metrics
from app.core import App, add_stage
from app.delivery.lane import Lane
from app.delivery.outbox import Outbox
from app.delivery.partitions import partition_for
from app.delivery.probe import probe
from app.delivery.stage import Batch
from app.delivery.state import View
from app.kafka import client_kwargs
from app.llm.budget import Account, Request, grant, settle
from app.llm.purse import Purse
from app.logic.dead import dead_headers
from app.settings import Settings
from models.events import Bad
from tables.accounts import ACCOUNTS, account_key

__all__ = ["Budget", "KafkaBank", "declare"]

log = logging.getLogger("headrace.budget")

_json = msgspec.json.Encoder().encode
_read = msgspec.json.Decoder(Request).decode

KEEP_DAYS = 7
"""Accounts stay this long, to be looked at."""
EXPIRE_EVERY_MS = 60_000
TIDY_EVERY_S = 0.5
"""Near the limit others wait for what is given back."""
RETRY_S = 2.0


class Grant(msgspec.Struct, kw_only=True):
    """A record on `budget-grants`."""

    worker: str
    lease: str
    task: str
    day: str
    usd: float
    """0: refused."""
    final: bool = False
    """Refused for the day: not even what others may give back would do."""


_read_grant = msgspec.json.Decoder(Grant).decode


class Budget:
    """The stage's logic."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.limits = {task.name: settings.day_usd(task) for task in settings.tasks}
        self.grants, self.dead_topic = settings.topic("budget-grants"), settings.topic("dead-letter")
        self._next_ms: dict[Lane, int] = {}

    def decide(self, batch: Batch) -> None:
        """Changes the accounts as the requests come; answers those that ask for a lease."""
        accounts: dict[bytes, Account] = {}
        for record in batch.records:
            try:
                request = _read(record.value or b"")
            except msgspec.MsgspecError as error:
                self._bury(batch.out, record, Bad(reason="bad-request", message=str(error)))
                continue
            key = account_key(request.task, request.day)
            account = accounts.get(key) or batch.state.get(ACCOUNTS, key) or Account()
            accounts[key] = account
            limit = self.limits.get(request.task)
            if request.kind == "settle":
                settle(account, request.lease, request.usd)
            else:
                batch.out.send(self.grants, key, _json(self._answer(request, account, limit)))
            self._show(request, account, limit)
        for key, account in accounts.items():
            batch.out.put(ACCOUNTS, key, account)

    @staticmethod
    def _answer(request: Request, account: Account, limit: float | None) -> Grant:
        usd = request.usd
        if limit is not None:
            usd = grant(account, request.lease, request.usd, limit, request.least_usd)
        return Grant(
            worker=request.worker, lease=request.lease, task=request.task, day=request.day, usd=usd,
            final=limit is not None and limit - account.settled_usd < max(request.least_usd, 1e-9),
        )  # fmt: skip

    def _show(self, request: Request, account: Account, limit: float | None) -> None:
        if limit is None:
            return
        gauge = metrics.BUDGET_USD
        gauge.labels(request.task, "limit").set(limit)
        gauge.labels(request.task, "settled").set(account.settled_usd)
        gauge.labels(request.task, "leased").set(account.leased_usd)
        if account.spent_usd >= self.settings.budget.alert_share * limit and not account.alerted:
            account.alerted = True
            metrics.BUDGET_ALERTS.labels(request.task).inc()
            log.error(
                "task %s has spent %.0f%% of its budget of the day (%.4f of %.4f US dollars); at the limit its events: %s",
                request.task,
                100 * account.spent_usd / limit,
                account.spent_usd,
                limit,
                self.settings.over_budget(request.task),
            )

    def dead(self, batch: Batch, record: ConsumerRecord[bytes, bytes], error: Exception) -> None:
        message = f"{type(error).__name__} in stage budget; the log has the traceback"
        self._bury(batch.out, record, Bad(reason="stage-failed", message=message))

    def _bury(self, out: Outbox, record: ConsumerRecord[bytes, bytes], bad: Bad) -> None:
        out.send(self.dead_topic, record.key, record.value, dead_headers(record, bad, "budget"))
        out.count("dead", bad.reason)

    def tick(self, lane: Lane, now_ms: int) -> None:
        if now_ms >= self._next_ms.get(lane, 0):
            self._next_ms = {k: v for k, v in self._next_ms.items() if k.ready}
            self._next_ms[lane] = now_ms + EXPIRE_EVERY_MS
            if any(self._old(lane.view, now_ms)):
                lane.post(self._remove)

    def _remove(self, view: View, out: Outbox) -> None:
        for key in self._old(view, out.now_ms):
            out.delete(ACCOUNTS, key)

    @staticmethod
    def _old(view: View, now_ms: int) -> list[bytes]:
        limit = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now_ms / 1000 - KEEP_DAYS * 86_400))
        return [key for key, _ in view.scan(ACCOUNTS) if key.rpartition(b"|")[2].decode() < limit]

    def ready(self, lane: Lane) -> None:
        """Nothing to take up: accounts are read when they are asked for."""

    def closed(self, lane: Lane) -> None:
        """Nothing runs beside the lane."""

    def committed(self, lane: Lane) -> None:
        """Nothing waits for a commit."""

    def room(self, lane: Lane) -> bool:
        return True


class KafkaBank:
    """Carries a worker's requests to the stage, and its grants back.

    A plain producer: a request that is sent twice changes nothing the second time, and one that is lost is asked again.
    """

    def __init__(self, app: App) -> None:
        self._settings, self._app = app.settings, app
        self._topic = app.settings.topic("budget")
        self._producer: aiokafka.AIOKafkaProducer | None = None
        self._ready = asyncio.Event()
        self.purse: Purse | None = None

    async def send(self, request: Request) -> None:
        """See `Bank.send`."""
        await self._ready.wait()
        assert self._producer is not None
        key = account_key(request.task, request.day)
        partition = partition_for(key, self._app.delivery.partitions[self._topic])
        with contextlib.suppress(KafkaError):  # the purse asks again; a settlement that is lost stays spent
            await self._producer.send_and_wait(self._topic, _json(request), key, partition=partition)

    async def run(self, purse: Purse) -> None:
        """Runs as long as the worker: hands out grants, gives back what isn't needed."""
        self.purse = purse
        self._producer = aiokafka.AIOKafkaProducer(acks="all", **client_kwargs(self._settings.kafka))
        await self._producer.start()
        grants = TopicPartition(self._settings.topic("budget-grants"), 0)
        tidied = time.monotonic()
        while True:
            try:
                async with probe(self._settings.kafka) as consumer:
                    consumer.assign([grants])
                    await consumer.seek_to_end(grants)
                    await consumer.position(grants)  # from here on no grant is missed
                    self._ready.set()
                    while True:
                        for record in (await consumer.getmany(timeout_ms=200)).get(grants, []):
                            answer = _read_grant(record.value)
                            if answer.worker == purse.worker:
                                purse.granted(answer.lease, answer.task, answer.day, answer.usd, answer.final)
                        if time.monotonic() - tidied > TIDY_EVERY_S:
                            tidied = time.monotonic()
                            await purse.tidy()
            except KafkaError as error:
                log.warning("budget grants can't be read (%s); calls that cost something wait", type(error).__name__)
                await asyncio.sleep(RETRY_S)

    async def close(self) -> None:
        """Gives everything back."""
        if self._producer is not None:
            if self.purse is not None:
                await self.purse.tidy(everything=True)
            await self._producer.stop()


def declare(app: App) -> None:
    """Adds the budget stage, where a task has a budget."""
    if app.settings.has_budget:
        add_stage(
            app,
            name="budget",
            topic=app.settings.topic("budget"),
            logic=Budget(app.settings),
            maps=[ACCOUNTS],
            help="Keeps the day's accounts and grants leases to workers that call models.",
        )
