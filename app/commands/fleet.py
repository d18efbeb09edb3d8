"""What commands share: how they end, how they show a time, and asking all workers that are alive."""

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, TypeVar

import click
import msgspec
from aiokafka.errors import KafkaError

from app.core import settings
from app.errors import HeadraceError
from app.kafka import unreachable
from app.web import roster
from app.web.announce import Worker
from app.web.workers import ABSENT, Answer, Workers, heard

__all__ = ["INTERRUPTED", "answers", "ask_all", "interruptible", "run", "shown_time"]

T = TypeVar("T")

INTERRUPTED = 130
"""Exit status of a command that Ctrl-C ended, as shells have it."""


def run(work: Callable[[], Awaitable[T]]) -> T:
    """Runs a command's coroutine; errors of ours become one line and exit status 1."""

    async def main() -> T:
        try:
            return await work()
        except (KafkaError, OSError, TimeoutError) as error:
            raise await unreachable(settings.kafka, error) from error

    try:
        return asyncio.run(main())
    except HeadraceError as error:
        click.echo(f"headrace: {error}", err=True)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None


@contextlib.contextmanager
def interruptible(stop: asyncio.Event) -> Iterator[None]:
    """The first Ctrl-C, or SIGTERM, asks what runs to end where it may; the next one cuts it off.

    Args:
        stop: is set by the first.
    """
    loop = asyncio.get_running_loop()

    def ask(number: int) -> None:
        loop.remove_signal_handler(number)
        stop.set()
        click.echo("headrace: stopping after the transaction under way; once more cuts it off", err=True)

    with contextlib.ExitStack() as handlers:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, ask, number)
            handlers.callback(loop.remove_signal_handler, number)
        yield


def shown_time(at_ms: int) -> str:
    """A time of an entry: to the second, UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


async def answers(path: str, params: dict[str, str] | None = None) -> list[Answer]:
    """GETs a path of every worker that is alive now.

    Raises:
        HeadraceError: no worker is alive.
    """
    async with contextlib.aclosing(Workers(settings)) as workers:
        await roster.read(settings, "workers", workers.apply)
        if not workers.alive:
            raise HeadraceError(
                "no worker is alive (none announced itself in the last 20 s); start one with `headrace worker`"
            )
        return await workers.ask_all(path, params)


async def ask_all(path: str, params: dict[str, str] | None = None) -> list[tuple[Worker, Any]]:
    """What all workers say at a path, from JSON; those that don't answer are said on stderr and left out.

    Of workers that have none of what was asked for (404), what they say counts only if no other has it.

    Raises:
        HeadraceError: no worker is alive.
    """
    given = await answers(path, params)
    found = heard(each for each in given if each.status != ABSENT)
    absent = heard(msgspec.structs.replace(each, status=HTTPStatus.OK) for each in given if each.status == ABSENT)
    for silent in found.silent + absent.silent:
        click.echo(f"headrace: no answer from worker {silent}", err=True)
    return found.bodies or absent.bodies
