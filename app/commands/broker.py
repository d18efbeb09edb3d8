"""`headrace broker`: a real Apache Kafka on this machine."""

import shlex
import signal
import sys
from pathlib import Path
from types import FrameType

import click
from faust.cli.base import cli

from app.broker.kafka import EmbeddedKafka
from app.broker.secure import ADMIN, Secured
from app.core import settings
from app.errors import BrokerError
from app.rights import KINDS, acls

__all__ = ["broker"]


def default_port() -> int:
    """The port that workers will look at."""
    port = settings.kafka.bootstrap_servers.split(",")[0].rpartition(":")[2]
    return int(port) if port.isdigit() else 9092


def told(secured: Secured) -> str:
    """How to connect; passwords stay in their files."""
    return (
        f"headrace: users {', '.join((ADMIN, *secured.rights))}: each one's settings and password are in "
        f"{secured.folder}/USER.env. For a worker:\n"
        f"  set -a; . {shlex.quote(str(secured.env_file('worker')))}; set +a; headrace worker"
    )


@cli.command("broker", short_help="Start a real Apache Kafka on this machine.")
@click.option("--port", type=click.IntRange(0, 65535), help="0 is any free one. Default: kafka.bootstrap_servers'.")
@click.option("--data-dir", type=click.Path(path_type=Path), help="Its folder. Default: kafka in the data folder.")
@click.option(
    "--advertised-host",
    default="127.0.0.1",
    show_default=True,
    help="What clients are told to connect to. With a name that other machines know, the broker listens on all interfaces.",
)
@click.option(
    "--secure", is_flag=True, help="TLS, users with passwords, and ACLs: see the folder `secure` of its data."
)
def broker(port: int | None, data_dir: Path | None, advertised_host: str, secure: bool) -> None:
    """Start a real Apache Kafka (one node, KRaft) and stay in the foreground.

    Prints one line, `ready HOST:PORT`, when clients may connect. Stops in order on Ctrl-C or SIGTERM.

    \b
    Examples:
      headrace broker
      headrace broker --port 19092 --data-dir /tmp/kafka
      headrace broker --secure
      headrace broker --secure --advertised-host 192.168.1.20
    """  # noqa: D301 - the mark that keeps click from wrapping the examples
    folder = (data_dir or settings.data_dir / "kafka").absolute()
    secured = Secured(folder, advertised_host, {kind: acls(settings, kind) for kind in KINDS}) if secure else None
    kafka = EmbeddedKafka(
        folder,
        default_port() if port is None else port,
        advertised_host=advertised_host,
        secured=secured,
        say=lambda line: click.echo(f"headrace: {line}", err=True),
    )

    if kafka.bind_host != "127.0.0.1" and not secure:
        click.echo(
            "headrace: whoever reaches this machine can read and write this Kafka: it has no password; --secure gives it "
            "TLS, users and ACLs", err=True,
        )  # fmt: skip

    asked: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    try:
        kafka.start()
        if asked:  # the interrupt fell into a place that swallows exceptions (a finalizer, a C callback)
            raise KeyboardInterrupt  # noqa: TRY301  # the same end as the interrupt itself
        if secured is not None:
            click.echo(told(secured), err=True)
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
