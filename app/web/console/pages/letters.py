"""Dead letters: grouped by reason and field, looked into, mended and sent back, or discarded."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from typing import Any

from nicegui import background_tasks, ui
from nicegui.events import GenericEventArguments

from app.web.console.context import Visit
from app.web.console.pages.letter import LetterPanel, audited, left_over
from app.web.console.parts import FAILURES, confirmed, failing, why
from app.web.console.roles import allowed
from app.web.letters import Budget, Found, Group, Wanted

__all__ = ["build"]

SINCE_S = {"hour": 3600, "day": 86_400, "week": 7 * 86_400, "all": 0}
DRAW_EVERY_S = 0.5
"""A scan is drawn so often: each time costs a page some kilobytes."""


async def build(visit: Visit) -> None:
    """Draws the page and begins to look."""
    view = View(visit)
    view.draw()
    background_tasks.create(view.scan())


class View:
    """One viewer's page."""

    def __init__(self, visit: Visit) -> None:
        self.visit, self.t = visit, visit.t
        self.wanted = Wanted(text=visit.query.get("text", "")[:200])
        self.found = Found()
        self.group: Group | None = None
        """What is shown of the chosen one; None until a scan meets it (again)."""
        self._chosen: tuple[str, ...] | None = None
        self._task: asyncio.Task[None] | None = None
        self._changing = False
        self._moved_at = 0.0

    # -- drawing ---------------------------------------------------------------------------------------------------

    def draw(self) -> None:
        """Everything, still empty."""
        t = self.t
        with ui.row().classes("items-end w-full"):
            self.text = (
                ui.input(t("search_in"), value=self.wanted.text).props('name="text" maxlength=200').classes("w-64")
            )
            self.text.on("keydown.enter", allowed("viewer")(self.look))
            since = {name: t(f"since_{name}") for name in SINCE_S}
            self.since = ui.select(since, value="all", label=t("since")).classes("w-40").props("data-mark=since")
            self.handled = ui.checkbox(t("with_handled"))
            ui.button(t("look"), icon="search", on_click=allowed("viewer")(self.look)).props("data-mark=look")
            self.stop = ui.button(t("stop"), icon="stop", on_click=allowed("viewer")(self.cancel)).props(
                "flat data-mark=stop"
            )
        self.said = ui.label().classes("num opacity-70").props("data-mark=scan")
        self.groups = ui.table(rows=[], columns=self._group_columns(), row_key="id").classes("w-full")
        self.groups.props("flat bordered data-mark=groups").on("rowClick", allowed("viewer")(self._choose))
        self.empty = ui.label(t("letters_none")).props("data-mark=none")
        self._draw_actions()
        self.rows = ui.table(rows=[], columns=self._row_columns(), row_key="position", pagination=20).classes("w-full")
        self.rows.props("flat bordered data-mark=letters").on("rowClick", allowed("viewer")(self._open))
        self.panel = LetterPanel(self.visit, self.look)
        self._show()

    def _draw_actions(self) -> None:
        """What is done with the group that is chosen: made once, for a scan goes on while it is used."""
        t, may = self.t, self.visit.may("operator")
        with ui.row().classes("items-center w-full") as self.actions:
            self.title = ui.label().classes("text-subtitle1").props("data-mark=group")
            self.newest = ui.label().classes("opacity-70")
            self.redrive = self.discard = None
            if may:
                redrive, discard = allowed("operator")(self._redrive), allowed("operator")(self._discard)
                self.redrive = ui.button(t("redrive_all"), icon="replay", on_click=redrive)
                self.redrive.props("data-mark=redrive-all")
                self.discard = ui.button(t("discard_all"), icon="delete", on_click=discard)
                self.discard.props("flat data-mark=discard-all")
            self.bar = ui.linear_progress(show_value=False).classes("w-full")
            self.bar.set_visibility(False)

    def _group_columns(self) -> list[dict[str, Any]]:
        names = ("reason", "field", "of_stage", "count", "first", "last", "goes_to")
        return [
            {"name": name, "label": self.t(name), "field": name, "align": "right" if name == "count" else "left",
             "sortable": True}
            for name in names
        ]  # fmt: skip

    def _row_columns(self) -> list[dict[str, Any]]:
        names = ("position", "time", "event", "key", "message", "attempt", "bytes")
        return [{"name": name, "label": self.t(name), "field": name, "align": "left"} for name in names]

    def _show(self) -> None:
        """What was found so far."""
        found, t = self.found, self.t
        self.stop.set_visibility(self._task is not None)
        self.said.text = t(
            "scan", read=f"{found.read:,}", total=f"{found.total:,}", mb=f"{found.bytes / 1e6:.1f}", s=f"{found.seconds:.1f}"
        ) + (f" · {t('partial', why=t('partial_' + found.partial))}" if found.partial else "")  # fmt: skip
        self.groups.rows = [
            {
                "id": n, "reason": t("group_mixed") if group.mixed else _or_dash(group.reason),
                "field": _or_dash(group.field), "of_stage": _or_dash(group.stage), "goes_to": _or_dash(group.topic),
                "count": group.count, "first": self.visit.time(group.first_ms), "last": self.visit.time(group.last_ms),
            }
            for n, group in enumerate(found.groups)
        ]  # fmt: skip
        self.groups.update()
        self.groups.set_visibility(bool(found.groups))
        self.empty.set_visibility(found.done and not found.groups)
        self.group = next((group for group in found.groups if group.key == self._chosen), None)
        self._show_group()

    def _show_group(self) -> None:
        group, t = self.group, self.t
        self.actions.set_visibility(group is not None)
        self.rows.set_visibility(group is not None)
        if group is None:
            return
        self.rows.rows = [
            {
                "position": row.position, "time": self.visit.time(row.at_ms), "event": row.event_id, "key": row.key,
                "message": row.message, "attempt": row.attempt,
                "bytes": t("no_value") if row.size_bytes is None else row.size_bytes,
            }
            for row in group.rows
        ]  # fmt: skip
        self.rows.update()
        name = t("group_mixed") if group.mixed else " · ".join(map(_or_dash, group.key[:3]))
        self.title.text = t("group", name=name, count=f"{group.count:,}")
        self.newest.text = t("newest", count=len(group.rows))
        self.newest.set_visibility(len(group.rows) < group.count)
        if self.redrive is not None and self.discard is not None:
            known = group.selection(self.wanted) is not None
            self.redrive.set_visibility(known and bool(group.topic) and group.topic not in self._withheld())
            self.discard.set_visibility(known)

    def _withheld(self) -> frozenset[str]:
        return self.visit.console.letters.withheld(may_review=self.visit.may("reviewer"))

    # -- looking ---------------------------------------------------------------------------------------------------

    async def look(self) -> None:
        """Begins a new scan."""
        self.cancel()
        age_s = SINCE_S.get(str(self.since.value), 0)
        since_ms = int((time.time() - age_s) * 1000) if age_s else None
        self.wanted = Wanted(text=(self.text.value or "")[:200], since_ms=since_ms, handled=bool(self.handled.value))
        self.found = Found()
        self._show()  # nothing of the search before may be sent back as if it were of this one
        background_tasks.create(self.scan())

    async def scan(self) -> None:
        """Reads, and draws what it found meanwhile."""
        self._task = asyncio.current_task()
        drawn = float("-inf")
        try:
            async with aclosing(self.visit.console.letters.scan(self.wanted, Budget())) as steps:
                async for found in steps:
                    self.found = found
                    if self.groups.is_deleted:
                        return
                    if found.done:
                        self._task = None
                    if found.done or time.monotonic() - drawn > DRAW_EVERY_S:
                        drawn = time.monotonic()
                        self._show()
        except FAILURES as error:
            self._task = None
            if not self.groups.is_deleted:
                self._show()
                self.said.text = self.t("failed", why=why(error))

    def cancel(self) -> None:
        """Ends the scan; what it found stays."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            self.found.partial, self.found.done = "stopped", True
            self._show()

    def _choose(self, event: GenericEventArguments) -> None:
        number = event.args[1].get("id")
        if isinstance(number, int) and 0 <= number < len(self.found.groups):
            self.group = self.found.groups[number]
            self._chosen = self.group.key
            self._show_group()

    async def _open(self, event: GenericEventArguments) -> None:
        await self.panel.open(str(event.args[1].get("position")))

    # -- acting ----------------------------------------------------------------------------------------------------

    async def _redrive(self) -> None:
        """All of the group."""
        group, letters, t = self.group, self.visit.console.letters, self.t
        selection = None if group is None else group.selection(self.wanted)
        if group is None or selection is None or self._changing:
            return
        with failing(self.visit):
            with self._working():
                would = await letters.look(selection, may_review=self.visit.may("reviewer"), progress=self._progress)
            count = would.selected.total()
            detail = t("would_move", count=f"{count:,}", topic=group.topic) + left_over(self.visit, would)
            if not count:
                ui.notify(detail)
                return
            if not await confirmed(self.visit, t("redrive_all"), detail, t("redrive")):
                return
            with self._working():
                done = await audited(
                    self.visit, "redrive", "dead-letter", {"count": count, "selection": selection.told},
                    lambda: letters.redrive(
                        selection, may_review=self.visit.may("reviewer"), progress=self._progress
                    ),
                )  # fmt: skip
            ui.notify(t("moved", count=f"{done.moved.total():,}") + left_over(self.visit, done), type="positive")
            await self.look()

    async def _discard(self) -> None:
        """All of the group."""
        group, letters, t = self.group, self.visit.console.letters, self.t
        selection = None if group is None else group.selection(self.wanted)
        if group is None or selection is None or self._changing:
            return
        with failing(self.visit):
            with self._working():
                would = await letters.look(selection, may_review=False, discard=True, progress=self._progress)
            count = would.selected.total()
            detail = t("would_discard", count=f"{count:,}") + left_over(self.visit, would)
            if not count:
                ui.notify(detail)
                return
            if not await confirmed(self.visit, t("discard_all"), detail, t("discard")):
                return
            with self._working():
                done = await audited(
                    self.visit, "discard", "dead-letter", {"count": count, "selection": selection.told},
                    lambda: letters.discard(selection, progress=self._progress),
                )  # fmt: skip
            ui.notify(t("discarded", count=f"{done.moved.total():,}"), type="positive")
            await self.look()

    def _progress(self, done: int, total: int) -> None:
        now = time.monotonic()
        if not self.bar.is_deleted and (now - self._moved_at > DRAW_EVERY_S or done >= total):
            self._moved_at = now
            self.bar.value = done / total if total else 1.0

    @contextmanager
    def _working(self) -> Iterator[None]:
        """While all of a group is moved: the bar is shown, and nothing else begins."""
        self._changing, self._moved_at = True, 0.0
        self.bar.set_visibility(True)
        try:
            yield
        finally:
            self._changing = False
            self.bar.set_visibility(False)


def _or_dash(text: str) -> str:
    return text or "–"
