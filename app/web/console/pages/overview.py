"""Overview: how the whole pipeline does, now and over the last hour."""

from collections.abc import Callable
from typing import Any

from nicegui import ui

from app.web.console import show
from app.web.console.context import Visit
from app.web.console.pages.charts import Charts
from app.web.console.parts import columns, link_cells, set_rows
from app.web.console.snapshots import OUTCOMES, TIERS, Snapshot
from app.web.console.tail import KEPT
from app.web.numbers import Numbers

__all__ = ["build"]

TIER_COLORS = {"rule": "#2e7d32", "light": "#1565c0", "deep": "#6a1b9a", "review": "#ef6c00"}

Show = Callable[[Snapshot], None]


async def build(visit: Visit) -> None:
    """Draws the page; every snapshot changes what it shows."""
    parts: list[Show] = [_banner(visit), _tiles(visit)]
    with ui.row().classes("w-full items-stretch"):
        parts.append(_tiers(visit))
        parts.append(_lag(visit))
        parts.append(_providers(visit))
    parts.append(Charts(visit, TIER_COLORS).show)
    parts.append(_results(visit))

    def show_all(snapshot: Snapshot) -> None:
        for part in parts:
            part(snapshot)

    visit.console.snapshots.subscribe(show_all)


def _banner(visit: Visit) -> Show:
    said = ui.label().classes("text-negative text-subtitle1").props("data-mark=banner")
    seen = ui.label().classes("text-caption opacity-60 num").props("data-mark=as-of")

    def changed(snapshot: Snapshot) -> None:
        lines = [] if snapshot.kafka else [visit.t("no_kafka")]
        if not snapshot.workers and not snapshot.silent:
            lines.append(visit.t("no_workers"))
        lines += [
            visit.t("silent_worker", worker=f"{worker.host}/{worker.pid}", why=why) for worker, why in snapshot.silent
        ]
        said.set_text(" ".join(lines))
        said.set_visibility(bool(lines))

        seen.set_text(visit.t("as_of", time=visit.time(snapshot.at_ms)))

    return changed


def _tiles(visit: Visit) -> Show:
    t = visit.t
    with ui.element("div").classes("w-full tiles"):
        tiles = {
            name: _tile(name, t(name))
            for name in ("events_in", "results_out", "lag", "waiting", "cost", "dead", "errors", "workers")
        }

    def changed(snapshot: Snapshot) -> None:
        now, rates, hour = snapshot.now, snapshot.rates, snapshot.hour
        span, hour_span = show.seconds(snapshot.rate_s), show.seconds(snapshot.hour_s)
        known = bool(snapshot.workers)

        def write(name: str, value: str, note: str) -> None:
            big, small = tiles[name]
            big.set_text(value)
            small.set_text(note)

        write("events_in", show.rate((rates.events_in or 0.0) if rates else None), t("per_second", span=span))
        results = [rates.total(OUTCOMES, outcome=tier) or 0.0 for tier in TIERS] if rates else None
        write("results_out", show.rate(sum(results) if results else None), t("per_second", span=span))
        write("lag", show.count(now.total("headrace_lag_records")), t("lag_note"))
        write("waiting", *_waiting(visit, now))
        write("cost", show.usd(now.day_cost_usd or (0.0 if known else None)), _of_budget(visit, now))
        hour_known = snapshot.hour_s > 0
        dead = hour.total(OUTCOMES, outcome="dead") or (0.0 if hour_known else None)
        write("dead", show.count(dead), t("over_span", span=hour_span))
        failures, refusals = (
            show.count(hour.total(name) or (0.0 if hour_known else None))
            for name in ("headrace_lane_failures_total", "headrace_provider_refusals_total")
        )
        stopped = now.total("headrace_partitions_stopped") or (0.0 if known else None)
        write("errors", show.count(stopped), t("errors_note", failures=failures, refusals=refusals, span=hour_span))
        tiles["errors"][0].classes(**{"add" if stopped else "remove": "text-negative"})
        write("workers", show.count(len(snapshot.workers)), t("workers_note", silent=len(snapshot.silent)))

    return changed


def _waiting(visit: Visit, now: Numbers) -> tuple[str, str]:
    """Of the stage that asks models: what waits for a person is on the page Review."""
    items, oldest = (
        now.total(name, stage="classify") for name in ("headrace_open_items", "headrace_oldest_open_seconds")
    )
    return show.count(items), visit.t("oldest", age=show.seconds(oldest))


def _of_budget(visit: Visit, now: Numbers) -> str:
    limit, settled = (now.total("headrace_budget_usd", kind=kind) for kind in ("limit", "settled"))
    return visit.t("of_budget", settled=show.usd(settled), limit=show.usd(limit)) if limit else visit.t("cost_note")


def _tile(name: str, title: str) -> tuple[ui.label, ui.label]:
    with ui.card().classes("q-pa-sm gap-0").props("flat bordered"):
        ui.label(title).classes("text-caption")
        big = ui.label(show.UNKNOWN).classes("text-h5 num").props(f"data-mark=tile-{name}")
        small = ui.label().classes("text-caption opacity-60")
    return big, small


def _panel(title: str) -> ui.card:
    with ui.card().classes("q-pa-sm gap-1").style("min-width: 18rem; flex: 1 1 18rem").props("flat bordered") as card:
        ui.label(title).classes("text-subtitle2")
    return card


def _tiers(visit: Visit) -> Show:
    bars: dict[str, tuple[ui.linear_progress, ui.label]] = {}
    with _panel(visit.t("tiers")):
        span = ui.label().classes("text-caption opacity-60")
        for tier in TIERS:
            with ui.row().classes("w-full items-center no-wrap"):
                ui.label(visit.t(f"tier_{tier}")).style("width: 5rem")
                bar = ui.linear_progress(0, show_value=False, size="10px", color=TIER_COLORS[tier])
                bars[tier] = bar, ui.label().classes("num").style("width: 3rem").props(f"data-mark=share-{tier}")

    def changed(snapshot: Snapshot) -> None:
        counts = {tier: snapshot.hour.total(OUTCOMES, outcome=tier) or 0.0 for tier in TIERS}
        total = sum(counts.values())
        span.set_text(visit.t("over_span", span=show.seconds(snapshot.hour_s)))
        for tier, (bar, said) in bars.items():
            bar.set_value(round(counts[tier] / total, 3) if total else 0)
            said.set_text(show.share(counts[tier] / total if total else None))

    return changed


def _lag(visit: Visit) -> Show:
    heads = [
        {"name": "stage", "label": visit.t("stage"), "field": "stage", "align": "left"},
        {"name": "total", "label": visit.t("total"), "field": "total", "classes": "num"},
        {
            "name": "partitions",
            "label": visit.t("partitions"),
            "field": "partitions",
            "align": "left",
            "classes": "num",
        },
    ]
    with _panel(visit.t("lag_by")):
        table = ui.table(rows=[], columns=heads, row_key="stage").props("dense flat data-mark=lag").classes("w-full")

    def changed(snapshot: Snapshot) -> None:
        rows: list[dict[str, object]] = []
        for stage in sorted(snapshot.now.by("headrace_lag_records", "stage")):
            by = snapshot.now.by("headrace_lag_records", "partition", stage=stage)
            parts = [f"{p}: {show.count(by[p])}" for p in sorted(by, key=int)]
            rows.append({"stage": stage, "total": show.count(sum(by.values())), "partitions": ", ".join(parts)})
        set_rows(table, rows)

    return changed


def _providers(visit: Visit) -> Show:
    with _panel(visit.t("providers")):
        providers = ui.column().classes("gap-1")
        ui.label(visit.t("budget")).classes("text-subtitle2 q-mt-sm")
        budgets = ui.column().classes("gap-1")
    drawn: list[object] = [None, None]

    def changed(snapshot: Snapshot) -> None:
        now = snapshot.now
        breakers = now.by("headrace_breaker_open", "provider")
        if drawn[0] != breakers:
            drawn[0] = breakers
            providers.clear()
            with providers:
                _draw_providers(visit, breakers)
        money = {
            task: now.by("headrace_budget_usd", "kind", task=task) for task in now.by("headrace_budget_usd", "task")
        }
        if drawn[1] != money:
            drawn[1] = money
            budgets.clear()
            with budgets:
                _draw_budgets(visit, money)

    return changed


def _draw_providers(visit: Visit, breakers: dict[str, float]) -> None:
    if not breakers:
        ui.label(visit.t("no_providers")).classes("opacity-60")
    for provider, is_open in sorted(breakers.items()):
        with ui.row().classes("items-center"):
            ui.label(provider)
            said = visit.t("breaker_open" if is_open else "breaker_closed")
            ui.badge(said, color="negative" if is_open else "positive")


def _draw_budgets(visit: Visit, money: dict[str, dict[str, float]]) -> None:
    if not money:
        ui.label(visit.t("no_budget")).classes("opacity-60")
    for task, kinds in sorted(money.items()):
        limit, settled, leased = (kinds.get(kind, 0.0) for kind in ("limit", "settled", "leased"))
        ui.label(
            f"{task}: " + visit.t("spent", settled=show.usd(settled), leased=show.usd(leased), limit=show.usd(limit))
        )
        used = (settled + leased) / limit if limit else 1.0
        ui.linear_progress(min(1.0, used), show_value=False, color="negative" if used >= 1 else "primary")


def _results(visit: Visit) -> Show:
    names = ("time", "event", "type", "task", "category", "tier", "confidence", "why")
    paused = False

    def toggle() -> None:
        nonlocal paused
        paused = not paused
        button.set_text(visit.t("go_on" if paused else "pause"))

    with ui.card().classes("w-full q-pa-sm gap-1").props("flat bordered"):
        with ui.row().classes("w-full items-center"):
            ui.label(visit.t("live")).classes("text-subtitle2")
            ui.label(visit.t("live_note", count=KEPT)).classes("text-caption opacity-60")
            ui.space()
            button = ui.button(visit.t("pause"), on_click=toggle).props("flat dense no-caps data-mark=pause")
        table = ui.table(rows=[], columns=columns(visit, names), row_key="id", pagination={"rowsPerPage": 0})
        table.props(f'dense flat hide-bottom virtual-scroll data-mark=results no-data-label="{visit.t("nothing")}"')
        table.classes("w-full").style("max-height: 28rem")
        link_cells(table, "event")

    def changed(snapshot: Snapshot) -> None:
        if paused:
            return
        set_rows(table, [_row(visit, n, shown) for n, shown in enumerate(reversed(snapshot.results))])

    return changed


def _row(visit: Visit, number: int, shown: Any) -> dict[str, object]:
    return {
        "id": number, "time": visit.time(shown.at_ms), "event": shown.event_id, "type": shown.event_type,
        "task": shown.task, "category": shown.category, "tier": shown.tier, "why": shown.why,
        "confidence": "" if shown.confidence is None else f"{shown.confidence:.2f}",
        "href": visit.link("/event", id=shown.event_id),
    }  # fmt: skip
