"""What the console makes of the workers' metrics: sums, rates, an hour of points; unknown is not zero."""

import asyncio
import re
from pathlib import Path
from typing import Any

import aiokafka
import pytest
from aiokafka.errors import KafkaConnectionError

from app import metrics
from app.settings import load
from app.web.announce import Worker
from app.web.console import show
from app.web.console.snapshots import OUTCOMES, POINTS, Snapshots
from app.web.console.tail import Tail
from app.web.numbers import WANTED, Counters, Numbers, merge, parse
from app.web.problems import Problem
from app.web.workers import Answer
from tests.helpers.asgi import ListWriter

PAGE = """# HELP headrace_records_in_total Input records.
# TYPE headrace_records_in_total counter
headrace_records_in_total{{stage="ingest-shop"}} {n}
headrace_records_in_total{{stage="ingest-rekeyed"}} 5.0
headrace_records_in_total{{stage="classify"}} 3.0
headrace_outcomes_total{{stage="ingest-shop",outcome="rule",detail="a \\"quoted\\" name, with = and }}"}} {n}
headrace_lag_records{{stage="ingest-shop",partition="0"}} 7.0
headrace_lag_records{{stage="ingest-shop",partition="1"}} {lag}
headrace_oldest_open_seconds{{stage="classify"}} {lag}
headrace_breaker_open{{provider="own"}} 1.0
headrace_batch_records_bucket{{stage="ingest-shop",le="5.0"}} 99.0
"""


def page(n: float, lag: float = 1.0) -> str:
    return PAGE.format(n=n, lag=lag)


class Fleet:
    """Answers of workers, as the test wants them; `silent` ones don't answer."""

    def __init__(self) -> None:
        self.pages: dict[str, str] = {}
        self.silent: list[str] = []

    async def ask_all(self, path: str) -> list[Answer]:
        assert path == "/metrics"
        if not self.pages and not self.silent:
            raise Problem(503, "no-worker", "none")
        return [
            *(Answer(worker(name), 200, text.encode()) for name, text in self.pages.items()),
            *(Answer(worker(name), 0, b"", "ConnectError") for name in self.silent),
        ]


def worker(name: str) -> Worker:
    return Worker(id=name, url="", host="h", pid=1, role="all", started_ms=0, beat_ms=0)


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


@pytest.fixture
def snapshots(fleet: Fleet) -> Snapshots:
    made: Any = fleet
    found = Snapshots(load(), made, ListWriter(load()))
    found._looked_s = 0.0
    return found


def test_only_what_is_wanted_is_read_and_labels_keep_their_signs() -> None:
    numbers = Numbers(parse(page(4)))
    assert numbers.by(OUTCOMES, "detail") == {'a "quoted" name, with = and }': 4.0}
    assert numbers.events_in == 4.0
    assert numbers.total("headrace_lag_records") == 8.0
    assert numbers.by("headrace_lag_records", "partition", stage="ingest-shop") == {"0": 7.0, "1": 1.0}
    assert numbers.total("headrace_batch_records_bucket") is None
    assert numbers.total("headrace_lag_records", stage="none") is None


def test_workers_are_summed_but_ages_and_breakers_are_the_worst() -> None:
    both = Numbers(merge([parse(page(4, lag=1)), parse(page(6, lag=9))]))
    assert both.events_in == 10.0
    assert both.total("headrace_oldest_open_seconds") == 9.0
    assert both.total("headrace_breaker_open") == 1.0


def test_what_came_is_counted_by_worker_so_a_restart_is_no_minus() -> None:
    counters = Counters()
    assert counters.added({"a": parse(page(100))}, 1.0) is None
    grown = counters.added({"a": parse(page(110)), "new": parse(page(5000))}, 2.0)
    assert grown is not None
    assert Numbers(grown.whole).events_in == 10.0
    grown = counters.added({"a": parse(page(3)), "new": parse(page(5001))}, 3.0)
    assert grown is not None
    assert Numbers(grown.whole).events_in == 1.0
    assert counters.added({}, 4.0) is None


def test_a_worker_that_missed_looks_is_counted_from_its_last_answer_and_rates_do_not_leap() -> None:
    counters = Counters()
    counters.added({"a": parse(page(100)), "b": parse(page(0))}, 0.0)
    for second in range(1, 10):
        counters.added({"a": parse(page(100 + second))}, float(second))
    grown = counters.added({"a": parse(page(110)), "b": parse(page(50))}, 10.0)
    assert grown is not None
    assert Numbers(grown.whole).events_in == 1.0 + 50.0
    assert Numbers(grown.paced).events_in == 1.0 + 5.0
    assert counters.added({"a": parse(page(111))}, 5000.0) is None  # gone for over an hour: it is a stranger


async def test_an_hour_counts_what_came_while_a_worker_was_silent(fleet: Fleet, snapshots: Snapshots) -> None:
    for second, silent in ((15, False), (30, True), (45, False)):
        fleet.pages, fleet.silent = ({}, ["a"]) if silent else ({"a": page(10.0 * second)}, [])
        snapshot = await snapshots._look(float(second))
    assert snapshot.hour.events_in == 300.0
    assert [point.events for point in snapshot.points] == [None, None, 10.0]


def test_of_a_budget_the_ledger_tells_what_is_spent_and_of_other_tasks_the_metrics() -> None:
    numbers = Numbers(
        parse(
            'headrace_day_cost_usd{provider="p",task="triage"} 1.0\n'
            'headrace_day_cost_usd{provider="p",task="free"} 0.25\n'
            'headrace_budget_usd{task="triage",kind="limit"} 10.0\n'
            'headrace_budget_usd{task="triage",kind="settled"} 4.0\n'
        )
    )
    assert numbers.day_cost_usd == 4.25
    assert Numbers({}).day_cost_usd is None


def test_what_is_parsed_is_what_pages_ask_for_and_what_workers_have() -> None:
    families = [family for metric in metrics.ALL for family in metric.describe()]
    ours = {each.name + ("_total" if each.type == "counter" else "") for each in families}
    app = Path(metrics.__file__).parent
    paths = [app / "web" / "numbers.py", app / "commands" / "run.py", *(app / "web" / "console").rglob("*.py")]
    sources = "".join(path.read_text() for path in paths)
    asked = set(re.findall(r'"(headrace_\w+)"', re.sub(r"WANTED = \([^)]*\)", "", sources))) & ours
    assert asked == set(WANTED)


async def test_a_kafka_that_hangs_does_not_hold_up_the_looks(
    fleet: Fleet, snapshots: Snapshots, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung = asyncio.Event()

    async def hang(partitions: int) -> None:
        hung.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(snapshots._tail, "look", hang)
    monkeypatch.setattr(snapshots._writer, "partitions", lambda topic: 4)
    seen, twice = list[Any](), asyncio.Event()

    def saw(snapshot: Any) -> None:
        seen.append(snapshot)
        if hung.is_set() and len(seen) >= 2:
            twice.set()

    snapshots.subscribe(saw)
    fleet.pages["a"] = page(1)
    running = asyncio.create_task(snapshots.run())
    try:
        async with asyncio.timeout(20):
            await twice.wait()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert hung.is_set()


async def test_a_consumer_that_could_not_start_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = []

    class Refused:
        def __init__(self, **settings: Any) -> None: ...

        async def start(self) -> None:
            raise KafkaConnectionError

        async def stop(self) -> None:
            stopped.append(self)

    monkeypatch.setattr(aiokafka, "AIOKafkaConsumer", Refused)
    tail = Tail(load())
    for _ in range(2):
        with pytest.raises(KafkaConnectionError):
            await tail.look(4)
    assert len(stopped) == 2


async def test_rates_are_over_the_last_ten_seconds(fleet: Fleet, snapshots: Snapshots) -> None:
    for second in range(1, 31):
        fleet.pages["a"] = page(1000 + (10 if second <= 15 else 50) * second)
        snapshot = await snapshots._look(float(second))
    assert snapshot.rates is not None
    assert snapshot.rates.events_in == 50.0
    assert snapshot.rate_s == 10.0
    assert [each.id for each in snapshot.workers] == ["a"]


async def test_the_hour_has_a_point_every_15_seconds_and_gaps_where_nobody_answered(
    fleet: Fleet, snapshots: Snapshots
) -> None:
    fleet.pages["a"] = page(0)
    await snapshots._look(15.0)
    fleet.pages["a"] = page(150)
    await snapshots._look(30.0)
    fleet.pages, fleet.silent = {}, ["a"]
    snapshot = await snapshots._look(45.0)
    assert [point.events for point in snapshot.points] == [None, 10.0, None]
    assert [point.lag for point in snapshot.points] == [8.0, 8.0, None]
    assert snapshot.points[1].tiers == {"rule": 10.0, "light": 0.0, "deep": 0.0, "review": 0.0}
    assert snapshot.hour.events_in == 150.0
    assert [(each.id, why) for each, why in snapshot.silent] == [("a", "ConnectError")]
    assert snapshot.now.total("headrace_lag_records") is None


async def test_points_older_than_an_hour_go(fleet: Fleet, snapshots: Snapshots) -> None:
    for step in range(1, POINTS + 20):
        fleet.pages["a"] = page(step)
        snapshot = await snapshots._look(15.0 * step)
    assert len(snapshot.points) == POINTS
    assert snapshot.hour.events_in == POINTS
    assert snapshot.hour_s == 3600


async def test_something_else_at_a_worker_s_address_counts_as_silent(fleet: Fleet, snapshots: Snapshots) -> None:
    for page_there in ("headrace_lag_records{broken", "headrace_lag_records 1 2 3 x", "headrace_lag_records{a=b} nine"):
        fleet.pages = {"a": page_there, "b": page(1)}
        snapshot = await snapshots._look(1.0)
        assert [each.id for each, _ in snapshot.silent] == ["a"], page_there
        assert [each.id for each in snapshot.workers] == ["b"]
    fleet.pages = {"a": "<html>not metrics</html>"}
    assert (await snapshots._look(2.0)).now.total("headrace_lag_records") is None


async def test_without_a_worker_nothing_is_known(snapshots: Snapshots) -> None:
    snapshot = await snapshots._look(15.0)
    assert (snapshot.workers, snapshot.silent, snapshot.rates) == ([], [], None)
    assert snapshot.points[0].events is None


def test_what_is_not_known_is_a_dash() -> None:
    for written in (show.count, show.rate, show.usd, show.share, show.seconds, show.bytes_):
        assert written(None) == "–"
        assert written(0.0)[:1] in "0$"
    assert (show.usd(0.0000012), show.usd(1234.5), show.rate(0.256), show.rate(30123.4)) == (
        "$1.2e-06", "$1,234.50", "0.256", "30,123",
    )  # fmt: skip
