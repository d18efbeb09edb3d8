"""What pages that show and change records share: questions, reasons of failures, and values as text."""

import contextlib
from collections.abc import Iterator
from typing import Any

import msgspec
from aiokafka.errors import KafkaError
from nicegui import ui

from app.errors import HeadraceError
from app.web.console.context import Visit
from app.web.problems import Problem

__all__ = ["FAILURES", "confirmed", "facts", "failing", "missing", "pretty", "printable", "whole_text"]

FAILURES = (Problem, HeadraceError, KafkaError, OSError, TimeoutError, LookupError)
"""What can go wrong with workers and Kafka: it is said on the page, and the page goes on."""
SHOWN_BYTES = 64 << 10
"""Of a value; a browser that gets megabytes of text stands still."""


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


def pretty(raw: bytes | None) -> str:
    """A value as a person reads it: JSON with line breaks, every digit as it stands; else as text."""
    if raw is None:
        return "–"
    if len(raw) <= SHOWN_BYTES:
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return msgspec.json.format(raw, indent=2).decode()
    return raw[:SHOWN_BYTES].decode("utf-8", "backslashreplace")


def whole_text(text: str, height: str = "none") -> None:
    """A value as it stands, with its line breaks and indents. A label's text is no HTML and no Markdown, whatever is in it."""
    ui.label(text).classes("mono w-full").style(
        f"white-space: pre-wrap; overflow-wrap: anywhere; max-height: {height}; overflow-y: auto"
    )


def printable(raw: bytes | None) -> str:
    """A key or header as text; bytes that aren't UTF-8 stay visible."""
    return "–" if raw is None else raw[:SHOWN_BYTES].decode("utf-8", "backslashreplace")
