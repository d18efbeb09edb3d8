"""Settings: what is in force, and where each value came from. Secrets are hidden."""

import asyncio
from typing import Any

from nicegui import background_tasks, ui

from app.errors import SettingsError
from app.settings_origins import changed_since
from app.web.console.context import Visit

__all__ = ["build"]

LONGEST_CHARS = 2000
"""Lists of the file (sources, tasks) are one value; more of it isn't shown."""


async def build(visit: Visit) -> None:
    """Draws the page; the file is looked at after it is shown."""
    t, found = visit.t, visit.console.in_force
    ui.label(t("settings_note")).classes("text-caption opacity-60")
    changed = ui.label().classes("text-negative").props("data-mark=changed")
    changed.set_visibility(False)
    columns: list[dict[str, Any]] = [
        {"name": "setting", "label": t("col_setting"), "field": "name", "align": "left", "sortable": True, "classes": "mono"},
        {"name": "value", "label": t("col_set_value"), "field": "value", "align": "left", "classes": "mono",
         "style": "white-space: pre-wrap; word-break: break-all; min-width: 14rem"},
        {"name": "origin", "label": t("col_origin"), "field": "origin", "align": "left", "sortable": True},
        {"name": "meaning", "label": t("col_meaning"), "field": "meaning", "align": "left",
         "style": "white-space: normal; min-width: 16rem", "classes": "wide-only", "headerClasses": "wide-only"},
    ]  # fmt: skip
    rows = [
        {
            "name": s.name, "value": s.value[:LONGEST_CHARS] + ("…" if len(s.value) > LONGEST_CHARS else ""),
            "origin": t(f"origin_{s.origin}") + (f": {s.where}" if s.where else ""), "meaning": s.description,
            "is_set": s.origin != "default",
        }
        for s in found
    ]  # fmt: skip

    def narrow() -> None:
        table.rows = [row for row in rows if row["is_set"]] if only_set.value else rows

    with ui.row().classes("items-center"):
        search = ui.input(t("search")).props("name=search clearable dense")
        only_set = ui.checkbox(t("only_set"), on_change=narrow).props("data-mark=only-set")
    table = ui.table(rows=rows, columns=columns, row_key="name", pagination={"rowsPerPage": 0})
    table.props("dense flat bordered hide-bottom data-mark=settings").classes("w-full")
    table.bind_filter_from(search, "value")
    background_tasks.create(_tell_changes(visit, changed))


async def _tell_changes(visit: Visit, said: ui.label) -> None:
    try:
        names = await asyncio.to_thread(changed_since, visit.console.settings)
        text = visit.t("settings_changed", what=", ".join(names)) if names else ""
    except SettingsError as error:
        text = visit.t("settings_bad", what=error)
    if text and not said.is_deleted:
        said.set_text(text)
        said.set_visibility(True)
