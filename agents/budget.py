"""Budget: keeps the accounts of all tasks' days and all providers' minutes, and grants leases of them.

One owner an account, whichever worker that is.
"""

import asyncio
import contextlib
import logging
import time
from zoneinfo import ZoneInfo

import aiokafka
import msgspec
from aiokafka.errors import KafkaError
from aiokafka.structs import ConsumerRecord, TopicPartition

from agents.dead import bury, failed
from app import metrics
from app.core import App, add_stage
from app.delivery.lane import Lane
from app.delivery.outbox import Outbox
from app.delivery.partitions import partition_for
from app.delivery.probe import probe
from app.delivery.stage import Batch
from app.delivery.state import View
from app.kafka import client_kwargs
from app.llm.budget import LATE_MS, Account, Request, Terms, day_of, free_in_ms, grant, settle, terms_of, turn
from app.llm.purse import Purse
from app.settings import Settings
from models.events import Bad
from tables.accounts import ACCOUNTS, account_key

__all__ = ["Budget", "KafkaBank", "answer", "declare"]

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
    account: str
    day: str
    amount: float
    """0: refused."""
    final: bool = False
    """Refused for the day: not even what others may give back would do."""
    wait_s: float | None = None
    """Refused for now: a minute has room after this, at the latest."""


_read_grant = msgspec.json.Decoder(Grant).decode


def answer(request: Request, account: Account, terms: Terms | None, now_ms: int) -> Grant:
    """What the stage says to who asks for a lease; changes the account, which is turned to now."""
    given = Grant(
        worker=request.worker, lease=request.lease, account=request.account, day=request.day, amount=request.amount
    )
    if terms is None:  # the limit was taken out of the settings
        return given
    least = request.least
    if terms.minute_s:
        end_ms = now_ms + round(terms.lease_s * 1000) + LATE_MS
        given.amount = grant(account, request.lease, request.amount, terms.limit, least, end_ms)
        if not given.amount:
            given.wait_s = free_in_ms(account, terms, least, now_ms) / 1000
    else:
        given.amount = grant(account, request.lease, request.amount, terms.limit, least)
        given.final = terms.limit - account.settled < max(least, 1e-9)
    return given


class Budget:
    """The stage's logic."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.terms = terms_of(settings)
        self.grants, self.dead_topic = settings.topic("budget-grants"), settings.topic("dead-letter")
        self._zone, self._period_s = ZoneInfo(settings.budget.timezone), settings.budget.period_s
        self._next_ms: dict[Lane, int] = {}
        self._shown: dict[str, tuple[int, str]] = {}
        """Partition and day of the accounts that the metrics show. A task's account of tomorrow may be another worker's."""

    def decide(self, batch: Batch) -> None:
        """Changes the accounts as the requests come; answers those that ask for a lease."""
        accounts: dict[bytes, Account] = {}
        for record in batch.records:
            try:
                request = _read(record.value or b"")
            except msgspec.MsgspecError as error:
                bury(batch.out, self.dead_topic, record, Bad(reason="bad-request", message=str(error)), "budget")
                continue
            key = account_key(request.account, request.day)
            account = accounts.get(key) or batch.state.get(ACCOUNTS, key) or Account()
            accounts[key] = account
            terms, now_ms = self.terms.get(request.account), batch.out.now_ms
            if terms is not None:
                turn(account, terms, now_ms)
            if request.kind == "settle":
                minute_s = terms.minute_s if terms is not None else 0.0
                settle(account, request.lease, request.amount, now_ms + round(minute_s * 1000) if minute_s else None)
            else:
                batch.out.send(self.grants, key, _json(answer(request, account, terms, now_ms)))
            if terms is not None:
                self._alert(request.account, account, terms)
                self._show(request, account, terms, batch.partition, now_ms)
        for key, account in accounts.items():
            batch.out.put(ACCOUNTS, key, account)

    def _today(self, now_ms: int) -> str:
        return day_of(now_ms / 1000, self._zone, self._period_s)

    def _show(self, request: Request, account: Account, terms: Terms, partition: int, now_ms: int) -> None:
        name = request.account
        if terms.minute_s:
            metrics.MINUTE_SHARE.labels(*_minute_labels(name)).set(account.spent / terms.limit)
        elif request.day < self._today(now_ms):
            return  # a late settlement
        else:
            gauge = metrics.BUDGET_USD
            gauge.labels(name, "limit").set(terms.limit)
            gauge.labels(name, "settled").set(account.settled)
            gauge.labels(name, "leased").set(account.leased)
        self._shown[name] = (partition, request.day)

    def _hide(self, name: str) -> None:
        """Another worker shows the account from now on, or its day is over: sums over workers would count it twice."""
        del self._shown[name]
        if name.startswith("@"):
            metrics.MINUTE_SHARE.remove(*_minute_labels(name))
            return
        for kind in ("limit", "settled", "leased"):
            metrics.BUDGET_USD.remove(name, kind)

    def _alert(self, name: str, account: Account, terms: Terms) -> None:
        if terms.minute_s:
            return
        if account.spent >= self.settings.budget.alert_share * terms.limit and not account.alerted:
            account.alerted = True
            metrics.BUDGET_ALERTS.labels(name).inc()
            log.error(
                "task %s has spent %.0f%% of its budget of the day (%.4f of %.4f US dollars); at the limit its events: %s",
                name,
                100 * account.spent / terms.limit,
                account.spent,
                terms.limit,
                self.settings.over_budget(name),
            )

    def dead(self, batch: Batch, record: ConsumerRecord[bytes, bytes], error: Exception) -> None:
        bury(batch.out, self.dead_topic, record, failed(error, "budget"), "budget")

    def tick(self, lane: Lane, now_ms: int) -> None:
        today = self._today(now_ms)
        for name in [name for name, (_, day) in self._shown.items() if day and day < today]:
            self._hide(name)
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
        days = [(key, key.rpartition(b"|")[2].decode()) for key, _ in view.scan(ACCOUNTS)]
        return [key for key, day in days if day and day < limit]  # minutes have no day, and are few

    def ready(self, lane: Lane) -> None:
        """Nothing to take up: accounts are read when they are asked for."""

    def closed(self, lane: Lane) -> None:
        for name in [name for name, (partition, _) in self._shown.items() if partition == lane.tp.partition]:
            self._hide(name)

    def committed(self, lane: Lane) -> None:
        """Nothing waits for a commit."""

    def room(self, lane: Lane) -> bool:
        return True


def _minute_labels(account: str) -> tuple[str, str]:
    provider, _, kind = account.removeprefix("@").rpartition("/")
    return provider, kind


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
        key = account_key(request.account, request.day)
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
                                purse.granted(
                                    answer.lease, answer.account, answer.day, answer.amount, answer.final, answer.wait_s
                                )
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
    """Adds the budget stage, where a task has a budget or a provider a limit of a minute."""
    if terms_of(app.settings):
        add_stage(
            app,
            name="budget",
            topic=app.settings.topic("budget"),
            logic=Budget(app.settings),
            maps=[ACCOUNTS],
            help="Keeps the day's accounts and grants leases to workers that call models.",
        )
