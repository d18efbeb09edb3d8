"""Looks at the workers that pages share."""

import asyncio
import gc
from types import SimpleNamespace
from typing import Any

import pytest

from app.errors import HeadraceError
from app.web.console.looks import Looks
from app.web.workers import Heard


class Workers:
    """Count the questions; answers wait where `go_on` is cleared, and fail where they are told to."""

    def __init__(self) -> None:
        self.asked, self.fails = 0, False
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def ask(self) -> Heard:
        self.asked += 1
        await self.go_on.wait()
        if self.fails:
            raise HeadraceError("no worker is alive")
        return Heard([], [])


async def test_a_look_serves_others_for_its_time_unless_they_want_more_or_a_fresh_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(monotonic=lambda: clock.now, now=100.0)
    monkeypatch.setattr("app.web.console.looks.time", clock)
    looks, workers = Looks(keep_s=2.0), Workers()
    await asyncio.gather(looks.look("a", workers.ask, size=5), looks.look("a", workers.ask, size=5))
    await looks.look("a", workers.ask, size=3)
    assert workers.asked == 1
    await looks.look("a", workers.ask, size=6)
    await looks.look("a", workers.ask, fresh=True)
    await looks.look("b", workers.ask)
    assert workers.asked == 4
    clock.now += 1.9
    await looks.look("b", workers.ask)
    assert workers.asked == 4
    clock.now += 0.2
    await looks.look("b", workers.ask)
    assert workers.asked == 5


async def test_looks_that_are_over_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(monotonic=lambda: clock.now, now=100.0)
    monkeypatch.setattr("app.web.console.looks.time", clock)
    looks, workers = Looks(keep_s=2.0), Workers()
    for number in range(5):
        await looks.look(f"event {number}", workers.ask)
        clock.now += 2
    assert list(looks._looks) == ["event 4"]


async def test_a_look_that_fails_when_its_page_has_gone_is_no_error_of_the_loop() -> None:
    looks, workers = Looks(keep_s=2.0), Workers()
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    workers.go_on.clear()
    workers.fails = True
    gone = asyncio.ensure_future(looks.look("a", workers.ask))
    while not workers.asked:
        await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait([gone])
    workers.go_on.set()
    while not next(iter(looks._looks.values())).answers.done():
        await asyncio.sleep(0)
    await asyncio.sleep(0)  # its callbacks
    del gone, looks
    gc.collect()
    assert told == []
