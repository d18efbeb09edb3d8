"""Events that no provider may see, decided by a person: a real worker and broker, no model."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx

from app.commands.eval import labelled
from app.settings import load
from tests.conftest import Fleet
from tests.helpers import topics
from tests.integration.test_classify import cli, pytestmark, results, until

__all__ = ["pytestmark"]

CONFIG = """
[llm]
base_url = "http://127.0.0.1:9/v1"

[light]
enabled = false

[[marks]]
name = "private"
when = [{ field = "source_system", op = "equals", value = "hospital" }]

[[tasks]]
name = "mood"
instruction = "Say how the writer feels."
categories = [{ id = "happy", description = "Content." }, { id = "unhappy", description = "Complains." }]
"""


def event(event_id: str, message: str = "Irony, as ever.") -> tuple[bytes, bytes]:
    body = {
        "event_id": event_id, "event_type": "note", "event_time": 1_790_000_000_000, "source_system": "hospital",
        "payload": {"message": message},
    }  # fmt: skip
    return event_id.encode(), json.dumps(body).encode()


def decision(event_id: str, category: str, **more: Any) -> tuple[bytes, bytes]:
    body = {"event_id": event_id, "category": category, "reviewer": "anna", "decided_ms": 1_790_000_001_000, **more}
    return event_id.encode(), json.dumps(body).encode()


async def test_decisions_become_results_and_labelled_texts(fleet: Fleet, tmp_path: Path) -> None:
    worker = fleet.started(CONFIG, HEADRACE_REVIEWS__KEEP_S="3600")
    ids = ["r0", "r1", "r/2 😀"]
    for event_id in ids:  # one after the other, so that their order in time is known
        await topics.produce(fleet.bootstrap, f"{fleet.prefix}raw-events", [event(event_id)])
    async with httpx.AsyncClient(base_url=worker.url) as http:

        async def waiting(count: int) -> Any:
            found = (await http.get("/reviews")).json()
            return found if found["waiting"] == count else None

        found = await until(lambda: waiting(3), 60, "three reviews that wait")
        assert {row["review"]["event_id"] for row in found["reviews"]} == set(ids)
        assert [row["at_ms"] for row in found["reviews"]] == sorted(row["at_ms"] for row in found["reviews"])
        assert found["reviews"][0]["review"]["cause"] == "no-provider-allowed"
        assert found["restoring"] == []
        assert (await http.get("/reviews?task=other")).json()["reviews"] == []
        decisions = [
            decision("r0", "happy", note="<b>plain</b>"),
            decision("r/2 😀", "unhappy"),
            decision("r1", "glad"),
            decision("nobody", "happy"),
        ]
        await topics.produce(fleet.bootstrap, f"{fleet.prefix}review-decisions", decisions)
        assert await until(lambda: waiting(1), 30, "two are decided")

    decided = {r["event_id"]: r for r in await results(fleet)}
    assert {event_id: (r["category"], r["tier"], r["reviewer"]) for event_id, r in decided.items()} == {
        "r0": ("happy", "review", "anna"), "r/2 😀": ("unhappy", "review", "anna"),
    }  # fmt: skip
    raw = {r.key.decode(): (r.topic, r.partition, r.offset)
           for r in await topics.read(fleet.bootstrap, f"{fleet.prefix}raw-events")}  # fmt: skip
    assert tuple(decided["r0"]["source"].values()) == raw["r0"]

    async def dead() -> Any:
        found = await topics.read(fleet.bootstrap, f"{fleet.prefix}dead-letter")
        return found if len(found) == 2 else None

    letters = await until(dead, 30, "two decisions that can't be taken")
    reasons = {letter.key: dict(letter.headers)["headrace.reason"] for letter in letters}
    assert reasons == {b"r1": b"bad-decision", b"nobody": b"unknown-review"}

    file = tmp_path / "labelled.jsonl"
    exported = await cli(worker, "reviews", "export", str(file))
    assert (exported.returncode, exported.stderr) == (0, "2 decided reviews\n")
    task = load(Path(worker.env["HEADRACE_CONFIG"])).tasks[0]
    assert sorted(labelled(file, "text", "category", {}, task)) == [
        ("Irony, as ever.", "happy"), ("Irony, as ever.", "unhappy"),
    ]  # fmt: skip
    traced = [json.loads(line) for line in (await cli(worker, "trace", "r/2 😀", "--json")).stdout.splitlines()]
    assert [(step["stage"], step["map"]) for step in traced] == [
        ("ingest-raw-events", "seen"), ("classify", "answered"), ("review", "waiting"), ("review", "decided"),
    ]  # fmt: skip
    assert traced[-1]["written"]["value"] == decided["r/2 😀"]
    assert await asyncio.to_thread(worker.stop) == 0
