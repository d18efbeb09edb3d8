"""Records of one topic: read within a budget, shown as they are found, stopped whenever somebody wants."""

import asyncio
import re
import time
from bisect import insort
from collections.abc import Callable
from datetime import datetime
from typing import Any

from nicegui import background_tasks, ui

from app.web.console import show
from app.web.console.context import Visit
from app.web.console.parts import FAILURES, columns, decoded, failing, set_rows, whole_value, why
from app.web.console.roles import allowed
from app.web.scan import Asked, Budget, Progress, Record, scan
from app.web.topic_state import TopicState

__all__ = ["Found", "Records"]

BUDGET = Budget()
MOST_ROWS = 1000
PREVIEW_CHARS = 160
STARTS = ("newest", "oldest", "offset", "time")
ALL = -1
DRAW_S = 0.5
"""A page that is drawn sends all its rows, so it isn't with each piece that was read."""

_PLACE = re.compile(r"(\d{1,9})/(\d{1,18})")
"""Partition and offset."""


class Found:
    """Rows of the first or the newest records by time.

    Of the first, none counts as older than those before it in its partition, as `scan` has it.

    Args:
        most: rows that are kept.
        newest: the newest come first.
        row: makes one of a record. Only rows are kept: records may be megabytes.
    """

    def __init__(self, most: int, *, newest: bool, row: Callable[[Record], dict[str, Any]]) -> None:
        self._most, self._newest, self._row = most, newest, row
        self._times: dict[int, int] = {}
        """The latest so far, by partition."""
        self._kept: list[tuple[tuple[int, int, int], dict[str, Any]]] = []

    def take(self, records: list[Record]) -> None:
        """Takes records of a scan; those of a partition in the order that it reads them."""
        for record in records:
            key = self._key(record)
            if len(self._kept) < self._most or key < self._kept[-1][0]:
                insort(self._kept, (key, self._row(record)), key=lambda each: each[0])
                del self._kept[self._most :]

    def _key(self, record: Record) -> tuple[int, int, int]:
        if self._newest:
            return -record.timestamp, record.partition, -record.offset
        at = self._times[record.partition] = max(self._times.get(record.partition, 0), record.timestamp)
        return at, record.partition, record.offset

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for _, row in self._kept]

    def __len__(self) -> int:
        return len(self._kept)


class Records:
    """The form, the table and the scan behind it."""

    def __init__(self, visit: Visit, topic: TopicState) -> None:
        self._visit, self._topic = visit, topic
        self._task: asyncio.Task[None] | None = None
        self._found = self._nothing()
        self._drawn_s = 0.0
        self._progress = Progress()
        t = visit.t
        ui.label(t("records")).classes("text-subtitle1")
        with ui.row().classes("items-end"):
            parts = {ALL: t("any_partition"), **{p: str(p) for p in topic.ends}}
            starts = {start: t(f"from_{start}") for start in STARTS}
            self._partition = ui.select(parts, value=ALL, label=t("col_partition"))
            self._start = ui.select(starts, value="newest", label=t("from")).props("data-mark=from")
            self._offset = ui.input(t("at_offset"), value="0").props("name=offset")
            self._time = ui.input(t("at_time", zone=visit.zone.key)).props(
                "type=datetime-local step=1 stack-label name=time"
            )
            for field, start in ((self._offset, "offset"), (self._time, "time")):
                field.bind_visibility_from(self._start, "value", value=start)
            self._text = ui.input(t("contains")).props("name=contains")
            self._rows = ui.select([20, 100, 500, MOST_ROWS], value=100, label=t("rows"))
            ui.button(t("read"), on_click=allowed("viewer")(self._read)).props("no-caps data-mark=read")
            self._stop = ui.button(t("stop"), on_click=allowed("viewer")(self._cancel)).props(
                "flat no-caps data-mark=stop"
            )
        self._stop.set_visibility(False)
        self._said = ui.label().classes("text-caption num").props("data-mark=scan")
        self._table = self._make_table()
        ui.context.client.on_delete(self._cancel)
        self._read()

    def _make_table(self) -> ui.table:
        names = ("time", "partition", "offset", "key", "value", "size")
        table = ui.table(
            rows=[], columns=columns(self._visit, names, classes="mono"), row_key="id", pagination={"rowsPerPage": 50}
        )
        table.props("dense flat bordered data-mark=records").classes("w-full cursor-pointer")
        table.on("row-click", allowed("viewer")(self._open), js_handler="(_, row) => emit(row.id)")
        return table

    def _read(self) -> None:
        asked = self._asked()
        if asked is None:
            ui.notify(self._visit.t("bad_start"), type="negative")
            return
        self._cancel()
        self._found, self._progress, self._drawn_s = self._nothing(asked), Progress(), 0.0
        self._table.rows = []
        self._task = background_tasks.create(self._scan(asked))

    def _nothing(self, asked: Asked | None = None) -> Found:
        rows, newest = (asked.rows, asked.start == "newest") if asked else (0, True)
        return Found(rows, newest=newest, row=self._row)

    def _asked(self) -> Asked | None:
        """What the form says; None: it can't be read."""
        at = 0
        try:
            if self._start.value == "offset":
                at = int(self._offset.value)
            elif self._start.value == "time":
                local = datetime.fromisoformat(self._time.value)
                at = int(local.replace(tzinfo=self._visit.zone).timestamp() * 1000)
        except (ValueError, TypeError, OverflowError):
            return None
        if not 0 <= at < 1 << 62:
            return None
        partition = None if self._partition.value == ALL else int(self._partition.value)
        return Asked(
            topic=self._topic.name, partition=partition, start=self._start.value, at=at,
            text=str(self._text.value or "")[:1000], rows=int(self._rows.value), admin=self._visit.may("admin"),
        )  # fmt: skip

    def _cancel(self) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()

    async def _scan(self, asked: Asked) -> None:
        self._stop.set_visibility(True)
        key, said = "", ""
        try:
            done = await scan(self._visit.console.settings, asked, BUDGET, self._take)
            self._progress = done
            key = {"complete": "read_all", "rows": "read_enough"}.get(done.why, f"read_partial_{done.why}")
        except asyncio.CancelledError:
            key = "read_stopped"
            raise
        except FAILURES as error:
            key, said = "read_failed", why(error)
        finally:
            if not self._said.is_deleted and self._task is asyncio.current_task():
                self._draw()
                self._tell(key, said)
                self._stop.set_visibility(False)

    def _take(self, found: list[Record], progress: Progress) -> None:
        """What a scan found since the last time."""
        self._progress = progress
        self._found.take(found)
        now = time.monotonic()
        if now - self._drawn_s >= DRAW_S:
            self._drawn_s = now
            self._draw()
            self._tell("reading")

    def _draw(self) -> None:
        set_rows(self._table, self._found.rows)

    def _tell(self, key: str, failure: str = "") -> None:
        p = self._progress
        self._said.set_text(
            self._visit.t(
                key, read=show.count(p.read), size=show.bytes_(p.bytes), seconds=f"{p.seconds:.1f} s",
                found=show.count(len(self._found)), why=failure,
            )
        )  # fmt: skip

    def _row(self, record: Record) -> dict[str, Any]:
        return {
            "id": f"{record.partition}/{record.offset}", "time": self._visit.time(record.timestamp),
            "partition": record.partition, "offset": str(record.offset),
            "key": self._short(record.key), "value": self._short(record.value),
            "size": show.count(len(record.value)) if record.value is not None else self._visit.t("null"),
        }  # fmt: skip

    def _short(self, value: bytes | None) -> str:
        kind, text = decoded(value[:1000] if value else value)
        return self._visit.t(kind) if kind in ("null", "empty") else " ".join(text[:PREVIEW_CHARS].split())

    async def _open(self, event: Any) -> None:
        """One record, whole: read again, as only rows are kept."""
        place = _PLACE.fullmatch(event.args) if isinstance(event.args, str) else None
        if place is None:
            return
        partition, offset = map(int, place.groups())
        found: list[Record] = []
        asked = Asked(
            topic=self._topic.name,
            partition=partition,
            start="offset",
            at=offset,
            rows=1,
            admin=self._visit.may("admin"),
        )
        with failing(self._visit):
            await scan(self._visit.console.settings, asked, BUDGET, lambda records, _: found.extend(records))
            if not found or found[0].offset != offset:
                ui.notify(self._visit.t("record_gone"), type="warning")
                return
            if not self._said.is_deleted:
                self._show(found[0])

    def _show(self, record: Record) -> None:
        t = self._visit.t
        with ui.dialog(value=True) as dialog, ui.card().style("min-width: min(90vw, 60rem); max-width: 90vw"):
            ui.label(f"{record.topic} / {record.partition} / {record.offset}").classes("mono")
            ui.label(self._visit.time(record.timestamp)).classes("text-caption")
            for name, value in (("col_key", record.key), ("col_value", record.value)):
                ui.label(t(name)).classes("text-subtitle2")
                whole_value(self._visit, value, height="50vh")
            ui.label(t("col_headers")).classes("text-subtitle2")
            if not record.headers:
                ui.label(t("no_headers")).classes("opacity-60")
            for name, value in record.headers:
                with ui.row().classes("no-wrap items-baseline"):
                    ui.label(name).classes("mono text-weight-bold")
                    ui.label(self._short(value)).classes("mono")
            ui.button(t("close"), on_click=dialog.close).props("flat no-caps data-mark=close")
        dialog.on("hide", dialog.delete)
