"""The last hour as charts, from points that the process keeps: no Prometheus is needed."""

from datetime import datetime
from typing import Any

from nicegui import ui

from app.web.console.context import Visit
from app.web.console.snapshots import TIERS, Point, Snapshot

__all__ = ["Charts"]

DARK_TEXT, LIGHT_TEXT = "#cccccc", "#333333"
DIGITS = 4


class Charts:
    """Events and results, lag, cost. Drawn anew when there is a new point, every 15 s."""

    def __init__(self, visit: Visit, colors: dict[str, str]) -> None:
        self._visit, self._colors = visit, colors
        self._drawn_ms: int | None = None
        t = visit.t
        with ui.card().classes("w-full q-pa-sm gap-1").props("flat bordered"):
            ui.label(t("last_hour")).classes("text-subtitle2")
            with ui.row().classes("w-full"):
                tiers = [self._line(t(f"tier_{tier}"), colors[tier], stack="results") for tier in TIERS]
                self._rates = self._chart("rates", [self._line(t("events_in"), "#607d8b"), *tiers])
                self._lag = self._chart("lag", [self._line(t("lag"), "#c62828")])
                self._cost = self._chart("cost", [self._line(t("cost_hour"), "#00838f")])

    def show(self, snapshot: Snapshot) -> None:
        """Takes the points of a snapshot."""
        newest = snapshot.points[-1].at_ms if snapshot.points else None
        if newest is None or newest == self._drawn_ms:
            return
        self._drawn_ms, points = newest, snapshot.points
        self._fill(self._rates, points, [[p.events for p in points], *(_tier(points, tier) for tier in TIERS)])
        self._fill(self._lag, points, [[p.lag for p in points]])
        self._fill(self._cost, points, [_sums([p.cost_usd for p in points])])

    def _chart(self, mark: str, series: list[dict[str, Any]]) -> ui.echart:
        color = DARK_TEXT if self._visit.dark else LIGHT_TEXT
        axis = {"axisLabel": {"color": color}}
        options = {
            "animation": False, "textStyle": {"color": color}, "legend": {"textStyle": {"color": color}, "top": 0},
            "grid": {"left": 50, "right": 12, "top": 30, "bottom": 24}, "tooltip": {"trigger": "axis"},
            "xAxis": {"type": "category", "data": [], **axis}, "yAxis": {"type": "value", "min": 0, **axis},
            "series": series,
        }  # fmt: skip
        chart = ui.echart(options).style("height: 200px; min-width: 18rem; flex: 1 1 18rem; width: auto")
        return chart.props(f"data-mark=chart-{mark}")

    @staticmethod
    def _line(name: str, color: str, stack: str = "") -> dict[str, Any]:
        line = {"name": name, "type": "line", "showSymbol": False, "data": [], "color": color, "connectNulls": False}
        return line | ({"stack": stack, "areaStyle": {"opacity": 0.5}, "lineStyle": {"width": 1}} if stack else {})

    def _fill(self, chart: ui.echart, points: list[Point], columns: list[list[float | None]]) -> None:
        chart.options["xAxis"]["data"] = [
            datetime.fromtimestamp(p.at_ms / 1000, self._visit.zone).strftime("%H:%M:%S") for p in points
        ]
        for series, column in zip(chart.options["series"], columns, strict=True):
            series["data"] = [None if value is None else float(f"{value:.{DIGITS}g}") for value in column]
        chart.update()


def _tier(points: list[Point], tier: str) -> list[float | None]:
    return [None if point.tiers is None else point.tiers[tier] for point in points]


def _sums(values: list[float | None]) -> list[float | None]:
    """Running sums; unknown stays unknown."""
    total, found = 0.0, []
    for value in values:
        total += value or 0.0
        found.append(None if value is None else total)
    return found
