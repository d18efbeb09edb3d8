"""One event through every stage: when, where it was read and written, what was decided and why."""

from typing import Any
from urllib.parse import urlencode

from aiokafka.structs import ConsumerRecord
from nicegui import background_tasks, ui

from app.web.announce import path_part
from app.web.console.context import Visit
from app.web.console.parts import FAILURES, facts, missing, printable, whole_value, why
from app.web.console.roles import allowed
from app.web.history import History, ordered
from app.web.workers import heard

__all__ = ["build"]

MAX_ID_CHARS = 4096
ICONS = {
    "seen": "input",
    "open": "hourglass_empty",
    "answered": "psychology",
    "waiting": "person_search",
    "decided": "how_to_reg",
}


Looked = tuple[dict[str, Any], ConsumerRecord[bytes, bytes] | None, dict[str, Any] | None]
"""A step, what it read and what it wrote (see `History`)."""


async def build(visit: Visit) -> None:
    """Draws the page; an event named in its address is looked up."""
    wanted = visit.query.get("id", "")[:MAX_ID_CHARS]

    @allowed("viewer")
    def search() -> None:
        ui.navigate.to("/event?" + urlencode({"id": (field.value or "").strip()[:MAX_ID_CHARS]}))

    with ui.row().classes("items-end w-full"):
        field = ui.input(visit.t("event_id"), value=wanted).props('name="event" autofocus').classes("w-96 mono")
        field.on("keydown.enter", search)
        ui.button(visit.t("look_up"), icon="search", on_click=search).props("data-mark=look-up")
    body = ui.column().classes("w-full")
    if not wanted:
        with body:
            ui.label(visit.t("event_hint")).classes("opacity-70")
        return
    with body:
        ui.spinner()
    background_tasks.create(_load(visit, wanted, body))


async def _load(visit: Visit, event_id: str, body: ui.column) -> None:
    try:
        answers = heard(await visit.console.workers.ask_all(f"/trace/{path_part(event_id)}"))
        steps = ordered(body for _, body in answers.bodies)
        async with History(visit.console.settings) as history:
            found: list[Looked] = [
                (step, await history.read(step), await history.written(step, event_id)) for step in steps
            ]
            raw = await _raw(visit, history, found)
    except FAILURES as error:
        if not body.is_deleted:
            body.clear()
            with body:
                ui.label(visit.t("failed", why=why(error))).classes("text-negative").props("data-mark=failed")
        return
    if body.is_deleted:
        return
    body.clear()
    with body:
        missing(visit, [str(each) for each in answers.silent], [])
        if not found and answers.silent:
            return  # whether it is known isn't known
        if not found:
            _unknown(visit, event_id)
            return
        _outcome(visit, [written["value"] for _, _, written in found if written])
        first_ms = int(found[0][0]["at_ms"])
        with ui.timeline(side="right").props("data-mark=steps"):
            if raw is not None:
                _received(visit, raw)
            for step, record, written in found:
                _step(visit, step, None if _same(record, raw) else record, written, first_ms)


async def _raw(visit: Visit, history: History, found: list[Looked]) -> ConsumerRecord[bytes, bytes] | None:
    """The record as its source had it: named by the result, or what ingest read."""
    settings = visit.console.settings
    events = {settings.topic("window-events"), *map(settings.source_topic, settings.sources)}
    for _, _, written in found:
        source = written["value"]["source"] if written else {}
        if source.get("topic") in events:  # whatever a record says, nothing else is shown
            return await history.at(source["topic"], source["partition"], source["offset"])
    return next((record for step, record, _ in found if record is not None and step["map"] == "seen"), None)


def _same(record: Any, raw: Any) -> bool:
    if record is None or raw is None:
        return False
    return (record.topic, record.partition, record.offset) == (raw.topic, raw.partition, raw.offset)


def _unknown(visit: Visit, event_id: str) -> None:
    ui.label(visit.t("event_unknown")).props("data-mark=unknown")
    ui.link(visit.t("search_letters"), "/dead-letters?" + urlencode({"text": event_id[:200]}))


def _outcome(visit: Visit, values: list[dict[str, Any]]) -> None:
    """The latest result, or that there is none."""
    result = next((value for value in reversed(values) if value.get("category")), None)
    with ui.card().classes("w-full").props("data-mark=outcome"):
        if result is None:
            ui.label(visit.t("no_result_yet")).classes("text-subtitle1")
            return
        ui.label(f"{result['category']} · {result['tier']}").classes("text-h6")
        facts(_result_facts(visit, result))


def _result_facts(visit: Visit, result: dict[str, Any]) -> list[tuple[str, Any]]:
    t = visit.t
    tokens = result.get("tokens") or {}
    used = f"{tokens.get('prompt', 0):,} + {tokens.get('completion', 0):,}" if any(tokens.values()) else ""
    return [
        (t("why"), result.get("why")), (t("confidence"), result.get("confidence")), (t("task"), result.get("task")),
        (t("fields"), result.get("fields")), (t("reviewer"), result.get("reviewer")), (t("note"), result.get("note")),
        (t("provider"), result.get("provider")), (t("model"), result.get("model")),
        (t("model_version"), result.get("model_version")), (t("prompt_version"), result.get("prompt_version")),
        (t("tokens"), used), (t("event_cost"), f"{result['cost_usd']:.8f} $" if result.get("cost_usd") else ""),
        (t("latency"), f"{result.get('latency_ms', 0):,} ms"), (t("entity"), result.get("entity")),
        (t("trace_id"), result.get("trace_id")),
        (t("prompt"), t("prompt_not_kept") if result.get("prompt_version") else ""),
    ]  # fmt: skip


def _received(visit: Visit, raw: ConsumerRecord[bytes, bytes]) -> None:
    with ui.timeline_entry(title=visit.t("received"), subtitle=visit.time(raw.timestamp), icon="call_received"):
        _record(visit, raw)


def _step(
    visit: Visit, step: dict[str, Any], record: ConsumerRecord[bytes, bytes] | None, written: dict[str, Any] | None,
    first_ms: int,
) -> None:  # fmt: skip
    at_ms = int(step["at_ms"])
    when = f"{visit.time(at_ms)}.{at_ms % 1000:03} · +{at_ms - first_ms:,} ms"
    icon = ICONS.get(step["map"], "circle")
    with ui.timeline_entry(title=f"{step['stage']}: {told(visit, step)}", subtitle=when, icon=icon):
        if "offset" in step:
            ui.label(f"{visit.t('read_from')} {step['topic']}/{step['partition']}/{step['offset']}").classes("mono")
        if record is not None:
            _record(visit, record)
        if written is not None:
            place = f"{written['topic']}/{written['partition']}/{written['offset']}"
            ui.label(f"{visit.t('written')} {place} · {visit.time(written['timestamp_ms'])}").classes("mono")
            value = written["value"]
            facts(_result_facts(visit, value) if "tier" in value else _review_facts(visit, value))


def _review_facts(visit: Visit, review: dict[str, Any]) -> list[tuple[str, Any]]:
    t = visit.t
    light = review.get("light_category")
    return [
        (t("cause"), review.get("cause")), (t("task"), review.get("task")),
        (t("light_said"), f"{light} · {review.get('light_confidence')}" if light else ""),
        (t("attempts"), review.get("attempts")), (t("rounds"), review.get("rounds")),
        (t("tried"), "; ".join(review.get("tried") or [])),
    ]  # fmt: skip


def _record(visit: Visit, record: ConsumerRecord[bytes, bytes]) -> None:
    """A record as it stands in its topic, folded."""
    place = f"{record.topic}/{record.partition}/{record.offset}"
    with ui.expansion(visit.t("record", place=place)).classes("w-full").props("dense data-mark=record"):
        facts([(visit.t("key"), printable(record.key)), (visit.t("time"), visit.time(record.timestamp))])
        if record.headers:
            facts([(name, printable(value)) for name, value in record.headers])
        whole_value(visit, record.value)


def told(visit: Visit, step: dict[str, Any]) -> str:
    """What a step did, in words."""
    t = visit.t
    if step["map"] == "open":
        return t("step_open", task=step["task"])
    if step["map"] == "waiting":
        return t("step_waits" if step["open"] else "step_waited", task=step["task"], cause=step["cause"])
    if step["map"] == "decided":
        return t("step_decided", who=step["reviewer"], category=step["category"])
    if step["map"] == "answered":
        return f"{step['tier']}: {step['category'] or t('no_category')} ({step['why']})"
    known = ("rule", "asked", "noise", "filtered", "untasked", "accepted")
    said = t(f"step_{step['outcome']}") if step["outcome"] in known else str(step["outcome"])
    return f"{said} {step['detail']}".strip()
