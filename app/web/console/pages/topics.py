"""Topics: partitions, offsets, groups and their lag; and the records of one, within a budget."""

import logging
import time
from typing import Any

from nicegui import background_tasks, ui

from app.topics import may_read
from app.web.console import show
from app.web.console.context import Visit
from app.web.console.pages.records import Records
from app.web.console.parts import FAILURES, columns, link_cells, why
from app.web.console.roles import allowed
from app.web.topic_state import GroupState, TopicState, groups_of, our_topics

__all__ = ["build"]

log = logging.getLogger("headrace.web")


async def build(visit: Visit) -> None:
    """Draws all topics, or the one that the address names. What Kafka is asked comes after the page is shown."""
    name = visit.query.get("name")
    if name is None:
        background_tasks.create(_fill_all(visit, ui.column().classes("w-full")))
        return
    ui.link(visit.t("back"), visit.link("/topics")).props("data-mark=back")
    background_tasks.create(_fill_one(visit, name, ui.column().classes("w-full")))


async def _ask(visit: Visit, into: ui.column, name: str | None) -> list[TopicState] | None:
    """The topics; None: Kafka isn't there, and that is said."""
    found, failure = None, ""
    try:
        found = await our_topics(visit.console.settings, name)
    except FAILURES as error:
        failure = visit.t("failed", why=why(error))
    if not into.is_deleted:
        into.clear()
        if failure:
            with into:
                ui.label(failure).classes("text-negative")
    return found


async def _fill_all(visit: Visit, into: ui.column) -> None:
    with into:
        ui.spinner()
    states = await _ask(visit, into, None)
    if states is None or into.is_deleted:
        return

    @allowed("viewer")
    async def again() -> None:
        await _fill_all(visit, into)

    names = ("topic", "what", "by", "partition", "span")
    rows = [
        {
            "topic": s.name, "what": s.what, "by": s.written_by, "partition": len(s.ends), "span": s.span,
            "href": visit.link("/topics", name=s.name),
        }
        for s in states
    ]  # fmt: skip
    with into:
        with ui.row().classes("items-center"):
            ui.label(visit.t("topics_note", time=visit.time(time.time() * 1000))).classes("text-caption opacity-60")
            ui.button(visit.t("refresh"), on_click=again).props("flat dense no-caps data-mark=refresh")
        table = ui.table(
            rows=rows, columns=columns(visit, names, sortable=True), row_key="topic", pagination={"rowsPerPage": 0}
        )
        table.props("dense flat bordered hide-bottom data-mark=topics").classes("w-full")
        link_cells(table, "topic")


async def _fill_one(visit: Visit, name: str, into: ui.column) -> None:
    with into:
        ui.spinner()
    states = await _ask(visit, into, name)
    if states is None or into.is_deleted:
        return
    with into:
        if not states:
            ui.label(visit.t("nothing"))
            return
        state = states[0]
        ui.label(state.name).classes("text-h6 mono")
        ui.label(f"{state.what} · {state.written_by}").classes("text-caption opacity-60")
        with ui.row().classes("w-full items-start"):
            _partitions(visit, state)
            groups = ui.column()
        if may_read(visit.console.settings, state.name, admin=visit.may("admin")):
            Records(visit, state)
        else:
            ui.label(visit.t("records_hidden")).classes("opacity-60").props("data-mark=hidden")
    try:
        found, whole = await groups_of(visit.console.settings, state)
    except FAILURES as error:
        found, whole = [], False
        log.warning("console: groups can't be read (%s)", type(error).__name__)
    if not groups.is_deleted:
        with groups:
            _groups(visit, state, found, whole)


def _table(visit: Visit, names: tuple[str, ...], rows: list[dict[str, Any]], mark: str) -> None:
    table = ui.table(
        rows=rows, columns=columns(visit, names, classes="num"), row_key=names[0], pagination={"rowsPerPage": 0}
    )
    table.props(f"dense flat bordered hide-bottom data-mark={mark}").style("max-height: 20rem")


def _partitions(visit: Visit, state: TopicState) -> None:
    rows = [
        {"partition": p, "first": str(state.starts[p]), "next": str(end), "span": show.count(end - state.starts[p])}
        for p, end in state.ends.items()
    ]
    _table(visit, ("partition", "first", "next", "span"), rows, "partitions")


def _groups(visit: Visit, state: TopicState, groups: list[GroupState], whole: bool) -> None:
    ui.label(visit.t("groups")).classes("text-subtitle2")
    if not groups:
        ui.label(visit.t("no_groups")).classes("opacity-60")
    if not whole:
        ui.label(visit.t("not_all_groups")).classes("text-negative")
    if groups:
        rows = [
            {"group": g.group, "lag": show.count(g.lag(state.ends)), "partition": _by_partition(g, state)}
            for g in groups
        ]
        _table(visit, ("group", "lag", "partition"), rows, "groups")


def _by_partition(group: GroupState, state: TopicState) -> str:
    lags = {partition: max(0, state.ends.get(partition, at) - at) for partition, at in sorted(group.offsets.items())}
    return ", ".join(f"{partition}: {show.count(lag)}" for partition, lag in lags.items())
