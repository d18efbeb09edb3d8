"""One event through every stage: when, where it was read and written, what was decided and why.

While it waits, the page looks again and adds what is new. What is drawn stays, so that nobody loses what they have open:
State is asked, and topics are read at the places alone that it tells of for the first time.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import urlencode

from aiokafka.structs import ConsumerRecord
from nicegui import background_tasks, context, ui

from app.web.console.context import Visit
from app.web.console.pages import steps as draw
from app.web.console.parts import FAILURES, missing, why
from app.web.console.roles import allowed
from app.web.history import History, ended, merged, ordered, place_of, writes
from app.web.workers import Heard

__all__ = ["build"]

MAX_ID_CHARS = 4096
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 10.0
"""Between two looks: a model answers in seconds, a person in minutes."""
SLOWER = 1.2
QUIET_S = 600.0
"""Nothing new for so long: the page stops looking and says so."""
ABORTED_S = 15.0
"""An outcome is in its topic when State tells of it; an older transaction of the partition may hide it. That of a killed worker
is aborted after `delivery.transaction_timeout_s`, and brokers see to it every 10 s
(https://kafka.apache.org/documentation/#brokerconfigs_transaction.abort.timed.out.transaction.cleanup.interval.ms)."""


Record: TypeAlias = ConsumerRecord[bytes, bytes]
Step: TypeAlias = dict[str, Any]
Place: TypeAlias = tuple[Any, ...]
Found: TypeAlias = dict[Place, tuple[Record | None, dict[str, Any] | None]]
"""What steps read and wrote."""


async def build(visit: Visit) -> None:
    """Draws the page; an event named in its address is looked up."""
    wanted = visit.query.get("id", "")[:MAX_ID_CHARS]

    @allowed("viewer")
    def search() -> None:
        ui.navigate.to("/event?" + urlencode({"id": (entry.value or "").strip()[:MAX_ID_CHARS]}))

    with ui.row().classes("items-end w-full"):
        entry = ui.input(visit.t("event_id"), value=wanted).props('name="event" autofocus').classes("w-96 mono")
        entry.on("keydown.enter", search)
        ui.button(visit.t("look_up"), icon="search", on_click=search).props("data-mark=look-up")
    if not wanted:
        ui.label(visit.t("event_hint")).classes("opacity-70")
        return
    View(visit, wanted).begin()


@dataclass(slots=True)
class Drawn:
    """A step on the page."""

    step: Step
    element: ui.timeline_entry
    outcome: ui.column
    since_s: float
    """When its outcome was looked for first; time.monotonic."""
    written: dict[str, Any] | None = None


class View:
    """What one page shows of an event, as far as it has come."""

    def __init__(self, visit: Visit, event_id: str) -> None:
        self.visit, self.t, self.event_id = visit, visit.t, event_id
        self.client = context.client
        self.steps: list[Step] = []
        self.drawn: dict[Place, Drawn] = {}
        self.raw: Record | None = None
        self._said: tuple[Any, ...] | None = None
        self._heard_all = False
        self._result: Step | None = None
        self._looking: asyncio.Task[None] | None = None
        events = (visit.console.settings.source_topic(each) for each in visit.console.settings.sources)
        self._events = {visit.console.settings.topic("window-events"), *events}
        with ui.row().classes("items-center"):
            self.live = ui.label().classes("opacity-70").props("data-mark=live")
            self.again = ui.button(self.t("look_on"), icon="refresh", on_click=allowed("viewer")(self.begin))
            self.again.props("flat dense data-mark=look-on").set_visibility(False)
        self.said = ui.column().classes("w-full gap-0")
        with self.said:
            ui.spinner()
        self.outcome = ui.card().classes("w-full").props("data-mark=outcome")
        self.outcome.set_visibility(False)
        self.timeline = ui.timeline(side="right").props("data-mark=steps")
        self.client.on_delete(self._end)

    # -- looking ---------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Looks, now and on."""
        self._end()
        self._looking = background_tasks.create(self.watch())

    def _end(self) -> None:
        if self._looking is not None:
            self._looking.cancel()

    async def watch(self) -> None:
        """Looks until the event has its end, or nothing is new for long; while no browser is connected, it rests."""
        traces = self.visit.console.traces
        look, pause_s, news_s = traces.look, FIRST_PAUSE_S, time.monotonic()
        while True:
            if await self._look(look):
                pause_s, news_s = FIRST_PAUSE_S, time.monotonic()
            if self.timeline.is_deleted or self._at_its_end:
                break
            if time.monotonic() - news_s >= QUIET_S:
                self._say_live("live_over", again=True)
                return
            self._say_live("live_on")
            await asyncio.sleep(pause_s)
            await self.client.connected()
            look, pause_s = traces.look_again, min(pause_s * SLOWER, LONGEST_PAUSE_S)
        if not self.timeline.is_deleted:
            self._say_live("live_ended")

    @property
    def _at_its_end(self) -> bool:
        reviewed = self.visit.console.settings.reviews.keep_s > 0
        outstanding = any(map(self._outstanding, self.drawn.values()))
        return self._heard_all and ended(self.steps, reviewed=reviewed) and not outstanding

    def _outstanding(self, drawn: Drawn) -> bool:
        """Whether its outcome isn't found, and may yet be; else retention has removed it."""
        hidden_s = self.visit.console.settings.delivery.transaction_timeout_s + ABORTED_S
        sought = writes(drawn.step) is not None and drawn.written is None
        return sought and time.monotonic() - drawn.since_s < hidden_s

    async def _look(self, look: Callable[[str], Awaitable[Heard]]) -> bool:
        """Asks once and shows what is new; whether there was anything."""
        try:
            heard = await look(self.event_id)
            steps = merged(self.steps, ordered(body for _, body in heard.bodies))
            found = await self._found(steps)
        except FAILURES as error:
            if not self.timeline.is_deleted:
                self._say(failed=why(error))
            return False
        if self.timeline.is_deleted:
            return False
        news = steps != self.steps or any(written is not None for _, written in found.values())
        self.steps, self._heard_all = steps, not heard.silent
        self._say(silent=tuple(map(str, heard.silent)), unknown=not steps and not heard.silent)
        self._draw(found)
        return news

    async def _found(self, steps: list[Step]) -> Found:
        """What steps that are new here read, and what they and those that are still without it wrote."""
        wanted = [step for step in steps if self._news(step)]
        if not wanted:
            return {}
        async with History(self.visit.console.settings) as history:
            found: Found = {}
            for step in wanted:
                read = await history.read(step) if place_of(step) not in self.drawn else None
                found[place_of(step)] = read, await history.written(step, self.event_id)
            if self.raw is None:
                self.raw = await self._raw(history, steps, found)
        return found

    def _news(self, step: Step) -> bool:
        drawn = self.drawn.get(place_of(step))
        return drawn is None or self._outstanding(drawn) or drawn.step["at_ms"] != step["at_ms"]

    async def _raw(self, history: History, steps: list[Step], found: Found) -> Record | None:
        """The record as its source had it: named by the result, or what ingest read there."""
        for step in steps:
            read, written = found.get(place_of(step), (None, None))
            source = written["value"]["source"] if written else {}
            if source.get("topic") in self._events:  # whatever a record says, nothing else is shown
                return await history.at(source["topic"], source["partition"], source["offset"])
            if step["map"] == "seen" and read is not None and read.topic in self._events:
                return read
        return None

    # -- drawing ---------------------------------------------------------------------------------------------------

    def _say_live(self, key: str, *, again: bool = False) -> None:
        self.live.text = self.t(key, minutes=f"{QUIET_S / 60:.0f}")
        self.again.set_visibility(again)

    def _say(self, *, silent: tuple[str, ...] = (), unknown: bool = False, failed: str = "") -> None:
        """What keeps the page from showing all there is."""
        if self._said == (silent, unknown, failed):
            return
        self._said = (silent, unknown, failed)
        self.said.clear()
        with self.said:
            missing(self.visit, list(silent), [])
            if failed:
                ui.label(self.t("failed", why=failed)).classes("text-negative").props("data-mark=failed")
            if unknown:
                ui.label(self.t("event_unknown")).props("data-mark=unknown")
                ui.link(self.t("search_letters"), "/dead-letters?" + urlencode({"text": self.event_id[:200]}))

    def _draw(self, found: Found) -> None:
        for place in self.drawn.keys() - {place_of(step) for step in self.steps}:
            self.drawn.pop(place).element.delete()
        received = self._received()
        for number, step in enumerate(self.steps):
            place = place_of(step)
            if place not in self.drawn:
                self._add(step, found[place][0], number + received)
            self._update(self.drawn[place], step, found.get(place, (None, None))[1])
        self._show_result()

    def _received(self) -> bool:
        """The record as its source had it comes first, once it is known."""
        if self.raw is None:
            return False
        if not any(each.props.get("data-mark") == "received" for each in self.timeline.default_slot.children):
            with self.timeline:
                entry = ui.timeline_entry(
                    title=self.t("received"), subtitle=self.visit.time(self.raw.timestamp), icon="call_received"
                )
            with entry.props("data-mark=received"):
                draw.record(self.visit, self.raw)
            entry.move(self.timeline, 0)
        return True

    def _add(self, step: Step, read: Record | None, index: int) -> None:
        with self.timeline:
            entry = ui.timeline_entry(icon=draw.ICONS.get(step["map"], "circle"))
        with entry:
            draw.read_from(self.visit, step, None if _same(read, self.raw) else read)
            draw.prompt(self.visit, step)
            outcome = ui.column().classes("w-full gap-0")
        if index < len(self.timeline.default_slot.children) - 1:
            entry.move(self.timeline, index)
        self.drawn[place_of(step)] = Drawn(step, entry, outcome, since_s=time.monotonic())

    def _update(self, drawn: Drawn, step: Step, written: dict[str, Any] | None) -> None:
        """Its words, and its outcome where that is new."""
        if drawn.step["at_ms"] != step["at_ms"]:  # decided anew
            drawn.outcome.clear()
            drawn.written, drawn.since_s = None, time.monotonic()
        drawn.step = step
        first_ms = int(self.steps[0]["at_ms"])
        words = {"title": draw.headline(self.visit, step), "subtitle": draw.when(self.visit, step, first_ms)}
        if any(drawn.element.props.get(name) != text for name, text in words.items()):
            drawn.element.props.update(words)
            drawn.element.update()
        if written is not None and drawn.written is None:
            drawn.written = written
            with drawn.outcome:
                draw.written_to(self.visit, written, prompt_kept="prompt" in step)

    def _show_result(self) -> None:
        """The latest result, or that there is none."""
        values = [each.written["value"] for step in self.steps if (each := self.drawn[place_of(step)]).written]
        result = next((value for value in reversed(values) if value.get("category")), None)
        if self.steps and (result != self._result or not self.outcome.visible):
            self._result = result
            self.outcome.clear()
            with self.outcome:
                draw.outcome(self.visit, result, prompt_kept=any("prompt" in step for step in self.steps))
            self.outcome.set_visibility(True)


def _same(record: Record | None, raw: Record | None) -> bool:
    if record is None or raw is None:
        return False
    return (record.topic, record.partition, record.offset) == (raw.topic, raw.partition, raw.offset)
