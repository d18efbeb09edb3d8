"""State of all workers: what maps there are, pages over all partitions, and single keys. For the gateway and the console."""

import re
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from app.web.workers import Answer, Silent, heard

__all__ = ["MAX_PAGE", "Page", "States", "find", "page", "states"]

MAX_PAGE = 1000
"""Rows a page has at most, as workers give them."""
START = re.compile(r"(\d{1,6}:([0-9a-f]{2}){0,4096})?")
"""Where a page begins: the partition, and the key's bytes in hex."""

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")

Ask = Callable[[str, dict[str, str]], Coroutine[Any, Any, list[Answer]]]
"""Asks all workers (see `Workers.ask_all`)."""


class States(msgspec.Struct, kw_only=True):
    """Every State, by name, and the workers that said nothing: what they own is missing."""

    tables: list[dict[str, Any]]
    silent: list[Silent]


class Page(msgspec.Struct, kw_only=True):
    """Some rows."""

    rows: list[dict[str, Any]]
    next: str | None = None
    """Where the next page begins; None: this is the last."""
    silent: list[Silent]
    """Workers that didn't answer, refused or failed: what they own is missing."""


async def states(ask: Ask) -> States:
    """Who owns which partitions of every State, which are being restored or stopped, and what maps there are."""
    answers = heard(await ask("/tables", {}))
    found: dict[str, dict[str, Any]] = {}
    for worker, states_there in answers.bodies:
        for state in states_there:
            _merge(found, worker.url, state)
    return States(tables=[found[name] for name in sorted(found)], silent=answers.silent)


def _merge(found: dict[str, dict[str, Any]], url: str, state: dict[str, Any]) -> None:
    merged = found.setdefault(
        state["state"], {"state": state["state"], "topic": state["topic"], "maps": {}, "partitions": {}, "bytes": 0}
    )
    merged["bytes"] += state["bytes"]
    for each in state["maps"]:
        merged["maps"][each["name"]] = each["help"]
    for kind in ("partitions", "restoring"):
        for partition in state[kind]:
            label = "owned" if kind == "partitions" else "restoring"
            merged["partitions"][str(partition)] = {"worker": url, "state": label}
    for partition, why in state["stopped"].items():
        merged["partitions"][partition] = {"worker": url, "state": "stopped", "why": why}


async def find(ask: Ask, state: str, map_name: str, key: str) -> Page:
    """One key, from whoever has it.

    Raises:
        LookupError: no worker has such a map.
    """
    pages, silent = _pages(await ask(_path(state, map_name), {"key": key}))
    return Page(rows=[row for each in pages for row in each["rows"]], silent=silent)


async def page(ask: Ask, state: str, map_name: str, start: str = "", limit: int = 50) -> Page:
    """Rows over the partitions of all workers, in order.

    Args:
        ask: all workers.
        state: its name.
        map_name: of the map.
        start: `next` of the page before; empty: the first.
        limit: 1 to MAX_PAGE.

    Raises:
        LookupError: no worker has such a map.
    """
    partition, _, after = start.partition(":")
    params = {"partition": partition or "0", "start": after, "limit": str(limit)}
    pages, silent = _pages(await ask(_path(state, map_name), params))
    rows = sorted(
        ((row["partition"], n, row) for each in pages for n, row in enumerate(each["rows"])), key=lambda each: each[:2]
    )
    found, following = _cut([row for _, _, row in rows], [each["next"] for each in pages if each["next"]], limit)
    shown = [{name: value for name, value in row.items() if name != "hex"} for row in found]
    return Page(rows=shown, next=following, silent=silent)


def _cut(
    rows: list[dict[str, Any]], stops: list[dict[str, Any]], limit: int
) -> tuple[list[dict[str, Any]], str | None]:
    """The first rows over all workers, and where the next page begins.

    A worker that had more than a page stopped somewhere: rows behind that place wait for the next page.
    """
    following = min(((stop["partition"], stop["start"]) for stop in stops), default=None)
    if following is not None:
        rows = [row for row in rows if (row["partition"], row["hex"]) < following]
    if len(rows) > limit:
        following = rows[limit]["partition"], rows[limit]["hex"]
    return rows[:limit], None if following is None else f"{following[0]}:{following[1]}"


def _path(state: str, map_name: str) -> str:
    if not (_NAME.fullmatch(state) and _NAME.fullmatch(map_name)):
        raise LookupError(f"no State has a map {state}/{map_name}")
    return f"/tables/{state}/{map_name}"


def _pages(answers: list[Answer]) -> tuple[list[dict[str, Any]], list[Silent]]:
    """What workers that have a map told of it, and those of which it isn't known."""
    found = heard(answers, absent_ok=True)
    if not found.bodies and not found.silent:
        raise LookupError("no worker has such a map")
    return [body for _, body in found.bodies], found.silent
