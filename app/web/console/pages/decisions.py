"""Decisions of a Review page: written in their order behind what it shows, listed beside it, and taken back."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from nicegui import ui

from app.web.console.audit import audit
from app.web.console.context import Visit
from app.web.console.parts import FAILURES, why
from app.web.console.roles import allowed
from models.results import Review
from models.reviews import Decision

__all__ = ["NOTE_CHARS", "Decisions", "Done"]

UNDO_KEPT = 20
NOTE_CHARS = 2000


@dataclass(slots=True, eq=False)
class Done:
    """A decision of this page."""

    review: Review
    decision: Decision
    stored: bool | None = None
    """None: it isn't known yet."""
    undoing: bool = False


class Decisions:
    """Draws the list, and has what is in it.

    Args:
        visit: who decides.
        waits_again: told an event whose decision was taken back.
    """

    def __init__(self, visit: Visit, waits_again: Callable[[Review], None]) -> None:
        self.visit, self.t, self.desk, self._waits_again = visit, visit.t, visit.console.desk, waits_again
        self.done: list[Done] = []
        """The latest last."""
        self._saving = asyncio.Lock()
        """What is decided is written in its order."""
        self.side = ui.column().classes("w-64 shrink-0")

    def _show(self) -> None:
        if self.side.is_deleted:
            return
        self.side.clear()
        with self.side:
            if self.done:
                ui.label(self.t("decided_here")).classes("opacity-70")
            for place, done in enumerate(reversed(self.done)):
                with ui.row().classes("w-full items-center no-wrap gap-1"):
                    ui.icon("check" if done.stored else "hourglass_empty")
                    told = ui.label(f"{done.decision.category} · {done.review.event_id}")
                    told.classes("grow ellipsis").style("max-width: 11rem")
                    undo = ui.button(on_click=allowed("reviewer")(self._undoer(done)), icon="undo")
                    undo.props(f"flat dense round data-mark=undo-{place}").tooltip(self.t("undo_key"))

    def _undoer(self, done: Done) -> Callable[[], Awaitable[None]]:
        async def undo() -> None:
            await self.undo(done)

        return undo

    def notify(self, text: str) -> None:
        """Says that something isn't saved, until it is closed."""
        if not self.side.is_deleted:
            with self.side:
                ui.notify(text, type="negative", timeout=0, close_button=True)

    # -- deciding --------------------------------------------------------------------------------------------------

    def take(self, review: Review, category: str, fields: dict[str, object] | None, note: str) -> Done:
        """A decision, from now on nobody else's to take. It is yet to be written."""
        decision = Decision(
            event_id=review.event_id, category=category, fields=fields, reviewer=self.visit.session.user,
            note=note[:NOTE_CHARS].encode("utf-8", "replace").decode(), decided_ms=int(time.time() * 1000),
        )  # fmt: skip
        done = Done(review, decision)
        self.done = [*self.done[-UNDO_KEPT + 1 :], done]
        self.desk.taken(review.event_id)
        self._show()
        return done

    async def write(self, done: Done) -> None:
        """Audits and writes it, behind what this page decided before."""
        done.stored = await self._stored(done, done.decision)
        if not done.stored:
            self._drop(done)
        self._show()

    async def _stored(self, done: Done, decision: Decision) -> bool:
        """Writes a decision or its undoing. Says whether that is stored."""
        try:
            async with self._saving:
                if decision.undo and not done.stored:
                    return False  # what it would take back was never stored
                detail = {"category": decision.category, "task": done.review.task}
                await audit(self.visit, "undo" if decision.undo else "decide", f"review/{decision.event_id}", detail)
                await self.desk.write(decision)
        except FAILURES as error:
            self.notify(self.t("not_saved", id=decision.event_id, why=why(error)))
            return False
        return True

    def _drop(self, done: Done) -> None:
        """It waits again."""
        self.desk.given_back(done.review.event_id)
        self.done = [each for each in self.done if each is not done]

    # -- undo ------------------------------------------------------------------------------------------------------

    async def undo_latest(self) -> None:
        if self.done:
            await self.undo(self.done[-1])

    async def undo(self, done: Done) -> None:
        """Takes a decision back; it is told once that is stored."""
        if done not in self.done or done.undoing:
            return
        done.undoing = True
        try:
            if not await self._is_mine(done):
                self.notify(self.t("undo_late", id=done.review.event_id))
                return
            undoing = Decision(
                event_id=done.review.event_id, reviewer=self.visit.session.user, decided_ms=int(time.time() * 1000),
                undo=True,
            )  # fmt: skip
            if not await self._stored(done, undoing):
                return
        finally:
            done.undoing = False
        self._drop(done)
        self._show()
        self._waits_again(done.review)

    async def _is_mine(self, done: Done) -> bool:
        """Whether what would be taken back is what was decided here, and nothing that somebody decided since."""
        if self.desk.settling(done.review.event_id):
            return True
        try:
            found = (await self.desk.find(done.review.event_id))["decision"] or {}
        except FAILURES:
            return False
        return (found.get("reviewer"), found.get("decided_ms")) == (done.decision.reviewer, done.decision.decided_ms)
