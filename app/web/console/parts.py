"""What pages share: tables, questions, reasons of failures, and values as text."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import msgspec
from nicegui import ui

from app.kafka import KAFKA_FAILURES
from app.web.console import show
from app.web.console.context import Visit
from app.web.problems import Problem

__all__ = [
    "FAILURES", "columns", "confirmed", "decoded", "facts", "failing", "link_cells", "missing", "printable", "set_rows",
    "whole_text", "whole_value", "why",
]  # fmt: skip

FAILURES = (Problem, *KAFKA_FAILURES, LookupError)
"""What can go wrong with workers and Kafka: it is said on the page, and the page goes on."""
SHOWN_BYTES = 256 << 10
"""Of a value; a browser that gets megabytes of text stands still."""

LINK = '<q-td :props="props"><a class="mono" :href="props.row.href">{{ props.value }}</a></q-td>'
"""Vue writes values as text: nothing of an event is taken for HTML."""


async def confirmed(visit: Visit, question: str, detail: str, yes: str) -> bool:
    """Asks before something is changed."""
    with ui.dialog() as dialog, ui.card():
        ui.label(question).classes("text-h6")
        ui.label(detail).style("white-space: pre-line")
        with ui.row().classes("w-full justify-end"):
            ui.button(visit.t("cancel"), on_click=lambda: dialog.submit(False)).props("flat data-mark=cancel")
            ui.button(yes, on_click=lambda: dialog.submit(True)).props("data-mark=yes")
    answer = await dialog
    dialog.delete()
    return answer is True


@contextlib.contextmanager
def failing(visit: Visit) -> Iterator[None]:
    """Says what went wrong in a notice; nothing else happens to the page."""
    try:
        yield
    except FAILURES as error:
        ui.notify(visit.t("failed", why=why(error)), type="negative")


def why(error: BaseException) -> str:
    """A failure in words."""
    return str(error) or type(error).__name__


def missing(visit: Visit, silent: list[str], restoring: list[int]) -> None:
    """Says what isn't shown because a worker is away or a partition is being restored."""
    if silent:
        ui.label(visit.t("silent", workers=", ".join(silent))).classes("text-warning").props("data-mark=silent")
    if restoring:
        partitions = ", ".join(map(str, restoring))
        ui.label(visit.t("restoring", partitions=partitions)).classes("text-warning").props("data-mark=restoring")


def facts(rows: list[tuple[str, Any]]) -> None:
    """Names and values in two columns; those without a value are left out."""
    with ui.grid(columns="max-content 1fr").classes("gap-x-4 gap-y-1"):
        for name, value in rows:
            if value not in (None, "", []):
                ui.label(name).classes("opacity-70")
                ui.label(str(value)).classes("num").style("overflow-wrap: anywhere")


def decoded(value: bytes | None) -> tuple[Literal["null", "empty", "json", "text", "bytes"], str]:
    """What a value holds, and how it is shown. Numbers and texts stay as they are written; null and empty are told apart."""
    if value is None:
        return "null", ""
    if not value:
        return "empty", ""
    shown = value[:SHOWN_BYTES]
    if value[:1] in b'{["' and len(shown) == len(value):
        try:
            return "json", msgspec.json.format(value, indent=2).decode()
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            pass  # it only looks so
    try:
        text = shown.decode("utf-8") if len(shown) == len(value) else shown.decode("utf-8", "ignore")
    except UnicodeDecodeError:
        return "bytes", shown.hex(" ")
    plain = all(char.isprintable() or char in "\n\r\t" for char in text[:4096])
    return ("text", text) if plain else ("bytes", shown.hex(" "))


def whole_value(visit: Visit, raw: bytes | None, height: str = "none") -> None:
    """A value as a person reads it, and what of it isn't shown."""
    kind, said = decoded(raw)
    if kind in ("null", "empty"):
        ui.label(visit.t(kind)).classes("opacity-60")
        return
    whole_text(said, height)
    if raw is not None and len(raw) > SHOWN_BYTES:
        ui.label(visit.t("cut", size=show.bytes_(SHOWN_BYTES))).classes("text-negative")


def whole_text(text: str, height: str = "none") -> None:
    """A value as it stands, with its line breaks and indents. A label's text is no HTML and no Markdown, whatever is in it."""
    ui.label(text).classes("mono w-full").style(
        f"white-space: pre-wrap; overflow-wrap: anywhere; max-height: {height}; overflow-y: auto"
    )


def printable(raw: bytes | None) -> str:
    """A key or header as text; bytes that aren't UTF-8 stay visible."""
    return "–" if raw is None else raw[:SHOWN_BYTES].decode("utf-8", "backslashreplace")


def columns(visit: Visit, names: Iterable[str], **more: object) -> list[dict[str, Any]]:
    """Columns of a table, with the words `col_NAME` above them."""
    return [{"name": n, "label": visit.t(f"col_{n}"), "field": n, "align": "left", **more} for n in names]


def link_cells(table: ui.table, column: str) -> None:
    """Makes a column's cells lead to their row's `href`."""
    table.add_slot(f"body-cell-{column}", LINK)


def set_rows(table: ui.table, rows: list[dict[str, Any]]) -> None:
    """Sends them only if they changed: an update sends the whole table."""
    if table.rows != rows:
        table.rows = rows
