"""`headrace eval` as a user starts it."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.helpers import modelserver as ms
from tests.helpers.model_faults import Fault

ROWS = [
    ("where is my parcel", "logistics"), ("I was charged twice", "payment"), ("please cancel my order", "order"),
    ("hello there", "other"), ("什么时候退款", "payment"), ("快递没有收到", "order"),
]  # fmt: skip
"""The stub says logistics of the last one."""


async def evaluate(base_url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")}
    more = {"HEADRACE_LLM__BASE_URL": base_url, "HEADRACE_LLM__MODEL": "stub", "HEADRACE_LLM__PRICE_PROMPT_USD": "2"}
    return await asyncio.to_thread(
        subprocess.run, [sys.executable, "-m", "app", "eval", *arguments], capture_output=True, text=True, check=False,
        timeout=90, env={**env, **more},
    )  # fmt: skip


async def test_both_tiers_on_a_file_as_table_and_json(tmp_path: Path) -> None:
    file, mapping = tmp_path / "labelled.jsonl", tmp_path / "map.json"
    file.write_text("\n".join(json.dumps({"text": t, "label": f"l-{c}"}, ensure_ascii=False) for t, c in ROWS))
    mapping.write_text(json.dumps({f"l-{c}": c for _, c in ROWS}))
    common = (str(file), "--label", "label", "--map", str(mapping))
    async with ms.ModelServer() as server:
        done = await evaluate(server.base_url, *common, "--tier", "both", "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        light, deep = found["tiers"]
        assert light["texts"] == deep["texts"] == 6
        assert (light["name"], deep["name"]) == ("light", "deep, main")
        assert deep["accuracy"] == 5 / 6
        assert deep["confusion"]["order"] == {"order": 1, "logistics": 1}
        assert deep["categories"]["logistics"] == {"precision": 0.5, "recall": 1.0, "texts": 1}
        assert deep["cost_usd"] > 0
        assert deep["latency_ms"]["p99"] >= deep["latency_ms"]["p50"]
        assert deep["causes"] == {}
        table = await evaluate(server.base_url, *common, "--tier", "deep")
        assert "accuracy 83.3%" in table.stdout
        assert "order -> logistics 1" in table.stdout
        file.write_text(
            "\n".join(json.dumps({"text": f"{t} {n}", "label": f"l-{c}"}) for n in range(10) for t, c in ROWS[:4])
        )
        many = await evaluate(server.base_url, *common, "--tier", "deep", "--json")  # more than one call
        assert json.loads(many.stdout)["tiers"][0]["accuracy"] == 1.0, many.stderr


async def test_why_texts_have_no_answer_is_said(tmp_path: Path) -> None:
    file = tmp_path / "labelled.csv"
    file.write_text("text,category\nwhere is my parcel,logistics\n")
    async with ms.ModelServer() as server:
        server.script(*[Fault(missing=[1])] * 10)
        done = await evaluate(server.base_url, str(file), "--tier", "deep")
    assert "1 without an answer" in done.stdout
    assert "no answer for 1: no-answer" in done.stdout


async def test_label_that_is_no_category_is_named_with_its_row(tmp_path: Path) -> None:
    file = tmp_path / "labelled.csv"
    file.write_text("text,category\nhello,other\nhello,greeting\n")
    done = await evaluate("http://127.0.0.1:1/v1", str(file))
    assert done.returncode == 1
    assert "row 2" in done.stderr
    assert "greeting" in done.stderr
