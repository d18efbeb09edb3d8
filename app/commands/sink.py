"""`headrace sink`: copies results to databases until it is stopped."""

import asyncio
import logging
import logging.config
import signal
from collections.abc import Sequence

import click
from faust.cli.base import cli
from prometheus_client import start_http_server

from app.core import logging_config, settings
from app.errors import HeadraceError, SinkError
from app.settings_sinks import SinkSettings
from app.sinks.database import Database
from app.sinks.sink import Sink
from app.sinks.tables import TABLES

__all__ = ["sink"]

log = logging.getLogger("headrace.sinks")

DEFAULT = SinkSettings(name="local")
"""Where no sink is declared: a DuckDB file in data_dir."""


@cli.command("sink", short_help="Copy results to PostgreSQL or DuckDB, one row an event.")
@click.argument("names", nargs=-1)
@click.option("--metrics-port", type=click.IntRange(1, 65535), help="Serve Prometheus metrics there, on loopback.")
def sink(names: Sequence[str], metrics_port: int | None) -> None:
    """Copy results into the databases of [[sinks]] until Ctrl-C or SIGTERM: all of them, or those that are named.

    Without any [[sinks]], ai-results go to the DuckDB file local.duckdb in data_dir. Exit status 1: a sink couldn't go on.

    \b
    Examples:
      headrace sink
      headrace sink warehouse --metrics-port 9108
    """  # noqa: D301 - the mark that keeps click from wrapping the examples
    logging.config.dictConfig(logging_config(settings))
    try:
        chosen = [(own, database_of(own)) for own in _chosen(names)]
        if metrics_port is not None:
            _serve_metrics(metrics_port)
    except HeadraceError as error:
        click.echo(f"headrace: {error}", err=True)
        raise SystemExit(1) from None
    if asyncio.run(run_all(chosen)):
        raise SystemExit(1)


def _serve_metrics(port: int) -> None:
    try:
        start_http_server(port, addr="127.0.0.1")
    except OSError as error:
        raise SinkError(f"metrics can't be served on 127.0.0.1:{port} ({error.strerror}); give another port") from error


def _chosen(names: Sequence[str]) -> list[SinkSettings]:
    declared = settings.sinks or [DEFAULT]
    known = [own.name for own in declared]
    if unknown := sorted(set(names) - set(known)):
        raise SinkError(f"there is no sink {', '.join(unknown)}; there are {', '.join(known)}")
    return [own for own in declared if not names or own.name in names]


def database_of(own: SinkSettings) -> Database:
    """The database of a sink; its client is loaded now.

    Raises:
        SinkError: the client isn't installed, or it isn't said where the database is.
    """
    tables = [TABLES[topic] for topic in own.topics]
    if own.kind == "postgres":
        from app.sinks.postgres import Postgres

        return Postgres(own, tables)
    from app.sinks.duck import Duck

    return Duck(own.name, tables, own.file(settings.data_dir))


async def run_all(chosen: list[tuple[SinkSettings, Database]]) -> int:
    """Runs sinks side by side until all are stopped; one that can't go on doesn't hold up the others.

    Returns:
        How many couldn't go on.
    """
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)

    async def one(own: SinkSettings, database: Database) -> bool:
        try:
            await Sink(settings, own, database, stop).run()
        except HeadraceError as error:
            log.error("%s; this sink stops", error)  # noqa: TRY400 - it says what to do, no traceback
            return False
        except Exception:  # an error of ours in one must not end the others
            log.exception("sink %s: an error that isn't foreseen; this sink stops", own.name)
            return False
        return True

    outcomes = await asyncio.gather(*(one(*each) for each in chosen))
    return outcomes.count(False)
