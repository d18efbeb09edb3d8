"""`headrace trace EVENT_ID`: an event through every stage. Found through State; topics are read at one place only."""

import json
from datetime import UTC, datetime
from typing import Any

import click
from faust.cli.base import cli

from app.commands.fleet import ask_all, run
from app.core import settings
from app.web.announce import path_part
from app.web.history import History, ordered

__all__ = ["trace"]


@cli.command("trace", short_help="Show what happened to one event, stage by stage.")
@click.argument("event_id")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def trace(event_id: str, as_json: bool) -> None:
    """Show EVENT_ID through every stage: topic, partition, offset, times, tier, and why.

    \b
    Examples:
      headrace trace 7d1f3a
      headrace trace order-1001 --json
    """  # noqa: D301 - the mark that keeps click from wrapping the examples
    if not run(lambda: _trace(event_id, as_json)):
        raise SystemExit(1)


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


async def _trace(event_id: str, as_json: bool) -> bool:
    steps = ordered(answer for _, answer in await ask_all(f"/trace/{path_part(event_id)}"))
    if not steps:
        click.echo(
            f"headrace: {event_id} isn't known: it was never taken, is older than ingest.dedup_horizon_s, or went to the "
            f"dead letter topic ({settings.topic('dead-letter')}), which keeps no ids",
            err=True,
        )
        return False
    async with History(settings) as history:
        for step in steps:
            _show_step(step, await history.written(step, event_id), as_json)
    return True


def _show_step(step: dict[str, Any], written: dict[str, Any] | None, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({**step, "written": written}, ensure_ascii=False))
        return
    click.echo(f"{_time(int(step['at_ms']))}  {step['stage']}: {_told(step)}")
    if "offset" in step:
        click.echo(f"    read     {step['topic']} partition {step['partition']} offset {step['offset']}")
    if "prompt" in step:
        _show_prompt(step["prompt"])
    if written:
        click.echo(
            f"    written  {written['topic']} partition {written['partition']} offset {written['offset']} "
            f"at {_time(written['timestamp_ms'])}"
        )
        result = written["value"]
        if "category" in result:
            model = f", model {result['model']}" if result.get("model") else ""
            click.echo(
                f"    result   {result['category']} by {result['tier']} at {result['confidence']}{model}: {result['why']}; "
                f"{result['latency_ms']} ms after its append"
            )


def _show_prompt(prompt: dict[str, Any]) -> None:
    """What a deep model was asked and what it said."""
    exchange, call_of = prompt["exchange"], prompt["call_of"]
    if call_of:
        click.echo(f"    prompt   that of event {call_of}, whose text is the same")
    elif exchange is None:
        click.echo("    prompt   from the cache; which call it came from isn't known")
    if exchange is None:
        return
    company = (
        f"number {exchange['number']} of {exchange['items']} events" if exchange["items"] > 1 else "this event alone"
    )
    cut = "; not all of it is kept (classify.keep_prompts_bytes)" if exchange["cut"] else ""
    click.echo(
        f"    call     to {exchange['provider']}, model {exchange['model']}: {company}, attempt {exchange['attempt']}, "
        f"finish reason {exchange['finish_reason'] or '-'}{cut}"
    )
    for name in ("system", "message", "answer"):
        for number, line in enumerate(exchange[name].split("\n")):
            click.echo(f"    {'' if number else name:8} | {_plain(line)}")


def _plain(text: str) -> str:
    """Without what steers a terminal: a model may say anything."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _told(step: dict[str, Any]) -> str:
    if step["map"] == "open":
        light = step["light_category"]
        said = f"; light said {light} at {step['light_confidence']:.2f}" if light else ""
        return f"waits for a model (task {step['task']}{said})"
    if step["map"] == "waiting":
        return f"{'waits' if step['open'] else 'waited'} for a person (task {step['task']}: {step['cause']})"
    if step["map"] == "decided":
        return f"{step['reviewer']} decided {step['category']}"
    if step["map"] == "answered":
        return f"{step['tier']}: {step['category'] or 'no category'} ({step['why']})"
    words = {"rule": "decided by rule", "asked": "asked a model for task", "noise": "dropped as noise by rule",
             "filtered": "not let through", "untasked": "no task takes it", "accepted": "accepted"}  # fmt: skip
    return f"{words.get(step['outcome'], step['outcome'])} {step['detail']}".strip()
