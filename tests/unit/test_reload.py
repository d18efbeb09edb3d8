"""Which changes are noticed, without a worker."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app import reload
from app.errors import SettingsError
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


@pytest.mark.parametrize(
    "others", ["[console]\nlogin_failures = 7", "[gateway]\nport = 9999", "[[sinks]]\nname = 'mine'"]
)
def test_settings_of_other_processes_keep_no_worker_from_taking_a_file(tmp_path: Path, others: str) -> None:
    app: Any = SimpleNamespace(settings=load(), reloadable=[])
    config = tmp_path / "headrace.toml"
    config.write_text(f"{others}\n[light]\nthreshold = 0.9\n")
    reload.take(app, load(config))
    assert app.settings.light.threshold == 0.9


def test_settings_that_need_a_restart_are_refused_with_their_names(tmp_path: Path) -> None:
    before = load()
    app: Any = SimpleNamespace(settings=before, reloadable=[])
    config = tmp_path / "headrace.toml"
    config.write_text("[light]\nthreshold = 0.9\nthreads = 2\n[web]\nport = 0\n")
    with pytest.raises(SettingsError, match=r"light\.threads, web\.port can't be changed while the worker runs"):
        reload.take(app, load(config))
    assert app.settings is before
