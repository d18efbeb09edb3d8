"""One dead letter: why it is one, its bytes, headers and place; to be mended and sent back, or discarded."""

from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import urlencode

from nicegui import ui

from agents.redrive import Tally
from app.errors import HeadraceError
from app.logic.redrive import Selection
from app.web.console.audit import audit, note_anyway
from app.web.console.context import Visit
from app.web.console.parts import FAILURES, SHOWN_BYTES, confirmed, facts, failing, printable
from app.web.console.roles import allowed
from app.web.letters import Opened

__all__ = ["LetterPanel", "audited", "edited_value", "left_over"]

EDITED_BYTES = 256 << 10
"""A larger value isn't edited in a browser: a message of more than 1 MB is refused, and it would be slow before that."""
HEX_BYTES = 4 << 10
BYTES_A_LINE = 16


class LetterPanel:
    """Shown over the page.

    Args:
        visit: who looks.
        changed: called when something became of it.
    """

    def __init__(self, visit: Visit, changed: Callable[[], Awaitable[None]]) -> None:
        self.visit, self.t, self._changed = visit, visit.t, changed
        self.dialog = ui.dialog()
        with self.dialog:
            self.card = ui.card().style("max-width: 1100px; width: 95vw").props("data-mark=letter")

    async def open(self, position: str) -> None:
        """Reads it and shows it."""
        with failing(self.visit):
            opened = await self.visit.console.letters.open(position)
            if opened is None:
                ui.notify(self.t("letter_gone", position=position), type="warning")
                return
            self.card.clear()
            with self.card:
                self._draw(opened)
            self.dialog.open()

    def _draw(self, opened: Opened) -> None:
        letter, t, visit = opened.letter, self.t, self.visit
        with ui.row().classes("w-full items-center no-wrap"):
            ui.label(f"{letter.reason or '–'} · {letter.position}").classes("text-h6")
            ui.space()
            ui.button(icon="close", on_click=self.dialog.close).props("flat round dense data-mark=close")
        ui.label(letter.message)
        if opened.marker is not None:
            how = t("sent_to", topic=opened.marker.to) if opened.marker.to else t("was_discarded")
            ui.label(f"{how} · {visit.time(opened.marker.at_ms)}").classes("text-positive").props("data-mark=handled")
        facts(
            [
                (t("field"), letter.field), (t("of_stage"), letter.stage), (t("time"), visit.time(letter.at_ms)),
                (t("read_at"), letter.read_at), (t("goes_to"), letter.topic), (t("attempt"), letter.attempt),
                (t("key"), printable(letter.key)),
                (t("bytes"), t("no_value") if letter.value is None else f"{len(letter.value):,}"),
            ]
        )  # fmt: skip
        if letter.event_id:
            ui.link(t("open_event", id=letter.event_id), "/event?" + urlencode({"id": letter.event_id}))
        editor = self._value(opened)
        self._headers(opened)
        self._buttons(opened, editor)

    def _value(self, opened: Opened) -> ui.textarea | None:
        """The value as text, to be edited where that can be, and as bytes."""
        letter, t = opened.letter, self.t
        raw, editor = letter.value, None
        with ui.tabs().props("dense align=left") as tabs:
            as_text = ui.tab(t("as_text")).props("data-mark=as-text")
            as_hex = ui.tab(t("as_hex")).props("data-mark=as-hex")
        with ui.tab_panels(tabs, value=as_text).classes("w-full"):
            with ui.tab_panel(as_text).classes("q-pa-none"):
                editable = (
                    self._editable(opened)
                    and len(raw or b"") <= EDITED_BYTES
                    and (raw is None or opened.text is not None)
                )
                if editable:
                    editor = ui.textarea(value=opened.text or "").props(
                        'outlined autogrow name="value" spellcheck=false'
                    )
                    editor.classes("w-full mono").props("input-style='max-height: 40vh'")
                else:
                    ui.label(printable(raw)).classes("mono").style("white-space: pre-wrap; overflow-wrap: anywhere")
                if len(raw or b"") > SHOWN_BYTES and not editable:
                    ui.label(t("value_cut", shown=f"{SHOWN_BYTES:,}", total=f"{len(raw or b''):,}")).classes(
                        "opacity-70"
                    )
            with ui.tab_panel(as_hex).classes("q-pa-none"):
                ui.label(_hex(raw)).classes("mono").style("white-space: pre; overflow-x: auto").props("data-mark=hex")
        return editor

    def _editable(self, opened: Opened) -> bool:
        may_edit = self.visit.console.letters.editable(opened.letter)
        return may_edit and self._may_send(opened) and opened.marker is None

    def _may_send(self, opened: Opened) -> bool:
        withheld = self.visit.console.letters.withheld(may_review=self.visit.may("reviewer"))
        return self.visit.may("operator") and opened.letter.topic not in withheld

    def _headers(self, opened: Opened) -> None:
        with ui.expansion(self.t("headers", count=len(opened.headers))).classes("w-full"):
            rows = [{"name": name, "value": printable(value)} for name, value in opened.headers]
            columns = [
                {"name": name, "label": self.t(name), "field": name, "align": "left"} for name in ("name", "value")
            ]
            ui.table(rows=rows, columns=columns).props("dense flat wrap-cells").classes("w-full")

    def _buttons(self, opened: Opened, editor: ui.textarea | None) -> None:
        letter, t = opened.letter, self.t
        if opened.marker is not None or not self.visit.may("operator"):
            return

        @allowed("operator")
        async def redrive() -> None:
            edited = None if editor is None else edited_value(opened, editor.value or "")
            await self._redrive(opened, edited)

        @allowed("operator")
        async def discard() -> None:
            await self._discard(opened)

        with ui.row().classes("w-full justify-end"):
            ui.button(t("discard"), icon="delete", on_click=discard).props("flat data-mark=discard")
            if letter.topic and self._may_send(opened):
                ui.button(t("redrive"), icon="replay", on_click=redrive).props("data-mark=redrive")
            elif not letter.topic:
                ui.label(t("no_topic")).classes("opacity-70")

    async def _redrive(self, opened: Opened, edited: bytes | None) -> None:
        letter, t = opened.letter, self.t
        if not self._may_send(opened):
            ui.notify(self.visit.not_allowed("reviewer"), type="negative")
            return
        question = (
            t("redrive_one", topic=letter.topic) + "\n" + (t("with_edit") if edited is not None else t("as_it_is"))
        )
        if not await confirmed(self.visit, t("redrive"), question, t("redrive")):
            return
        values = {} if edited is None else {letter.position: edited}
        letters, selection = self.visit.console.letters, Selection(ids={letter.position})
        await self._act(
            opened, "redrive", {"to": letter.topic, "edited": edited is not None},
            lambda: letters.redrive(selection, may_review=self.visit.may("reviewer"), edited=values),
        )  # fmt: skip

    async def _discard(self, opened: Opened) -> None:
        letters, selection, t = self.visit.console.letters, Selection(ids={opened.letter.position}), self.t
        if await confirmed(self.visit, t("discard"), t("would_discard", count=1), t("discard")):
            await self._act(opened, "discard", {}, lambda: letters.discard(selection))

    async def _act(
        self, opened: Opened, action: str, detail: Mapping[str, object], run: Callable[[], Awaitable[Tally]]
    ) -> None:
        """Does it, tells what came of it, and closes."""
        with failing(self.visit):
            target, detail = f"dead-letter/{opened.letter.position}", {"reason": opened.letter.reason, **detail}
            done = await audited(self.visit, action, target, detail, run)
            moved = done.moved.total()
            said = self.t(f"{'stopped' if done.stopped else 'did'}_{action}", count=moved) + left_over(self.visit, done)
            ui.notify(said, type="positive" if moved else "warning")
            self.dialog.close()
            await self._changed()


def edited_value(opened: Opened, text: str) -> bytes | None:
    """The value that was typed; None where it is still the one that was received.

    Browsers make all line ends `LF`, once somebody types: where all were `CRLF`, they are again.
    """
    was, typed = _lf(opened.text or ""), _lf(text)
    if typed == was:
        return None
    whole = (opened.text or "").replace("\r\n", "")
    if "\n" in was and not ("\n" in whole or "\r" in whole):
        typed = typed.replace("\n", "\r\n")
    return typed.encode("utf-8", "replace")


def _lf(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


async def audited(
    visit: Visit, action: str, target: str, detail: Mapping[str, object], run: Callable[[], Awaitable[Tally]]
) -> Tally:
    """Runs what operators may, audited before, and tells in a second record, `ACTION-done`, what came of it.

    Raises:
        HeadraceError: the viewer, who was asked meanwhile, isn't an operator any more.
        NotAudited: the first can't be written; nothing is done.
        BrokerError: the run failed, and the second record says so.
    """
    if not visit.may("operator"):
        raise HeadraceError(visit.not_allowed("operator"))
    await audit(visit, action, target, detail)

    async def tell(what: Mapping[str, object]) -> None:
        await note_anyway(visit.console, visit.session.user, visit.address, f"{action}-done", target, what)

    try:
        done = await run()
    except FAILURES as error:
        await tell({"failed": type(error).__name__})
        raise
    moved = [{"reason": reason, "stage": stage, "to": to, "count": n} for (reason, stage, to), n in done.moved.items()]
    left = {"already": done.already, "too_often": done.too_often, "no_topic": done.no_topic, "withheld": done.withheld}
    stopped = {"stopped": True} if done.stopped else {}
    await tell({"moved": moved, "left": {why: count for why, count in left.items() if count}, **stopped})
    return done


def left_over(visit: Visit, tally: Tally) -> str:
    """What a run left alone, and why."""
    parts = [
        ("left_already", tally.already), ("left_too_often", tally.too_often), ("left_no_topic", tally.no_topic),
        ("left_withheld", tally.withheld),
    ]  # fmt: skip
    return "".join(f"; {visit.t(key, count=count)}" for key, count in parts if count)


def _hex(raw: bytes | None) -> str:
    """Offset, bytes and what of them is ASCII, 16 a line."""
    if not raw:
        return "–"
    lines = []
    for at in range(0, min(len(raw), HEX_BYTES), BYTES_A_LINE):
        part = raw[at : at + BYTES_A_LINE]
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{at:08x}  {part.hex(' '):<{3 * BYTES_A_LINE}} {shown}")
    return "\n".join(lines + ([f"… {len(raw):,}"] if len(raw) > HEX_BYTES else []))
