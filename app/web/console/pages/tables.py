"""State of all workers: every map of every stage, searched and paged; and an entity's open windows."""

import json
from collections.abc import Awaitable
from typing import Any, TypeVar
from urllib.parse import urlencode

from nicegui import background_tasks, ui
from nicegui.events import GenericEventArguments

from app.web import tables
from app.web.console.context import Visit
from app.web.console.pages.windows import show_windows, windows_of
from app.web.console.parts import FAILURES, missing, why
from app.web.console.roles import allowed

__all__ = ["build"]

PAGE_ROWS = 50
CELL_CHARS = 300
MAX_KEY_CHARS = 4096

T = TypeVar("T")


async def build(visit: Visit) -> None:
    """Draws the page; what its address names is loaded behind it."""
    view = View(visit)
    view.draw()
    background_tasks.create(view.load())


class View:
    """One viewer's page."""

    def __init__(self, visit: Visit) -> None:
        self.visit, self.t = visit, visit.t
        self.table = visit.query.get("table", "")
        self.key = visit.query.get("key", "")[:MAX_KEY_CHARS]
        self.entity = visit.query.get("entity", "")[:MAX_KEY_CHARS]
        self.starts = [""]
        """Where the pages up to the one that is shown begin."""
        self.next: str | None = None
        self.states: list[dict[str, Any]] = []
        self.rows: list[dict[str, Any]] = []
        self._asked = 0
        """How often the workers were asked."""

    def draw(self) -> None:
        """Everything, still empty."""
        t, viewer = self.t, allowed("viewer")
        with ui.row().classes("items-end w-full"):
            self.choice = ui.select([], label=t("table"), on_change=viewer(self._chosen)).classes("w-64")
            self.choice.props("data-mark=table")
            self.search = ui.input(t("whole_key"), value=self.key).props('name="key"').classes("w-56 mono")
            self.search.on("keydown.enter", viewer(self._find))
            ui.button(t("look_up"), icon="search", on_click=viewer(self._find)).props("data-mark=find")
            ui.space()
            self.of = ui.input(t("entity"), value=self.entity).props('name="entity"').classes("w-44 mono")
            self.of.on("keydown.enter", viewer(self._windows))
            ui.button(t("open_windows"), icon="timeline", on_click=viewer(self._windows)).props("data-mark=windows")
        self.said = ui.column().classes("w-full gap-1")
        self.body = ui.column().classes("w-full")
        with self.body:
            ui.spinner()
        with ui.dialog() as self.dialog, ui.card().style("max-width: 1000px; width: 95vw"):
            self.title = ui.label().classes("text-subtitle1 mono").style("overflow-wrap: anywhere")
            self.whole = ui.label().classes("mono").style("white-space: pre-wrap; overflow-wrap: anywhere")
            self.link = ui.link(t("open_event_short"), "/event")

    # -- loading ---------------------------------------------------------------------------------------------------

    async def _answer(self, ask: Awaitable[T]) -> T | None:
        """What workers say; None: they can't be asked, or the viewer has asked for something else since."""
        self._asked = asked = self._asked + 1
        try:
            found = await ask
        except FAILURES as error:
            if asked == self._asked:
                self._failed(error)
            return None
        return found if asked == self._asked and not self.body.is_deleted else None

    async def load(self) -> None:
        """Who has what; then the rows, the key or the windows that the address names, unless the viewer was faster."""
        self._asked = asked = self._asked + 1
        try:
            found = await tables.states(self.visit.console.workers.ask_all)
        except FAILURES as error:
            if asked == self._asked:
                self._failed(error)
            return
        if self.body.is_deleted:
            return
        self._know(found)
        if asked != self._asked:
            return
        self._say([str(each) for each in found.silent])
        if self.entity:
            await self._windows()
        elif not self.table:
            self.body.clear()
            with self.body:
                ui.label(self.t("nothing"))
        elif self.key:
            await self._find()
        else:
            await self._page()

    def _know(self, found: tables.States) -> None:
        """Lets the viewer choose among all tables."""
        self.states = found.tables
        names = {
            f"{state['state']}/{name}": f"{state['state']}/{name}" for state in found.tables for name in state["maps"]
        }
        self.table = self.table if self.table in names else next(iter(names), "")
        self.choice.set_options(names, value=self.table or None)

    def _say(self, silent: list[str]) -> None:
        """What the table is for, and which of its partitions aren't served."""
        state_name, _, map_name = self.table.partition("/")
        state = next((state for state in self.states if state["state"] == state_name), None)
        self.said.clear()
        with self.said:
            if state is not None:
                partitions = state["partitions"]
                stopped = [(number, how["why"]) for number, how in partitions.items() if how["state"] == "stopped"]
                ui.label(state["maps"].get(map_name, "")).classes("opacity-70")
                owned = sum(how["state"] == "owned" for how in partitions.values())
                ui.label(self.t("table_size", mb=f"{state['bytes'] / 1e6:.1f}", owned=owned)).classes("opacity-70 num")
                missing(
                    self.visit, silent, sorted(int(n) for n, how in partitions.items() if how["state"] == "restoring")
                )
                for number, reason in stopped:
                    ui.label(self.t("stopped", partition=number, why=reason)).classes("text-negative")
            else:
                missing(self.visit, silent, [])

    async def _chosen(self) -> None:
        if self.choice.value and self.choice.value != self.table:
            self.table, self.starts, self.key = str(self.choice.value), [""], ""
            self.search.value = ""
            await self._page()

    async def _page(self) -> None:
        """The page that begins where `starts` ends."""
        state, _, name = self.table.partition("/")
        self.next = None
        ask = self.visit.console.workers.ask_all
        found = await self._answer(tables.page(ask, state, name, self.starts[-1], PAGE_ROWS))
        if found is not None:
            self.next = found.next
            self._show(found, paged=True)

    async def _find(self) -> None:
        """One key, or the first page where none is named."""
        self.key, self.starts = (self.search.value or "")[:MAX_KEY_CHARS], [""]
        if not self.table:  # it isn't known yet what there is
            self.entity = ""
            await self.load()
            return
        if not self.key:
            await self._page()
            return
        state, _, name = self.table.partition("/")
        found = await self._answer(tables.find(self.visit.console.workers.ask_all, state, name, self.key))
        if found is not None:
            self._show(found, paged=False)

    async def _windows(self) -> None:
        self.entity = (self.of.value or "")[:MAX_KEY_CHARS]
        if not self.entity:
            return
        found = await self._answer(windows_of(self.visit, self.entity))
        if found is None:
            return
        self.body.clear()
        with self.body:
            show_windows(self.visit, found)
        self.said.clear()
        with self.said:
            missing(self.visit, [str(each) for each in found.silent], [])

    # -- showing ---------------------------------------------------------------------------------------------------

    def _failed(self, error: BaseException) -> None:
        if self.body.is_deleted:
            return
        self.body.clear()
        with self.body:
            ui.label(self.t("failed", why=why(error))).classes("text-negative").props("data-mark=failed")

    def _show(self, found: tables.Page, *, paged: bool) -> None:
        self._say([str(each) for each in found.silent])
        self.rows = found.rows
        columns = [
            {"name": name, "label": self.t(name), "field": name, "align": "left", "classes": "mono"}
            for name in ("partition", "key", "value")
        ]
        shown = [
            {"id": n, "partition": row["partition"], "key": str(row["key"])[:CELL_CHARS], "value": _text(row["value"])}
            for n, row in enumerate(found.rows)
        ]
        self.body.clear()
        with self.body:
            if not found.rows and not found.silent:
                ui.label(self.t("no_rows" if paged else "no_key")).props("data-mark=no-rows")
            else:
                table = ui.table(rows=shown, columns=columns, row_key="id").classes("w-full")
                table.props("flat bordered dense data-mark=rows").on("rowClick", allowed("viewer")(self._open))
            if paged:
                self._turn()

    def _turn(self) -> None:
        viewer = allowed("viewer")
        with ui.row().classes("items-center"):
            back = ui.button(icon="chevron_left", on_click=viewer(self._back)).props("flat data-mark=back")
            ui.label(self.t("page_number", number=len(self.starts))).classes("num")
            forward = ui.button(icon="chevron_right", on_click=viewer(self._forward)).props("flat data-mark=forward")
        back.set_enabled(len(self.starts) > 1)
        forward.set_enabled(self.next is not None)

    async def _back(self) -> None:
        if len(self.starts) > 1:
            self.starts.pop()
            await self._page()

    async def _forward(self) -> None:
        if self.next is not None:
            self.starts.append(self.next)
            await self._page()

    def _open(self, event: GenericEventArguments) -> None:
        """A row, whole."""
        number = event.args[1].get("id")
        if not isinstance(number, int) or not 0 <= number < len(self.rows):
            return
        row = self.rows[number]
        self.title.text = str(row["key"])
        self.whole.text = json.dumps(row["value"], ensure_ascii=False, indent=2)
        by_event = self.table.endswith(("/seen", "/answered", "/kept", "/reviews"))
        self.link.set_visibility(by_event)
        self.link.props["href"] = "/event?" + urlencode({"id": str(row["key"])})
        self.link.update()
        self.dialog.open()


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)[:CELL_CHARS]
