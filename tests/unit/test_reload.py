"""Which changes are noticed, without a worker."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app import reload
from app.settings import load

TASK = """
[[tasks]]
name = "mood"
template_file = "{template}"
categories = [{{ id = "happy", description = "content" }}, {{ id = "sad", description = "not" }}]
"""


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0.01)


async def test_a_file_that_was_refused_is_looked_at_again_when_it_is_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reload, "EVERY_S", 0.02)
    config, new = tmp_path / "headrace.toml", tmp_path / "new.txt"
    (tmp_path / "old.txt").write_text("Old {categories} {form}")
    config.write_text(TASK.format(template="old.txt"))
    app: Any = SimpleNamespace(settings=load(config), reloadable=[])
    watching = asyncio.ensure_future(reload.watch(app, config))
    try:
        await asyncio.sleep(0.05)
        new.write_text("")
        config.write_text(TASK.format(template="new.txt") + "# another size\n")
        await until(lambda: "is NOT taken" in caplog.text)
        assert "there is no template in it" in caplog.text
        new.write_text("New {categories} {form}")
        await until(lambda: app.settings.tasks[0].template.startswith("New"))
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
