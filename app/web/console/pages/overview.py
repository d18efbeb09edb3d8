"""Overview: how the whole pipeline does, now and over the last hour."""

from nicegui import ui

from app.web.console.context import Visit

__all__ = ["build"]


async def build(visit: Visit) -> None:
    """Draws the page."""
    ui.label(visit.t("nothing"))
