"""How the page Event draws a step of an event: what it did, what it read and what it wrote."""

from typing import Any
from urllib.parse import urlencode

from aiokafka.structs import ConsumerRecord
from nicegui import ui

from app.web.console.context import Visit
from app.web.console.parts import facts, printable, whole_text, whole_value
from app.web.users import Role

__all__ = ["ICONS", "headline", "outcome", "prompt", "read_from", "record", "told", "when", "written_to"]

SEES_PAYLOADS: Role = "viewer"
"""Sees what is in events (docs/console.md), and so what was made of it for a model. Asked at the moment that it is drawn."""

ICONS = {
    "seen": "input",
    "open": "hourglass_empty",
    "answered": "psychology",
    "waiting": "person_search",
    "decided": "how_to_reg",
}
KNOWN_OUTCOMES = ("rule", "asked", "noise", "filtered", "untasked", "accepted")


def headline(visit: Visit, step: dict[str, Any]) -> str:
    """Which stage, and what it did."""
    return f"{step['stage']}: {told(visit, step)}"


def when(visit: Visit, step: dict[str, Any], first_ms: int) -> str:
    """When it did, and how long after the first step."""
    at_ms = int(step["at_ms"])
    return f"{visit.time(at_ms)}.{at_ms % 1000:03} · +{at_ms - first_ms:,} ms"


def told(visit: Visit, step: dict[str, Any]) -> str:
    """What a step did, in words."""
    t = visit.t
    if step["map"] == "open":
        return t("step_was_open" if step.get("over") else "step_open", task=step["task"])
    if step["map"] == "waiting":
        return t("step_waits" if step["open"] else "step_waited", task=step["task"], cause=step["cause"])
    if step["map"] == "decided":
        return t("step_decided", who=step["reviewer"], category=step["category"])
    if step["map"] == "answered":
        return f"{step['tier']}: {step['category'] or t('no_category')} ({step['why']})"
    said = t(f"step_{step['outcome']}") if step["outcome"] in KNOWN_OUTCOMES else str(step["outcome"])
    return f"{said} {step['detail']}".strip()


def read_from(visit: Visit, step: dict[str, Any], its: ConsumerRecord[bytes, bytes] | None) -> None:
    """Where a step read the event, and the record; None: it isn't there any more, or is shown above."""
    if "offset" in step:
        ui.label(f"{visit.t('read_from')} {step['topic']}/{step['partition']}/{step['offset']}").classes("mono")
    if its is not None:
        record(visit, its)


def record(visit: Visit, its: ConsumerRecord[bytes, bytes]) -> None:
    """A record as it stands in its topic, folded."""
    place = f"{its.topic}/{its.partition}/{its.offset}"
    with ui.expansion(visit.t("record", place=place)).classes("w-full").props("dense data-mark=record"):
        facts([(visit.t("key"), printable(its.key)), (visit.t("time"), visit.time(its.timestamp))])
        if its.headers:
            facts([(name, printable(value)) for name, value in its.headers])
        whole_value(visit, its.value)


def written_to(visit: Visit, written: dict[str, Any], *, prompt_kept: bool) -> None:
    """The result or review that a step wrote (see `History.written`)."""
    place = f"{written['topic']}/{written['partition']}/{written['offset']}"
    ui.label(f"{visit.t('written')} {place} · {visit.time(written['timestamp_ms'])}").classes("mono")
    value = written["value"]
    facts(_result_facts(visit, value, prompt_kept=prompt_kept) if "tier" in value else _review_facts(visit, value))


def prompt(visit: Visit, step: dict[str, Any]) -> None:
    """What a deep model was asked and what it said, folded; nothing where that isn't kept."""
    kept, t = step.get("prompt"), visit.t
    if kept is None or not visit.may(SEES_PAYLOADS):
        return
    exchange, call_of = kept["exchange"], kept["call_of"]
    if call_of:
        ui.link(t("prompt_of", id=call_of), "/event?" + urlencode({"id": call_of})).props("data-mark=prompt-of")
    elif exchange is None:
        ui.label(t("prompt_cached")).classes("opacity-70").props("data-mark=prompt-of")
    if exchange is None:
        return
    with ui.expansion(t("prompt_and_answer")).classes("w-full").props("dense data-mark=prompt"):
        company = (
            t("prompt_alone")
            if exchange["items"] == 1
            else t("prompt_one_of", number=exchange["number"], items=exchange["items"])
        )
        facts(
            [
                (t("provider"), exchange["provider"]), (t("model"), exchange["model"]), (t("prompt_call"), company),
                (t("attempt"), exchange["attempt"]), (t("finish_reason"), exchange["finish_reason"]),
                (t("note"), t("prompt_cut") if exchange["cut"] else ""),
            ]
        )  # fmt: skip
        for key in ("prompt_system", "prompt_message", "prompt_answer"):
            ui.label(t(key)).classes("text-caption opacity-70")
            with ui.element("div").classes("w-full").props(f"data-mark={key.replace('_', '-')}"):
                whole_text(exchange[key.removeprefix("prompt_")] or t("prompt_nothing"), "40vh")


def outcome(visit: Visit, result: dict[str, Any] | None, *, prompt_kept: bool) -> None:
    """The latest result, or that there is none."""
    if result is None:
        ui.label(visit.t("no_result_yet")).classes("text-subtitle1")
        return
    ui.label(f"{result['category']} · {result['tier']}").classes("text-h6")
    facts(_result_facts(visit, result, prompt_kept=prompt_kept))


def _result_facts(visit: Visit, result: dict[str, Any], *, prompt_kept: bool) -> list[tuple[str, Any]]:
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
        (t("prompt"), t("prompt_not_kept") if result.get("prompt_version") and not prompt_kept else ""),
    ]  # fmt: skip


def _review_facts(visit: Visit, review: dict[str, Any]) -> list[tuple[str, Any]]:
    t = visit.t
    light = review.get("light_category")
    return [
        (t("cause"), review.get("cause")), (t("task"), review.get("task")),
        (t("light_said"), f"{light} · {review.get('light_confidence')}" if light else ""),
        (t("attempts"), review.get("attempts")), (t("rounds"), review.get("rounds")),
        (t("tried"), "; ".join(review.get("tried") or [])),
    ]  # fmt: skip
