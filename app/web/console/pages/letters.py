"""Dead letters: grouped by reason and field, looked into, mended and sent back, or discarded."""

import asyncio
import time
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from nicegui import background_tasks, context, ui
from nicegui.events import GenericEventArguments

from agents.redrive import Tally
from app.web.console.audit import note_anyway
from app.web.console.context import Visit
from app.web.console.pages.letter import LetterPanel, audited, left_over
from app.web.console.parts import confirmed, failing
from app.web.console.roles import allowed
from app.web.letters import Found, Group, Wanted
from app.web.scan import Budget

__all__ = ["build"]

SINCE_S = {"hour": 3600, "day": 86_400, "week": 7 * 86_400, "all": 0}
OTHERS_EVERY_S = 1.0
"""What other pages move is looked at so often; it is in memory."""
DRAW_EVERY_S = 0.5
"""A scan is drawn so often: each time costs a page some kilobytes."""


async def build(visit: Visit) -> None:
    """Draws the page and begins to look."""
    view = View(visit)
    view.draw()
    view.begin()


class View:
    """One viewer's page."""

    def __init__(self, visit: Visit) -> None:
        self.visit, self.t = visit, visit.t
        self.wanted = Wanted(text=visit.query.get("text", "")[:200])
        self.found = Found()
        self.group: Group | None = None
        """What is shown of the chosen one; None until a scan meets it (again)."""
        self._drawn: list[Group] = []
        """What the table of groups shows: a scan has gone on since."""
        self._chosen: tuple[str, ...] | None = None
        self._scanning: asyncio.Task[None] | None = None
        self._counting: asyncio.Task[Tally] | None = None
        """Counts what an action would move."""
        self._changing: asyncio.Event | None = None
        """What stops the action that goes on."""
        self._moved_at = 0.0
        self._shown_at = float("-inf")
        context.client.on_delete(self._gone)

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
        with ui.row().classes("items-center w-full no-wrap") as self.working:  # stays when a new search hides the group
            self.bar = ui.linear_progress(show_value=False).classes("grow")
            self.halt = ui.button(t("stop"), icon="stop", on_click=allowed("operator")(self._halt))
            self.halt.props("flat data-mark=stop-action")
        self.working.set_visibility(False)
        if may:
            ui.timer(OTHERS_EVERY_S, self._show_others, immediate=False)

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
        found, progress, t = self.found, self.found.progress, self.t
        self.stop.set_visibility(not found.done)
        self.said.text = t(
            "scan", read=f"{progress.read:,}", total=f"{progress.total:,}", mb=f"{progress.bytes / 1e6:.1f}",
            s=f"{progress.seconds:.1f}",
        ) + (f" · {t('partial', why=t('partial_' + found.partial))}" if found.partial else "")  # fmt: skip
        self._drawn = found.groups
        self.groups.rows = [
            {
                "id": n, "reason": t("group_mixed") if group.mixed else _or_dash(group.reason),
                "field": _or_dash(group.field), "of_stage": _or_dash(group.stage), "goes_to": _or_dash(group.topic),
                "count": group.count, "first": self.visit.time(group.first_ms), "last": self.visit.time(group.last_ms),
            }
            for n, group in enumerate(self._drawn)
        ]  # fmt: skip
        self.groups.update()
        self.groups.set_visibility(bool(self._drawn))
        self.empty.set_visibility(found.done and not self._drawn)
        self.group = next((group for group in self._drawn if group.key == self._chosen), None)
        self._show_group()

    def _show_group(self) -> None:
        group, t = self.group, self.t
        self.actions.set_visibility(group is not None)
        self.rows.set_visibility(group is not None)
        if group is None:
            return
        newest = group.rows
        self.rows.rows = [
            {
                "position": row.position, "time": self.visit.time(row.at_ms), "event": row.event_id, "key": row.key,
                "message": row.message, "attempt": row.attempt,
                "bytes": t("no_value") if row.size_bytes is None else row.size_bytes,
            }
            for row in newest
        ]  # fmt: skip
        self.rows.update()
        name = t("group_mixed") if group.mixed else " · ".join(map(_or_dash, group.key[:3]))
        self.title.text = t("group", name=name, count=f"{group.count:,}")
        self.newest.text = t("newest", count=len(newest))
        self.newest.set_visibility(len(newest) < group.count)
        if self.redrive is not None and self.discard is not None:
            known = group.selection(self.wanted) is not None
            self.redrive.set_visibility(known and bool(group.topic) and group.topic not in self._withheld())
            self.discard.set_visibility(known)

    def _withheld(self) -> frozenset[str]:
        return self.visit.console.letters.withheld(may_review=self.visit.may("reviewer"))

    # -- looking ---------------------------------------------------------------------------------------------------

    async def look(self) -> None:
        """Begins a new scan."""
        age_s = SINCE_S.get(str(self.since.value), 0)
        since_ms = int((time.time() - age_s) * 1000) if age_s else None
        self.wanted = Wanted(text=(self.text.value or "")[:200], since_ms=since_ms, handled=bool(self.handled.value))
        self.begin()

    def begin(self) -> None:
        """Reads in the background; an earlier scan of this page ends."""
        if self.groups.is_deleted:
            return
        self._end(self._scanning)
        self.found, self._shown_at = Found(), float("-inf")
        self._show()  # nothing of the search before may be sent back as if it were of this one
        self._scanning = background_tasks.create(self.scan())

    async def scan(self) -> None:
        """Reads, and draws what it found meanwhile."""
        self.found = await self.visit.console.letters.scan(self.wanted, Budget(), self._take)
        if not self.groups.is_deleted:
            self._show()

    def _take(self, found: Found) -> None:
        self.found, now = found, time.monotonic()
        if now - self._shown_at > DRAW_EVERY_S:
            self._shown_at = now
            self._show()

    def cancel(self) -> None:
        """Ends the scan; what it found stays."""
        if not self.found.done:
            self._end(self._scanning)
            self.found.partial, self.found.done = "stopped", True
            self._show()

    def _gone(self) -> None:
        """The page is closed: nobody waits for what it reads. What it moves goes on."""
        self._end(self._scanning)
        self._end(self._counting)

    @staticmethod
    def _end(task: asyncio.Task[Any] | None) -> None:
        if task is not None:
            task.cancel()

    def _choose(self, event: GenericEventArguments) -> None:
        number = event.args[1].get("id")
        if isinstance(number, int) and 0 <= number < len(self._drawn):
            self.group = self._drawn[number]
            self._chosen = self.group.key
            self._show_group()

    async def _open(self, event: GenericEventArguments) -> None:
        await self.panel.open(str(event.args[1].get("position")))

    # -- acting ----------------------------------------------------------------------------------------------------

    async def _redrive(self) -> None:
        await self._act("redrive")

    async def _discard(self) -> None:
        await self._act("discard")

    async def _act(self, action: Literal["redrive", "discard"]) -> None:
        """Sends all of the group back, or discards it: counted first, asked, done, and told."""
        group, letters, t = self.group, self.visit.console.letters, self.t
        selection = None if group is None else group.selection(self.wanted)
        if group is None or selection is None or self._changing is not None:
            return
        discard = action == "discard"

        def run(stop: asyncio.Event) -> Awaitable[Tally]:
            if discard:
                return letters.discard(selection, progress=self._progress, stop=stop)
            may = self.visit.may("reviewer")
            return letters.redrive(selection, may_review=may, progress=self._progress, stop=stop)

        with failing(self.visit):
            with self._working() as stop:
                may = self.visit.may("reviewer")
                self._counting = asyncio.ensure_future(
                    letters.look(selection, may_review=may, discard=discard, progress=self._progress, stop=stop)
                )
                would = await self._counting
            if would.stopped:
                ui.notify(t(f"stopped_{action}", count=0), type="warning")
                return
            count = would.selected.total()
            detail = t(f"would_{action}", count=f"{count:,}", topic=group.topic) + left_over(self.visit, would)
            if not count:
                ui.notify(detail)
                return
            if not await confirmed(self.visit, t(f"{action}_all"), detail, t(action)):
                return
            with self._working() as stop:
                told = {"count": count, "selection": selection.told}
                done = await audited(self.visit, action, "dead-letter", told, lambda: run(stop))
            said = t(f"{'stopped' if done.stopped else 'did'}_{action}", count=f"{done.moved.total():,}")
            ui.notify(said + left_over(self.visit, done), type="warning" if done.stopped else "positive")
            await self.look()

    async def _halt(self) -> None:
        """Ends the action that goes on, after its transaction under way; also one that another page began."""
        moving = self.visit.console.letters.moving
        stop = self._changing if self._changing is not None or moving is None else moving.stop
        if stop is None:
            return
        stop.set()
        self.halt.disable()
        if stop is not self._changing:  # else its own record says that it was stopped
            await note_anyway(self.visit.console, self.visit.session.user, self.visit.address, "stop", "dead-letter")

    def _show_others(self) -> None:
        """What another page moves, or this one before it was loaded anew, is shown here too."""
        if self._changing is not None:
            return
        moving = self.visit.console.letters.moving
        self.working.set_visibility(moving is not None)
        if moving is not None:
            self.bar.value = moving.done / moving.total if moving.total else 0.0
            self.halt.set_enabled(not moving.stop.is_set())

    def _progress(self, done: int, total: int) -> None:
        now = time.monotonic()
        if not self.bar.is_deleted and (now - self._moved_at > DRAW_EVERY_S or done >= total):
            self._moved_at = now
            self.bar.value = done / total if total else 1.0

    @contextmanager
    def _working(self) -> Iterator[asyncio.Event]:
        """While all of a group is counted or moved: how far it is and what stops it are shown, and nothing else begins."""
        stop = self._changing = asyncio.Event()
        self._moved_at, self.bar.value = 0.0, 0.0
        self.halt.enable()
        self.working.set_visibility(True)
        try:
            yield stop
        finally:
            self._changing = None
            self.working.set_visibility(False)


def _or_dash(text: str) -> str:
    return text or "–"
