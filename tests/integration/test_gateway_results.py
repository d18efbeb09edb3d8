"""A gateway beside a real worker: an event goes in over HTTP, its result and the tables come out."""

import asyncio
import json
import signal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.conftest import Fleet
from tests.helpers import topics
from tests.helpers.gateway import WebProcess, an_event
from tests.helpers.processes import wait_until

pytestmark = pytest.mark.integration

CONFIG = """
[llm]
base_url = "http://127.0.0.1:9/v1"

[light]
enabled = false
"""


async def test_an_event_sent_over_http_is_found_by_its_id_in_the_tables_and_after_a_restart(
    fleet: Fleet, tmp_path: Path
) -> None:
    worker = fleet.worker(CONFIG, HEADRACE_RESULTS__KEEP_S="3600", HEADRACE_INGEST__MAX_EVENT_BYTES="2000")
    worker.start()
    base = {"HEADRACE_KAFKA__BOOTSTRAP_SERVERS": fleet.bootstrap, "HEADRACE_KAFKA__TOPIC_PREFIX": fleet.prefix}
    web = await asyncio.to_thread(WebProcess(tmp_path / "web", base).start)
    try:
        await asyncio.to_thread(wait_until, lambda: worker.ready_times() == 1, 60, "worker ready")
        odd = "a/../b 😀?#%2F&x=1"
        token = await web.key("produce", "read")
        async with web.client(token) as http:
            sent = await http.post("/v1/events", json=[an_event("e1", entity_id="u1"), an_event(odd), an_event("..")])
            assert sent.status_code == 202
            for event_id in ("e1", odd, ".."):
                reply = await http.get(f"/v1/results/{quote(event_id, safe='').replace('.', '%2E')}?wait=30")
                assert reply.status_code == 200, (event_id, reply.text)
                assert (reply.json()["event_id"], reply.json()["category"]) == (event_id, "order")
            records = await topics.read(fleet.bootstrap, f"{fleet.prefix}ai-results")
            assert reply.content in [record.value for record in records]

            tables = (await http.get("/v1/tables")).json()
            kept = next(table for table in tables["tables"] if table["state"] == "results")
            assert {partition["state"] for partition in kept["partitions"].values()} == {"owned"}
            page = (await http.get("/v1/tables/results/kept?limit=2")).json()
            rest = (await http.get(f"/v1/tables/results/kept?limit=2&start={page['next']}")).json()
            assert {row["key"] for row in page["rows"] + rest["rows"]} == {"e1", odd, ".."}
            one = (await http.get("/v1/tables/results/kept", params={"key": odd})).json()
            assert [row["key"] for row in one["rows"]] == [odd]

            assert await redriven(fleet, worker, web, http) == "order"
            assert (await http.get("/v1/results/e1?wait=30")).json()["category"] == "order"
        web.signal(signal.SIGTERM)
        assert web.wait() in (0, -signal.SIGTERM)
    finally:
        web.kill()


async def redriven(fleet: Fleet, worker: Any, web: WebProcess, http: Any) -> str:
    """A dead letter by a limit that is then raised: after the restart it is sent back, and its result comes."""
    large = an_event("large", payload={"message": "x" * 3000})
    await http.post("/v1/events", json=large)
    reply = await http.get("/v1/results/large?wait=1")
    assert reply.status_code == 404
    while not await topics.read(fleet.bootstrap, f"{fleet.prefix}dead-letter"):
        await asyncio.sleep(0.2)
    await asyncio.to_thread(worker.stop)
    del worker.env["HEADRACE_INGEST__MAX_EVENT_BYTES"]
    worker.start()
    said = await asyncio.to_thread(web.command, "redrive", "--reason", "too-large", "--yes")
    assert "moved 1" in said
    await asyncio.to_thread(wait_until, lambda: worker.ready_times() == 2, 60, "worker ready again")
    result = (await http.get("/v1/results/large?wait=60")).json()
    raw = next(r for r in await topics.read(fleet.bootstrap, f"{fleet.prefix}raw-events") if b"large" in r.value)
    assert json.loads(raw.value) == large
    assert result["source"]["offset"] > raw.offset
    category: str = result["category"]
    return category
