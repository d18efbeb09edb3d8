"""Review: events that wait for a person, one at a time, decided with one key.

The next event is shown at once; the decision is audited and written behind it. It doesn't ask: undo takes it back.
"""

import time
from typing import Any
from urllib.parse import urlencode

import msgspec
from nicegui import background_tasks, context, ui
from nicegui.events import KeyEventArguments

from app.logic.reviews import allowed as allowed_categories
from app.settings import TaskSettings
from app.settings_extract import why_wrong
from app.web.console.context import Visit
from app.web.console.desk import Waiting
from app.web.console.pages.decisions import NOTE_CHARS, Decisions
from app.web.console.parts import FAILURES, facts, missing, why
from app.web.console.roles import allowed
from models.results import Review

__all__ = ["build"]

KEYS = "1234567890qwertyiopadfhjklzxcvbm"
"""Of the categories, in order. Without g (leads to other pages), n (note), s (later) and u (undo)."""
AHEAD = 20
REFILL_BELOW = 5
LOOKS_AGAIN_S = 3.0
"""While nothing waits, the page looks so often whether something came."""
FRESH_S = 20.0
"""What comes next is fetched again by then: others may have decided it, which the desk knows for `SETTLES_S`."""
LEADS_AWAY_S = 1.5
"""After g the next key leads to another page."""


async def build(visit: Visit) -> None:
    """Draws the page and fetches what waits."""
    view = View(visit)
    view.draw()
    background_tasks.create(view.refill())


class View:
    """One viewer's page."""

    def __init__(self, visit: Visit) -> None:
        self.visit, self.t, self.desk = visit, visit.t, visit.console.desk
        self.client = context.client
        self.me, self.page = visit.session.id, self.client.id
        self.tasks = {task.name: task for task in visit.console.settings.tasks}
        self.ahead: list[Review] = []
        self.now: Review | None = None
        self.later: set[str] = set()
        """Put off by this viewer: shown again when nothing else waits."""
        self.waiting: Waiting | None = None
        self.failed = ""
        self._led_away = float("-inf")
        self._filling = False
        self._chosen = 0
        """How often another task was chosen: what was asked for before isn't shown."""
        self._fetched = float("-inf")
        self._seen: tuple[Waiting | None, str] = (None, "")
        self.client.on_delete(lambda: self.desk.release(self.page))

    # -- drawing ---------------------------------------------------------------------------------------------------

    def draw(self) -> None:
        """Everything, still empty."""
        t = self.t
        with ui.row().classes("items-end w-full"):
            self.count = ui.label().classes("text-subtitle1 num").props("data-mark=waiting")
            ui.space()
            tasks = {"": t("all_tasks"), **{name: name for name in self.tasks}}
            self.task = ui.select(tasks, value="", label=t("task"), on_change=allowed("viewer")(self._again))
            self.task.classes("w-48")
        self.missing = ui.column().classes("gap-0")
        with ui.row().classes("w-full items-start no-wrap max-md:flex-wrap"):
            self.card = ui.card().classes("grow").props("data-mark=review")
            self.decisions = Decisions(self.visit, self._waits_again)
        if self.visit.may("reviewer"):
            ui.keyboard(allowed("reviewer")(self._pressed), repeating=False, ignore=["input", "select", "textarea"])
        ui.timer(LOOKS_AGAIN_S, self._look, immediate=False)
        self._show()

    def _show(self) -> None:
        """The event at hand."""
        if self.card.is_deleted:
            return
        t, waiting = self.t, self.waiting
        self.count.text = "" if waiting is None else t("reviews_wait", count=f"{waiting.waiting:,}")
        self.missing.clear()
        with self.missing:
            if waiting is not None:
                missing(self.visit, waiting.silent, waiting.restoring)
        self.card.clear()
        with self.card:
            if self.now is not None:
                self._event(self.now)
            elif self.failed:
                ui.label(t("failed", why=self.failed)).classes("text-negative").props("data-mark=failed")
            elif waiting is None:
                ui.spinner()
            elif not waiting.silent:  # else it isn't known
                ui.label(t("nothing_waits")).classes("text-h6").props("data-mark=nothing-waits")

    def _event(self, review: Review) -> None:
        t = self.t
        ui.label(review.text or t("no_text")).classes("text-body1").style(
            "white-space: pre-wrap; overflow-wrap: anywhere; max-height: 50vh; overflow-y: auto"
        ).props("data-mark=text")
        light = f"{review.light_category} · {review.light_confidence}" if review.light_category else ""
        facts(
            [
                (t("task"), review.task), (t("cause"), review.cause), (t("light_said"), light),
                (t("tried"), "; ".join(review.tried)), (t("attempts"), review.attempts or ""),
                (t("type"), review.event_type), (t("entity"), review.entity),
                (t("event_time"), self.visit.time(review.event_time_ms)),
                (t("waits_since"), self.visit.age(review.created_ms)),
            ]
        )  # fmt: skip
        ui.link(t("open_event", id=review.event_id), "/event?" + urlencode({"id": review.event_id}))
        if not self.visit.may("reviewer"):
            ui.label(t("may_not_review")).classes("opacity-70")
            return
        with ui.row().classes("w-full"):
            for key, category in zip(KEYS, self._categories(review), strict=False):
                button = ui.button(on_click=allowed("reviewer")(self._decider(review, category)))
                with button.props(f"no-caps data-key={key}"):
                    ui.badge(key).props("color=white text-color=black").classes("q-mr-sm")
                    ui.label(category)
                self._described(review, category)
        with ui.row().classes("w-full items-center"):
            self.note = ui.input(t("note_key")).props(f'name="note" maxlength={NOTE_CHARS} dense').classes("grow")
            later = ui.button(on_click=allowed("reviewer")(self._put_off)).props("flat no-caps data-mark=later")
            with later:
                ui.badge("s").props("outline").classes("q-mr-sm")
                ui.label(t("later"))
        self.fields = self._fields(self.tasks.get(review.task))

    def _categories(self, review: Review) -> list[str]:
        return allowed_categories(review, self.tasks.get(review.task))

    def _described(self, review: Review, category: str) -> None:
        """What a category means, where its task says so."""
        task = self.tasks.get(review.task)
        found = next((each.description for each in task.categories if each.id == category), "") if task else ""
        if found:
            ui.tooltip(found)

    def _fields(self, task: TaskSettings | None) -> ui.textarea | None:
        """Where the task extracts fields: a JSON object of them, or nothing."""
        if task is None or not task.extract:
            return None
        return (
            ui.textarea(self.t("fields_json"))
            .props('name="fields" outlined autogrow spellcheck=false')
            .classes("w-full mono")
        )

    # -- the queue -------------------------------------------------------------------------------------------------

    async def _again(self) -> None:
        """Another task was chosen."""
        self.desk.release(self.page)
        self._chosen += 1
        self.ahead, self.now, self.waiting = [], None, None
        self._show()
        await self.refill()

    async def _look(self) -> None:
        """Something may have come, or what comes next may have been decided by others."""
        if self.now is None or time.monotonic() - self._fetched > FRESH_S:
            await self.refill(fresh=False)

    async def refill(self, *, fresh: bool = True) -> None:
        """Fetches what waits, and shows the oldest of it where nothing is shown."""
        if self._filling:
            return
        self._filling, chosen = True, None
        try:
            while chosen != self._chosen:
                chosen = self._chosen
                await self._fetch(fresh=fresh)
        finally:
            self._filling = False
        seen, self._seen = self._seen, (self.waiting, self.failed)
        if self.now is None and (self.ahead or self._seen != seen):
            self._next()

    async def _fetch(self, *, fresh: bool) -> None:
        chosen, task = self._chosen, str(self.task.value or "")
        self._fetched = time.monotonic()
        try:
            waiting = await self.desk.waiting(self.me, task=task, limit=AHEAD + len(self.later), fresh=fresh)
            rows = [msgspec.convert(row["review"], Review) for row in waiting.reviews]
        except FAILURES as error:
            self.failed = why(error)
            return
        if chosen != self._chosen:
            return
        self.waiting, self.failed = waiting, ""
        if not self.visit.may("reviewer"):
            self.now = None  # who only looks holds nothing: others may have decided it
        known = {self.now.event_id} if self.now else set()
        new = [review for review in rows if review.event_id not in known | self.later]
        self.ahead = new or [review for review in rows if review.event_id not in known]

    def _next(self) -> None:
        """Shows the next event that nobody else looks at."""
        self.now = None
        while self.ahead and self.now is None:
            review = self.ahead.pop(0)
            if not self.visit.may("reviewer") or self.desk.claim(review.event_id, self.me, self.page):
                self.now = review
        self._show()

    def _advance(self) -> None:
        """The event at hand is dealt with."""
        self._next()
        if len(self.ahead) < REFILL_BELOW:
            background_tasks.create(self.refill())

    # -- deciding --------------------------------------------------------------------------------------------------

    def _decider(self, review: Review, category: str) -> Any:
        async def decide() -> None:
            if self.now is review:
                await self._decide(review, category)

        return decide

    async def _pressed(self, event: KeyEventArguments) -> None:
        """One key decides, puts off, or takes back."""
        if not event.action.keydown or event.modifiers.ctrl or event.modifiers.alt or event.modifiers.meta:
            return
        if any(isinstance(each, (ui.dialog, ui.menu)) and each.value for each in self.client.elements.values()):
            return  # it is what the key is for
        name, now = str(event.key.name).lower(), time.monotonic()
        if name == "g":
            self._led_away = now
        elif now - self._led_away < LEADS_AWAY_S:
            self._led_away = float("-inf")
        elif name == "u":
            await self.decisions.undo_latest()
        elif self.now is not None:
            await self._key(self.now, name)

    async def _key(self, review: Review, name: str) -> None:
        categories = self._categories(review)
        if name == "s":
            self._put_off()
        elif name == "n":
            self.note.run_method("focus")
        elif len(name) == 1 and name in KEYS and KEYS.index(name) < len(categories):
            await self._decide(review, categories[KEYS.index(name)])

    def _put_off(self) -> None:
        if self.now is not None:
            self.later.add(self.now.event_id)
            self.desk.release(self.page)
            self._advance()

    async def _decide(self, review: Review, category: str) -> None:
        """Takes a decision for the event at hand, shows the next, and writes it behind that."""
        fields, wrong = self._given(review)
        if wrong:
            ui.notify(self.t("fields_wrong", why=wrong), type="negative")
            return
        if not await self._has(review):
            return
        done = self.decisions.take(review, category, fields, self.note.value or "")
        if self.waiting is not None:
            self.waiting.waiting = max(0, self.waiting.waiting - 1)
        self._advance()
        await self.decisions.write(done)

    async def _has(self, review: Review) -> bool:
        """Whether the event at hand is still this viewer's to decide: a claim runs out, and others may have decided it."""
        lost = False
        if not self.desk.holds(review.event_id, self.me):
            try:
                lost = (await self.desk.find(review.event_id))["decision"] is not None
            except FAILURES as error:
                self.decisions.notify(self.t("not_saved", id=review.event_id, why=why(error)))
                return False
        if self.now is not review:
            return False
        if lost or not self.desk.claim(review.event_id, self.me, self.page):
            self.decisions.notify(self.t("review_lost", id=review.event_id))
            self.desk.release(self.page)
            self._advance()
            return False
        return True

    def _given(self, review: Review) -> tuple[dict[str, object] | None, str]:
        """The fields that the viewer gave, and what is wrong with them."""
        text = (self.fields.value or "").strip() if self.fields is not None else ""
        if not text:
            return None, ""
        try:
            fields = msgspec.json.decode(text.encode("utf-8", "surrogatepass"), type=dict[str, object])
        except (msgspec.MsgspecError, RecursionError) as error:
            return None, str(error)
        return fields, why_wrong(self.tasks[review.task].extract, fields)

    def _waits_again(self, review: Review) -> None:
        """Its decision was taken back: it is shown again."""
        if self.now is not None:
            self.ahead.insert(0, self.now)
        self.desk.release(self.page)
        self.ahead.insert(0, review)
        self._next()
