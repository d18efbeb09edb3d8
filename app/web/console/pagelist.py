"""Every page of the console, once: what it is called, where it is, who may see it, what draws it.

Navigation, keys, routes and their guard come from here; a test walks it.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from app.web.console.context import Visit
from app.web.console.pages import event, letters, overview, review, settings, tables, topics
from app.web.users import Role

__all__ = ["PAGES", "Page", "page_at"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page."""

    name: str
    """Its title is the text `page_NAME`."""
    path: str
    role: Role
    """Who may see it."""
    key: str
    """`g` and this letter lead to it."""
    icon: str
    """Of Google's Material icons."""
    build: Callable[[Visit], Awaitable[None]]
    """Draws the content; within 3 s, so what takes longer is loaded by a task after it is shown."""


PAGES = (
    Page(name="overview", path="/", role="viewer", key="o", icon="dashboard", build=overview.build),
    Page(name="tables", path="/tables", role="viewer", key="t", icon="table_view", build=tables.build),
    Page(name="event", path="/event", role="viewer", key="e", icon="route", build=event.build),
    Page(name="letters", path="/dead-letters", role="viewer", key="d", icon="report", build=letters.build),
    Page(name="review", path="/review", role="viewer", key="r", icon="rule", build=review.build),
    Page(name="topics", path="/topics", role="viewer", key="p", icon="topic", build=topics.build),
    Page(name="settings", path="/settings", role="viewer", key="s", icon="tune", build=settings.build),
)  # fmt: skip


def page_at(path: str) -> Page | None:
    return next((page for page in PAGES if page.path == path), None)
