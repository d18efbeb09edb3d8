"""`headrace redrive`: sends dead letters back to the stage that failed."""

import asyncio
import logging.config
from datetime import UTC, datetime, timedelta

import click
from faust.cli.base import cli
from tqdm import tqdm

from agents.redrive import MAX_ATTEMPTS, Redrive, Tally
from app.commands.fleet import INTERRUPTED, interruptible, run
from app.core import logging_config, settings
from app.logic.redrive import Selection

__all__ = ["redrive"]

UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class When(click.ParamType):
    """A time as ms since the epoch: RFC 3339, or how long ago (`90m`, `2d`)."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value)
        if text[:-1].isdigit() and text[-1:] in UNITS:
            ago = timedelta(**{UNITS[text[-1]]: int(text[:-1])})
            return int((datetime.now(UTC) - ago).timestamp() * 1000)
        try:
            at = datetime.fromisoformat(text)
        except ValueError:
            self.fail(f"{text!r} is no time; write 2026-11-30T10:00:00Z, or 90m for 90 minutes ago", param, ctx)
        return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


@cli.command("redrive", short_help="Send dead letters back to the stage that failed.")
@click.option("--reason", "reasons", multiple=True, help="Only of this reason. May be given again, as all of these.")
@click.option("--stage", "stages", multiple=True, help="Only of this stage, for example ingest-raw-events.")
@click.option("--field", "fields", multiple=True, help="Only with this field at fault, as its header names it.")
@click.option(
    "--id", "ids", multiple=True, help="Only this event id, or this place as partition/offset of dead-letter."
)
@click.option("--since", type=When(), help="Only what became a dead letter since: RFC 3339, or 90m, 2h, 1d ago.")
@click.option("--until", type=When(), help="Only what did before.")
@click.option("--max-attempts", type=click.IntRange(1, 1000), default=MAX_ATTEMPTS, show_default=True,
              help="What was sent back so often stays.")  # fmt: skip
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Records a second. Default: all at once.")
@click.option("--dry-run", is_flag=True, help="Show what would move, and stop.")
@click.option("--yes", is_flag=True, help="Don't ask.")
def redrive(
    reasons: tuple[str, ...],
    stages: tuple[str, ...],
    fields: tuple[str, ...],
    ids: tuple[str, ...],
    since: int | None,
    until: int | None,
    max_attempts: int,
    rate: float | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Send dead letters back to the topic of the stage that failed, byte for byte, after what was wrong is mended.

    Each is sent once: repeating the command moves only what it hasn't moved. One that fails again is a new dead letter.
    Ctrl-C ends it after the transaction under way.

    \b
    Examples:
      headrace redrive --dry-run
      headrace redrive --reason bad-time --since 2h
      headrace redrive --id o-1001 --yes
    """  # noqa: D301 - the mark that keeps click from wrapping the examples
    logging.config.dictConfig(logging_config(settings))
    selection = Selection(
        reasons=frozenset(reasons),
        stages=frozenset(stages),
        fields=frozenset(fields),
        ids=frozenset(ids),
        since_ms=since,
        until_ms=until,
    )
    if dry_run or not yes:
        look = Redrive(settings, selection, max_attempts=max_attempts)
        found = run(look.look)
        _show(found, "would move")
        if dry_run or not found.selected:
            return
        click.confirm(f"send {found.selected.total()} records back?", abort=True)
    with tqdm(unit=" records", desc="dead letters", disable=None, leave=False) as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        stop = asyncio.Event()
        work = Redrive(
            settings, selection, max_attempts=max_attempts, rate_per_s=rate or 0.0, progress=progress, stop=stop
        )
        cut_off = not _finished(work, stop)
    _show(work.tally, "moved")
    if cut_off or work.tally.stopped:
        click.echo("stopped before the end: run it again, and it moves only the rest")
        raise SystemExit(INTERRUPTED)


def _finished(work: Redrive, stop: asyncio.Event) -> bool:
    """Runs it to its end, or to where it was asked to stop; False: it was cut off."""

    async def moving() -> None:
        with interruptible(stop):
            await work.run()

    try:
        run(moving)
    except SystemExit as ended:
        if ended.code == INTERRUPTED:
            return False
        raise
    return True


def _show(tally: Tally, verb: str) -> None:
    groups = tally.moved if verb == "moved" else tally.selected
    for (reason, stage, topic), n in sorted(groups.items()):
        click.echo(f"{verb} {n:8}  {reason:18} of {stage} to {topic}")
    left = [
        (tally.already, "sent back or discarded before"),
        (tally.too_often, "sent back too often (--max-attempts)"),
        (tally.no_topic, "without a topic that they could go to"),
    ]
    click.echo(f"{verb} {groups.total()}" + "".join(f"; {n} {why}" for n, why in left if n))
