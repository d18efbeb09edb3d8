"""`headrace broker`: a real Apache Kafka on this machine."""

import signal
import sys
from pathlib import Path
from types import FrameType

import click
from faust.cli.base import cli

from app.broker.kafka import EmbeddedKafka
from app.core import settings
from app.errors import BrokerError

__all__ = ["broker"]


def default_port() -> int:
    """The port that workers will look at."""
    port = settings.kafka.bootstrap_servers.split(",")[0].rpartition(":")[2]
    return int(port) if port.isdigit() else 9092


@cli.command("broker", short_help="Start a real Apache Kafka on this machine.")
@click.option("--port", type=click.IntRange(0, 65535), help="0 is any free one. Default: kafka.bootstrap_servers'.")
@click.option("--data-dir", type=click.Path(path_type=Path), help="Its folder. Default: kafka in the data folder.")
@click.option(
    "--advertised-host",
    default="127.0.0.1",
    show_default=True,
    help="What clients are told to connect to. With a name that other machines know, the broker listens on all interfaces, "
    "without a password.",
)
def broker(port: int | None, data_dir: Path | None, advertised_host: str) -> None:
    """Start a real Apache Kafka (one node, KRaft) and stay in the foreground.

    Prints one line, `ready HOST:PORT`, when clients may connect. Stops in order on Ctrl-C or SIGTERM.

    \b
    Examples:
      headrace broker
      headrace broker --port 19092 --data-dir /tmp/kafka
      headrace broker --advertised-host 192.168.1.20
    """  # noqa: D301 - the mark that keeps click from wrapping the examples
    kafka = EmbeddedKafka(
        data_dir or settings.data_dir / "kafka",
        default_port() if port is None else port,
        advertised_host=advertised_host,
        say=lambda line: click.echo(f"headrace: {line}", err=True),
    )

    if kafka.bind_host != "127.0.0.1":
        click.echo("headrace: whoever reaches this machine can read and write this Kafka: it has no password", err=True)

    asked: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    try:
        kafka.start()
        if asked:  # the interrupt fell into a place that swallows exceptions (a finalizer, a C callback)
            raise KeyboardInterrupt  # noqa: TRY301  # the same end as the interrupt itself
        click.echo(f"ready {kafka.bootstrap}")
        sys.stdout.flush()
        status = kafka.wait()
    except KeyboardInterrupt:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        kafka.stop()
        return
    except BrokerError as error:
        click.echo(f"headrace: {error}", err=True)
        raise SystemExit(1) from None
    click.echo(f"headrace: Kafka ended with status {status}: {kafka.last_error()}", err=True)
    raise SystemExit(1)
