"""The day's money over several real workers: never more than the limit, and the policy's path at it."""

import asyncio
import json

import pytest

from tests.conftest import Fleet
from tests.helpers import topics
from tests.helpers.modelserver import ModelServer
from tests.integration.test_classify import has, messages, results, send, until

pytestmark = pytest.mark.integration

PRICE_USD = 100.0
"""A million tokens, so that a few hundred events cost some cents."""


def cost(server: ModelServer) -> float:
    """What the provider would bill: tokens of every call that it answered."""
    return server.tokens * PRICE_USD / 1e6


async def workers(fleet: Fleet, server: ModelServer, count: int, **env: str) -> None:
    more = {
        "HEADRACE_LLM__BASE_URL": server.base_url, "HEADRACE_LLM__MODEL": "stub", "HEADRACE_LIGHT__ENABLED": "false",
        "HEADRACE_LLM__PRICE_PROMPT_USD": str(PRICE_USD), "HEADRACE_LLM__PRICE_COMPLETION_USD": str(PRICE_USD),
        "HEADRACE_LLM__BATCH_ITEMS": "5", "HEADRACE_LLM__CONCURRENCY": "2", **env,
    }  # fmt: skip
    for _ in range(count):
        worker = fleet.worker(**more)
        worker.start()
        await asyncio.to_thread(worker.wait_ready)


async def test_three_workers_spend_no_more_than_the_limit_and_the_rest_goes_to_review(fleet: Fleet) -> None:
    limit = 0.6
    async with ModelServer(latency_ms=20) as server:
        await workers(
            fleet, server, 3, HEADRACE_BUDGET__DAY_USD=str(limit), HEADRACE_BUDGET__OVER="review",
            HEADRACE_BUDGET__LEASE_SHARE="0.1",
        )  # fmt: skip
        await send(fleet, messages(300))

        async def all_there() -> bool:
            return len(await results(fleet)) + len(await results(fleet, "manual-review")) >= 300

        await until(all_there, 60, "an outcome of every event")
        done, reviews = await results(fleet), await results(fleet, "manual-review")
        assert len({r["event_id"] for r in done} | {r["event_id"] for r in reviews}) == 300
        assert {r["cause"] for r in reviews} == {"over-budget"}
        assert 0.3 * limit < cost(server) <= limit
        assert sum(r["cost_usd"] for r in done) == pytest.approx(cost(server), abs=1e-6)
        leases: dict[str, float] = {}
        settled = 0.0
        granted = await topics.read(fleet.bootstrap, f"{fleet.prefix}budget-grants", partitions=1)
        for grant in (json.loads(record.value) for record in granted):
            leases[grant["lease"]] = grant["amount"]
        for record in await topics.read(fleet.bootstrap, f"{fleet.prefix}budget"):
            request = json.loads(record.value)
            if request["kind"] == "settle" and leases.pop(request["lease"], 0.0):
                settled += request["amount"]
        assert settled + sum(leases.values()) <= limit + 1e-9


async def test_events_wait_at_the_limit_and_the_next_day_has_money_again(fleet: Fleet) -> None:
    limit = 0.2
    """A call of 5 events costs 0.025 and sets about 0.13 aside, so a day has money for about 3 of the 8 calls."""
    async with ModelServer() as server:
        await workers(
            fleet, server, 1, HEADRACE_BUDGET__DAY_USD=str(limit), HEADRACE_BUDGET__PERIOD_S="8",
            HEADRACE_BUDGET__LEASE_SHARE="1",
        )  # fmt: skip
        await send(fleet, messages(40))
        await until(lambda: has(fleet, 40), 120, "all results, over some days")
        assert await results(fleet, "manual-review") == []
        days = {
            json.loads(r.value)["day"] for r in await topics.read(fleet.bootstrap, f"{fleet.prefix}budget-grants", 1)
        }
        assert len(days) > 1
        assert 0 < cost(server) <= limit * len(days)


async def test_at_the_limit_the_light_answer_stands_where_the_task_says_so(fleet: Fleet) -> None:
    async with ModelServer() as server:
        await workers(
            fleet, server, 1, HEADRACE_BUDGET__DAY_USD="0.001", HEADRACE_BUDGET__OVER="light",
            HEADRACE_LIGHT__ENABLED="true", HEADRACE_LIGHT__THRESHOLD="1.0",
        )  # fmt: skip
        await send(fleet, messages(20))
        await until(lambda: has(fleet, 20), 60, "20 results")
        found = await results(fleet)
        assert {r["tier"] for r in found} == {"light"}
        assert all(r["why"].endswith("over budget") for r in found)
        assert server.calls == []


async def test_two_workers_of_which_one_is_killed_keep_to_the_providers_calls_a_minute(fleet: Fleet) -> None:
    limit, minute_s = 12, 3.0
    async with ModelServer() as server:
        made = []
        for _ in range(2):
            worker = fleet.worker(
                HEADRACE_LLM__BASE_URL=server.base_url, HEADRACE_LLM__MODEL="stub", HEADRACE_LIGHT__ENABLED="false",
                HEADRACE_LLM__BATCH_ITEMS="2", HEADRACE_LLM__JSON_SCHEMA="false",
                HEADRACE_LLM__REQUESTS_PER_MINUTE=str(limit), HEADRACE_BUDGET__MINUTE_S=str(minute_s),
            )  # fmt: skip
            worker.start()
            await asyncio.to_thread(worker.wait_ready)
            made.append(worker)
        await send(fleet, messages(48))
        await until(lambda: has(fleet, 12), 60, "some results")
        made[0].kill()
        made[0].start()
        await until(lambda: has(fleet, 48), 90, "all results")
        at = [call.at for call in server.calls]
        assert len(at) >= 24
        # What was handled late by this process looks closer to what came after it.
        most = max(sum(begin <= other < begin + minute_s - 1.0 for other in at) for begin in at)
        assert most <= limit
        assert await results(fleet, "manual-review") == []
