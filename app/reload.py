"""Takes a changed headrace.toml, and changed files of prompts, while the worker runs: whole, or not at all.

Every part prepares first and may refuse; only when all are ready they switch, between two batches of the event loop. What
can't change under way (topics, sources, State) needs a restart, and a file that changes it is refused as a whole.
"""

import asyncio
import logging
from pathlib import Path
from typing import Any

from app import metrics
from app.core import App
from app.errors import SettingsError
from app.llm.budget import Terms, terms_of
from app.settings import Settings, load
from app.settings_files import files_of

__all__ = ["take", "watch"]

log = logging.getLogger("headrace.reload")

EVERY_S = 1.0
CHANGEABLE = {
    "noise", "marks", "tasks", "llm", "light.threshold", "light.enabled",
    "classify.max_open", "classify.retry_s", "classify.max_rounds", "classify.max_age_s", "classify.cache_age_s",
    "classify.keep_prompts_s", "classify.keep_prompts_items", "classify.keep_prompts_bytes",
    "gateway", "console", "sinks",
}  # fmt: skip
"""Sections, or fields of one, that are read anew for every event or call; and those that are no matter of a worker."""


async def watch(app: App, path: Path) -> None:
    """Runs as long as the worker; looks at time and size of the file and of those that it names, in force or refused."""
    seen = before = _stamps(path)
    while True:
        await asyncio.sleep(EVERY_S)
        stamps = _stamps(path)
        settled, before = stamps == before, stamps
        if not settled or stamps == seen or stamps[path] is None:
            continue  # being written, or gone for a moment: editors replace files
        seen = stamps
        try:
            settings = load(path)
            if settings == app.settings:
                continue
            take(app, settings)
        except SettingsError as error:
            metrics.RELOADS.labels("refused").inc()
            log.error("%s is NOT taken, the settings from before stay: %s", path, error)  # noqa: TRY400 - no traceback
        else:
            metrics.RELOADS.labels("taken").inc()
            log.warning("%s is taken", path)


def take(app: App, settings: Settings) -> None:
    """Switches to other settings.

    Raises:
        SettingsError: they are wrong, or change what needs a restart. Nothing has changed then.
    """
    fixed = sorted(_changed(app.settings, settings))
    if fixed:
        raise SettingsError(f"{', '.join(fixed)} can't be changed while the worker runs; restart it")
    switches = [prepare(settings) for prepare in app.reloadable]
    for switch in switches:
        switch()
    app.settings = settings


def _changed(old: Settings, new: Settings) -> set[str]:
    """What differs and may not."""
    found = set()
    for name in Settings.model_fields:
        was, now = getattr(old, name), getattr(new, name)
        if name in CHANGEABLE or was == now:
            continue
        fields: Any = type(now).model_fields if hasattr(type(now), "model_fields") else {}
        differ = {f"{name}.{field}" for field in fields if getattr(was, field) != getattr(now, field)}
        found |= (differ or {name}) - CHANGEABLE
    if bool(old.tasks) != bool(new.tasks):
        found.add("tasks (none before or after)")
    money = [(task.name, old.day_usd(task)) for task in old.tasks]
    if money != [(task.name, new.day_usd(task)) for task in new.tasks] and (old.has_budget or new.has_budget):
        found.add("tasks with a budget")
    if _minutes(old) != _minutes(new):
        found.add("llm requests_per_minute and tokens_per_minute")
    return found


def _minutes(settings: Settings) -> dict[str, Terms]:
    return {name: terms for name, terms in terms_of(settings).items() if terms.minute_s}


def _stamps(path: Path) -> dict[Path, tuple[int, int] | None]:
    return {each: _stamp(each) for each in files_of(path)}


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size
