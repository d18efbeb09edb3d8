"""`headrace web`: the gateway."""

import asyncio
import logging.config
from typing import Literal

import click
from faust.cli.base import cli

from app.core import logging_config, settings

__all__ = ["web"]


@cli.command("web", short_help="Serve the gateway: events in, results out, over HTTP.")
@click.option("--port", type=click.IntRange(0, 65535), help="Instead of gateway.port. 0: any free one.")
@click.option("--only", type=click.Choice(["gateway"]), help="For deployments that name the part; it is the only one.")
def web(port: int | None, only: Literal["gateway"] | None) -> None:
    """Serve the gateway until Ctrl-C or SIGTERM. Any number may run behind a balancer.

    \b
    Examples:
      headrace web
      headrace web --port 9000 --only gateway
    """  # noqa: D301 - the mark that keeps click from wrapping the examples
    from app.web.gateway.server import serve  # loads FastAPI, which no other command needs

    logging.config.dictConfig(logging_config(settings))
    asyncio.run(serve(settings, port))
