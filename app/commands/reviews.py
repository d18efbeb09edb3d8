"""`headrace reviews`: what people decided, as labelled texts."""

import json
from typing import IO, Any

import click
from faust.cli.base import cli

from agents.review import STAGE
from app import topics
from app.commands.fleet import answers, run
from app.core import settings
from app.errors import HeadraceError
from app.web import tables
from tables.reviews import REVIEWS

__all__ = ["reviews"]


@cli.group("reviews", short_help="What people decided: export it as labelled texts.")
def reviews() -> None:
    """Decisions of reviews, from the State of all workers.

    \b
    Examples:
      headrace reviews export labelled.jsonl
      headrace eval labelled.jsonl --tier both
    """  # noqa: D301 - the mark that keeps click from wrapping the examples


@reviews.command("export")
@click.argument("file", type=click.File("w", encoding="utf-8", atomic=True))
@click.option("--task", default="", help="Only of this task.")
def export(file: IO[str], task: str) -> None:
    """Write every decided review to FILE (- is the output) as a JSON line of text, category and who decided."""
    count = run(lambda: _export(file, task))
    click.echo(f"{count} decided reviews", err=True)


async def _export(file: IO[str], task: str) -> int:
    count, start = 0, ""
    await _all_there(await tables.states(answers))
    while True:
        page = await tables.page(answers, STAGE, REVIEWS.name, start, tables.MAX_PAGE)
        if page.silent:
            raise HeadraceError(f"no answer from worker {page.silent[0]}; run it again")
        for row in page.rows:
            line = _line(row["value"])
            if line is not None and task in ("", line["task"]):
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
                count += 1
        if page.next is None:
            return count
        start = page.next


async def _all_there(found: tables.States) -> None:
    """Checks that no part of the reviews is missing.

    Raises:
        HeadraceError: says which.
    """
    partitions: dict[str, Any] = next((state["partitions"] for state in found.tables if state["state"] == STAGE), {})
    owned = {int(number) for number, how in partitions.items() if how["state"] == "owned"}
    topic = settings.topic("review-decisions")
    missing = set(range((await topics.counts(settings, [topic])).get(topic, 1))) - owned
    if found.silent:
        raise HeadraceError(f"no answer from worker {found.silent[0]}; run it again")
    if missing:
        raise HeadraceError(
            f"partitions {', '.join(map(str, sorted(missing)))} of the reviews aren't served now (a restore, a rebalance, or "
            "no worker with the stage `review`); try again"
        )


def _line(row: dict[str, Any]) -> dict[str, Any] | None:
    """A labelled text; None where nothing is decided."""
    review, decision = row["review"], row["decision"]
    if decision is None:
        return None
    fields = {} if decision["fields"] is None else {"fields": decision["fields"]}
    return {
        "text": review["text"], "category": decision["category"], **fields, "task": review["task"],
        "event_id": review["event_id"], "reviewer": decision["reviewer"], "note": decision["note"],
        "decided_ms": decision["decided_ms"],
    }  # fmt: skip
