"""How quick look-ups and pages of the console are with many keys in a worker, at rest and while it works at its highest rate.

A page is timed as its viewer waits for it: from the request until its socket brings what was asked for.
"""

import asyncio
import json
import random
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import socketio

from app.web.announce import path_part
from app.web.numbers import Numbers, parse
from tests.bench.data import Expected, preload, records
from tests.bench.large import RESTORE_S, STATE, Filled, Setup, Worker
from tests.bench.launched import launched
from tests.bench.path import READY, wait_ready
from tests.helpers.gateway import WebProcess
from tests.helpers.processes import wait_until

__all__ = ["open_page", "run"]

GOAL_MS = 300.0
"""p99 of a page while the worker works at its highest rate."""
TABLE = f"{STATE}/seen"
EVERY_S = 0.1
"""Between two look-ups: about what a handful of people do."""
ASKED_S = 0.01
"""Between two questions for health, whose longest answer tells of the longest block of the worker's event loop."""
PAGE_S = 30.0
RECENT = 20_000
"""Events from the input's start whose traces are asked for."""
SEED = 77

Look = Callable[[], Awaitable[object]]


@dataclass(frozen=True, kw_only=True)
class Times:
    """Milliseconds that one kind of look took."""

    name: str
    ms: list[float]

    def at(self, percent: int) -> float:
        return sorted(self.ms)[min(len(self.ms) - 1, len(self.ms) * percent // 100)] if self.ms else 0.0

    def __str__(self) -> str:
        longest = max(self.ms, default=0.0)
        return f"{self.name:28}{len(self.ms):>7}{self.at(50):>10.1f}{self.at(99):>10.1f}{longest:>10.1f}"


def run(folder: Path, bootstrap: str, keys: int, events: int, seconds: float) -> float:
    """Prints all figures; returns the largest p99 of a page under load, in ms."""
    filled = Filled(folder / f"ids-{keys}", bootstrap, keys, Setup(probe=events, whole=True), print)
    env = {name: value for name, value in filled.launch.env.items() if not name.startswith("HEADRACE_WEB__")}
    web = WebProcess(folder / "web", {**env, "HEADRACE_DATA_DIR": str(folder / "web")})
    times = filled.log.read_text(encoding="utf-8", errors="replace").count(READY)
    try:
        with launched([(filled.launch, filled.log)]) as (running, _):
            wait_ready(running, times + 1, RESTORE_S)
            worker = Worker(running[0], filled.launch)
            print(f"restored: {worker.restored()}, {worker.peak_mb} MB at most")
            worker.settle()
            web.start()
            link = wait_until(lambda: re.search(r"\S+/\?token=\S+", web.log.read_text()), 20, "the link")[0]
            return asyncio.run(_measure(filled, worker, link, events, seconds))
    finally:
        web.kill()


async def _measure(filled: Filled, worker: Worker, link: str, events: int, seconds: float) -> float:
    known = [json.loads(value)["event_id"] for _, value in filled.table.known(5000, SEED)]
    ids = Ids(known)
    async with (
        httpx.AsyncClient(base_url=worker.url, timeout=60, trust_env=False) as http,
        httpx.AsyncClient(timeout=60, trust_env=False, follow_redirects=True) as viewer,
    ):
        await viewer.get(link)
        site = link.partition("/?")[0]
        kinds = {**_asked(http, ids), **_pages(viewer, site, ids)}
        _show("at rest", await _look(kinds, seconds), worker)
        print(f"appending {events} events")
        await preload(filled.bootstrap, filled.topic, events, seed=SEED, partitions=filled.setup.partitions)
        ids.recent = _recent()
        _show("at its highest rate, nobody looks", await _busy(http, {}, seconds), worker)
        found = await _busy(http, kinds, seconds)
        _show("at its highest rate", found, worker)
    return max(each.at(99) for each in found if each.name.startswith("page"))


@dataclass
class Ids:
    """Event ids to ask for."""

    known: list[str]
    """Of the table."""
    recent: list[str] | None = None
    """Of events that came in since."""

    def any(self) -> str:
        return random.choice(self.recent or self.known)  # which of them doesn't matter


def _recent() -> list[str]:
    expected = Expected()
    for _ in records(RECENT, expected, SEED):
        pass
    return sorted(expected.clean)


async def _busy(http: httpx.AsyncClient, kinds: dict[str, Look], seconds: float) -> list[Times]:
    """Looks while events go through; notes at which rate, and how long the worker's loop was away."""
    health = Times(name="health, each 10 ms", ms=[])

    async def ask() -> None:
        while True:
            health.ms.append(await _timed(lambda: http.get("/healthz")))
            await asyncio.sleep(ASKED_S)

    before, begun = await _taken(http), time.monotonic()
    asking = asyncio.create_task(ask())
    try:
        found = await _look(kinds, seconds)
    finally:
        asking.cancel()
    spent = time.monotonic() - begun
    print(f"\n{((await _taken(http)) - before) / spent:.0f} events/s over {spent:.0f} s")
    return [*found, health]


async def _taken(http: httpx.AsyncClient) -> float:
    return Numbers(parse((await http.get("/metrics")).text)).events_in or 0.0


async def _look(kinds: dict[str, Look], seconds: float) -> list[Times]:
    """Each kind in turn, as long as the time lasts."""
    found = [Times(name=name, ms=[]) for name in kinds]
    until = time.monotonic() + seconds
    if not kinds:
        await asyncio.sleep(seconds)
    while kinds and time.monotonic() < until:
        for times, look in zip(found, kinds.values(), strict=True):
            times.ms.append(await _timed(look))
            await asyncio.sleep(EVERY_S)
    return found


async def _timed(look: Look) -> float:
    begun = time.monotonic()
    await look()
    return (time.monotonic() - begun) * 1000


def _show(when: str, found: list[Times], worker: Worker) -> None:
    print(f"\n{when}: the worker takes {worker.rss_mb:.0f} MB, {worker.peak_mb:.0f} at most so far")
    print(f"{'':28}{'looks':>7}{'p50 ms':>10}{'p99 ms':>10}{'longest':>10}")
    for each in found:
        print(each)


# -- the worker's own port -------------------------------------------------------------------------------------------


def _asked(http: httpx.AsyncClient, ids: Ids) -> dict[str, Look]:
    async def get(path: str, rows: bool | None = None, **params: str) -> None:
        answer = await http.get(path, params=params)
        assert answer.status_code == 200, (path, answer.status_code, answer.text[:300])
        if rows is not None:
            assert bool(answer.json()["rows"]) is rows, (path, params)

    def anywhere() -> dict[str, str]:
        return {"partition": str(random.randrange(4)), "start": random.randbytes(2).hex().encode().hex()}

    return {
        "worker, first page": lambda: get(f"/tables/{TABLE}", rows=True, limit="50"),
        "worker, a page anywhere": lambda: get(f"/tables/{TABLE}", rows=True, limit="50", **anywhere()),
        "worker, a key": lambda: get(f"/tables/{TABLE}", rows=True, key=random.choice(ids.known)),
        "worker, an absent key": lambda: get(f"/tables/{TABLE}", rows=False, key=uuid.uuid4().hex),
        "worker, trace": lambda: get(f"/trace/{path_part(ids.any())}"),
        "worker, tables": lambda: get("/tables"),
        "worker, metrics": lambda: get("/metrics"),
    }


# -- pages -----------------------------------------------------------------------------------------------------------


def _pages(http: httpx.AsyncClient, site: str, ids: Ids) -> dict[str, Look]:
    leaving: list[asyncio.Task[None]] = []
    """Nobody waits for a page that is left."""

    async def page(path: str, mark: str = "", then: str = "") -> None:
        async with asyncio.timeout(PAGE_S):
            shown = Page()
            await shown.open(http, site, path)
            try:
                if mark:
                    await shown.until(mark)
                if then:
                    await shown.press(then)
                    await shown.until(mark)
            finally:
                leaving.append(asyncio.create_task(shown.client.disconnect()))

    def key() -> str:
        return random.choice(ids.known)

    return {
        "page Tables, first": lambda: page(f"/tables?table={TABLE}", "rows"),
        "page Tables, first and next": lambda: page(f"/tables?table={TABLE}", "rows", then="forward"),
        "page Tables, a key": lambda: page(f"/tables?table={TABLE}&key={key()}", "rows"),
        "page Event": lambda: page(f"/event?id={ids.any()}", "steps"),
        "page Overview": lambda: page("/"),
    }


async def open_page(http: httpx.AsyncClient, site: str, path: str = "/") -> socketio.AsyncClient:
    """Opens a page and its socket, as the page's script does."""
    page = Page()
    await page.open(http, site, path)
    return page.client


class Page:
    """A page that somebody looks at: what its socket brought."""

    def __init__(self) -> None:
        self.client = socketio.AsyncClient()
        self.client.on("update", self._updated)
        self._elements: dict[str, Any] = {}
        self._fresh: set[str] = set()
        """Elements that came since `press`."""
        self._changed = asyncio.Event()
        self._id = ""

    async def open(self, http: httpx.AsyncClient, site: str, path: str) -> None:
        text = (await http.get(f"{site}{path}")).text
        client_id = re.search(r"client_id[\"']: [\"']([0-9a-f-]{36})", text)
        assert client_id is not None, text[-3000:]
        self._id = client_id[1]
        cookie = "; ".join(f"{name}={value}" for name, value in http.cookies.items())
        await self.client.connect(
            f"{site}?client_id={self._id}", socketio_path="/_nicegui_ws/socket.io", headers={"Cookie": cookie},
            transports=["websocket"],
        )  # fmt: skip
        shake = {
            "client_id": self._id, "tab_id": str(uuid.uuid4()), "document_id": str(uuid.uuid4()), "next_message_id": 0,
        }  # fmt: skip
        assert await self.client.call("handshake", shake)

    def _updated(self, elements: dict[str, Any]) -> None:
        self._fresh |= elements.keys()
        for number, element in elements.items():
            if element is None:
                self._elements.pop(number, None)
            elif isinstance(element, dict):
                self._elements[number] = element
        self._changed.set()

    def _marked(self, mark: str, fresh: bool) -> Iterator[tuple[str, dict[str, Any]]]:
        for number, element in self._elements.items():
            if element.get("props", {}).get("data-mark") == mark and (not fresh or number in self._fresh):
                yield number, element

    async def until(self, mark: str) -> None:
        """Waits until an element with this mark came."""
        while next(self._marked(mark, fresh=True), None) is None:
            self._changed.clear()
            await self._changed.wait()

    async def press(self, mark: str) -> None:
        """Clicks a button."""
        number, element = next(self._marked(mark, fresh=False))
        listener = next(e for e in element["events"] if e["type"] == "click")
        self._fresh.clear()
        await self.client.emit(
            "event", {"id": int(number), "client_id": self._id, "listener_id": listener["listener_id"], "args": []}
        )
