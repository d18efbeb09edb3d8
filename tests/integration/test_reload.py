"""A changed headrace.toml under a running worker: whole, or not at all."""

import asyncio
import json
from pathlib import Path

import pytest

from tests.conftest import Fleet
from tests.helpers.modelserver import ModelServer
from tests.helpers.processes import Worker
from tests.integration.test_classify import has, messages, results, send, until

pytestmark = pytest.mark.integration

CONFIG = """
[kafka]
partitions = {partitions}

[llm]
base_url = "{url}"
model = "stub"
batch_wait_ms = 20
concurrency = 1

[light]
enabled = false

[[sources]]
name = "raw-events"
topic = "raw-events"
prefixed = true

[[tasks]]
name = "shop"
instruction = "{instruction}"
template_file = "prompt.txt"

[[tasks.rules]]
name = "{rule}"
category = "other"
when = [{{ field = "payload.kind", op = "equals", value = "{rule}" }}]

{categories}
"""


def config(url: str, names: list[str], instruction: str, rule: str, partitions: int = 4) -> str:
    categories = "".join(f'[[tasks.categories]]\nid = "{name}"\ndescription = "{name}"\n' for name in names)
    return CONFIG.format(url=url, instruction=instruction, categories=categories, rule=rule, partitions=partitions)


FIRST = ["payment", "order", "logistics", "other"]
SECOND = ["payment", "logistics", "other"]


async def says(worker: Worker, text: str, times: int = 1) -> None:
    async def said() -> bool:
        return worker.log.read_text(errors="replace").count(text) >= times

    await until(said, 20, f"the log says {text!r}")


async def test_new_prompt_categories_and_rules_are_taken_and_a_bad_file_changes_nothing(fleet: Fleet) -> None:
    async with ModelServer(latency_ms=1500) as server:
        worker = fleet.worker(config(server.base_url, FIRST, "first", "early"))
        path = Path(worker.env["HEADRACE_CONFIG"])
        template = path.with_name("prompt.txt")
        template.write_text("{instruction}\n{categories}")
        worker.start()
        await asyncio.to_thread(worker.wait_ready)
        await send(fleet, messages(300))
        await until(lambda: has(fleet, 40), 90, "some results by the first prompt")
        path.write_text(config(server.base_url, SECOND, "second", "late"))
        await says(worker, "headrace.toml is taken")
        server.latency_ms = 400
        server.by_text.update({f"please cancel my order ({n})": "other" for n in range(400)})
        server.by_text.update({f"我要修改订单 ({n})": "other" for n in range(400)})
        await until(lambda: has(fleet, 300), 60, "all results")
        found = await results(fleet)
        versions = {r["prompt_version"] for r in found}
        assert len(versions) == 2
        assert "" not in versions
        prompts = {r["content"].splitlines()[0] for call in server.calls for r in call.body["messages"][:1]}
        assert prompts == {"first", "second"}
        second = server_version(found)
        by_second = {r["event_id"]: r for r in found if r["prompt_version"] == second}
        assert {r["category"] for r in by_second.values()} <= set(SECOND)
        assert "order" in {r["category"] for r in found if r["event_id"] not in by_second}
        server.latency_ms = 10

        path.write_text(config(server.base_url, SECOND, "third", "late", partitions=7))
        await says(worker, "kafka.partitions can't be changed while the worker runs")
        path.write_text('[[tasks]]\nname = "broken"\n')
        await says(worker, "is NOT taken", 2)
        late = {"event_id": "rule-1", "event_type": "x", "event_time": 1_790_000_000_000, "payload": {"kind": "late"}}
        await send(fleet, [(b"u", json.dumps(late).encode()), *messages(20, start=300)])
        await until(lambda: has(fleet, 321), 90, "results after the refused files")
        newest = {r["event_id"]: r for r in await results(fleet)}
        assert newest["rule-1"]["why"] == "late"
        assert {newest[f"m{n}"]["prompt_version"] for n in range(300, 320)} == {second}
        assert "third" not in {r["content"].splitlines()[0] for call in server.calls for r in call.body["messages"][:1]}

        path.write_text(config(server.base_url, SECOND, "second", "late"))
        template.write_text("{instruction}\n{catgories}")
        await says(worker, "there is no {catgories}")
        template.write_text("---\nversion: fourth-1\n---\nfourth\n{categories}")
        await says(worker, "headrace.toml is taken", 2)
        template.write_text("---\nversion: fourth-1\n---\nfifth\n{categories}")
        await says(worker, "prompt version 'fourth-1' must change too")
        await send(fleet, messages(20, start=320))
        await until(lambda: has(fleet, 341), 30, "results by the fourth prompt")
        newest = {r["event_id"]: r for r in await results(fleet)}
        assert {newest[f"m{n}"]["prompt_version"] for n in range(320, 340)} == {"fourth-1"}
        assert {call.body["messages"][0]["content"].splitlines()[0] for call in server.calls[-1:]} == {"fourth"}
        assert worker.stop() == 0


def server_version(found: list[dict[str, str]]) -> str:
    """Of the event that was answered last."""
    return max(found, key=lambda r: int(r["created_ms"]))["prompt_version"]
