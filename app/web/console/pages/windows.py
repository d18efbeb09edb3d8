"""An entity's open windows: what is in them so far, step by step on a time line."""

from operator import itemgetter
from typing import Any

from nicegui import ui

from app.web.announce import path_part
from app.web.console.context import Visit
from app.web.console.parts import facts
from app.web.workers import Heard, heard

__all__ = ["show_windows", "windows_of"]

SHOWN_WINDOWS = 20
DOT = "position: absolute; top: 4px; width: 8px; height: 8px; margin-left: -4px; border-radius: 50%"


async def windows_of(visit: Visit, entity: str) -> Heard:
    """What `GET /windows/ENTITY` of all workers says.

    Raises:
        Problem: no worker is alive.
    """
    return heard(await visit.console.workers.ask_all(f"/windows/{path_part(entity)}"))


def show_windows(visit: Visit, found: Heard) -> None:
    """Draws them by aggregate and time; of many the newest."""
    windows = sorted((window for _, body in found.bodies for window in body["windows"]), key=itemgetter("start_ms"))
    if not windows and not found.silent:
        ui.label(visit.t("no_windows")).props("data-mark=no-windows")
    for window in sorted(windows[-SHOWN_WINDOWS:], key=lambda window: (window["aggregate"], window["start_ms"])):
        _window(visit, window)
    if len(windows) > SHOWN_WINDOWS:
        ui.label(visit.t("more_windows", count=len(windows) - SHOWN_WINDOWS)).classes("opacity-70")


def _window(visit: Visit, window: dict[str, Any]) -> None:
    t, start_ms, end_ms = visit.t, int(window["start_ms"]), int(window["end_ms"])
    with ui.card().classes("w-full").props("data-mark=window"):
        ui.label(f"{window['aggregate']} · {visit.time(start_ms)} – {visit.time(end_ms)}").classes("text-subtitle1 num")
        counts = ", ".join(f"{label} {count:,}" for label, count in window["counts"].items())
        facts(
            [
                (t("events"), f"{window['events']:,}"), (t("counts"), counts), (t("other"), window["other"] or ""),
                (t("features"), ", ".join(f"{name} {value}" for name, value in window["features"].items())),
                (t("fired"), ", ".join(window["intents"])),
            ]
        )  # fmt: skip
        _line(window["sequence"], start_ms, end_ms)
        with ui.column().classes("gap-0").props("data-mark=sequence"):
            if window["cut"]:
                ui.label(t("cut_steps", count=window["cut"])).classes("opacity-70")
            for step in window["sequence"]:
                _step(visit, step)


def _step(visit: Visit, step: dict[str, Any]) -> None:
    at_ms = int(step["at_ms"])
    note = f" · {step['note']}" if step.get("note") else ""
    ui.label(f"{visit.time(at_ms)}.{at_ms % 1000:03}  {step['label']}{note}").classes("mono")


def _line(sequence: list[dict[str, Any]], start_ms: int, end_ms: int) -> None:
    """A bar as long as the window, and a dot for each step."""
    with ui.element("div").classes("w-full bg-grey-4").style("position: relative; height: 16px; border-radius: 8px"):
        for step in sequence:
            part = 100 * (int(step["at_ms"]) - start_ms) / max(1, end_ms - start_ms)
            with ui.element("div").classes("bg-primary").style(f"{DOT}; left: {min(100.0, max(0.0, part)):.2f}%"):
                ui.tooltip(str(step["label"]))
