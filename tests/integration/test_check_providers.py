"""`headrace check --providers` as a user starts it, against real local servers."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from tests.helpers import modelserver as ms
from tests.helpers.processes import free_port

CONFIG = """
[llm]
base_url = "{one}"
model = "stub"

[[llm.providers]]
name = "keyed"
base_url = "{two}"
model = "stub"
api_key_env = "SOME_KEY"

[[llm.providers]]
name = "gone"
base_url = "http://127.0.0.1:{port}/v1"
model = "stub"
"""


async def check(folder: Path, key: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")}
    return await asyncio.to_thread(
        subprocess.run, [sys.executable, "-m", "app", "check", "--providers"], capture_output=True, text=True, check=False,
        timeout=60, env={**env, "HEADRACE_CONFIG": str(folder / "headrace.toml"), "SOME_KEY": key},
    )  # fmt: skip


async def test_each_provider_gets_one_completion_and_says_what_works(tmp_path: Path) -> None:
    async with ms.ModelServer() as one, ms.ModelServer(api_key="right") as two:
        (tmp_path / "headrace.toml").write_text(CONFIG.format(one=one.base_url, two=two.base_url, port=free_port()))
        done = await check(tmp_path, "right")
        assert done.returncode == 1, done.stderr
        lines = done.stdout.splitlines()
        assert "ok    main" in lines[1]
        assert "structured output" in lines[1]
        assert "ok    keyed" in lines[2]
        assert "FAIL  gone" in lines[3]
        assert (len(one.calls), len(two.calls)) == (1, 1)
        wrong = await check(tmp_path, "wrong")
        assert "FAIL  keyed" in wrong.stdout
        assert "401" in wrong.stdout
        assert "wrong" not in wrong.stdout.replace("things are wrong", "")
