"""`headrace web`: gateway and console."""

import asyncio
import logging.config
from typing import TYPE_CHECKING

import click
from faust.cli.base import cli

from app.core import logging_config, settings
from app.errors import HeadraceError

if TYPE_CHECKING:
    from app.web.server import Part

__all__ = ["web"]


@cli.command("web", short_help="Serve gateway and console: events in, results out, and pages for people.")
@click.option("--port", type=click.IntRange(0, 65535), help="Instead of gateway.port. 0: any free one.")
@click.option("--only", type=click.Choice(["gateway", "console"]), help="One part of it, for a process of its own.")
def web(port: int | None, only: "Part | None") -> None:
    """Serve until Ctrl-C or SIGTERM: the gateway under /v1, the console at /.

    Any number with `--only gateway` may run behind a balancer. The console is one process: it keeps the state of its pages.

    \b
    Examples:
      headrace web
      headrace web --port 9000 --only gateway
    """  # noqa: D301 - the mark that keeps click from wrapping the examples
    from app.web.server import serve  # loads uvicorn, which no other command needs

    logging.config.dictConfig(logging_config(settings))
    try:
        asyncio.run(serve(settings, port, only, lambda line: click.echo(f"headrace: {line}")))
    except HeadraceError as error:
        click.echo(f"headrace: {error}", err=True)
        raise SystemExit(2) from None
