"""`headrace run`: everything on one machine, with a demo stream, the console and a live summary. `make run` starts it."""

import asyncio
import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import aiokafka
import click
import httpx
from aiokafka.structs import TopicPartition
from faust.cli.base import cli

from app.broker.kafka import EmbeddedKafka, die_with_parent, free_port, port_is_free
from app.core import settings
from app.errors import BrokerError, HeadraceError
from app.kafka import client_kwargs
from app.settings_web import LOOPBACK
from app.waiting import poll
from app.web import roster
from app.web.announce import http_url
from app.web.numbers import Numbers, parse
from app.web.users import UserBook

__all__ = ["run"]

SUMMARY_EVERY_S = 5.0
FIRST_RESULTS = 12
"""Results shown one by one before only the summary goes on."""
STOP_TIMEOUT_S = 15.0
START_TIMEOUT_S = 120.0


@cli.command("run", short_help="Start broker, model server, worker, console and a demo stream on this machine.")
@click.option(
    "--rate", type=click.FloatRange(0, min_open=True), default=8.0, show_default=True, help="Demo events a second."
)
@click.option("--no-demo", is_flag=True, help="Send nothing: your own producers do.")
def run(rate: float, no_demo: bool) -> None:
    """Start broker, model server, worker, gateway with console, and a demo stream; show a summary until Ctrl-C, then stop all.

    The link that it shows lets one browser into the console as admin, as long as there are no users.

    A Kafka that already answers at kafka.bootstrap_servers is used, and so is a model server at llm.base_url.

    \b
    Examples:
      headrace run
      headrace run --rate 20
      HEADRACE_LLM__BASE_URL=http://127.0.0.1:11434/v1 HEADRACE_LLM__MODEL=qwen3:4b headrace run
    """  # noqa: D301 - the mark that keeps click from wrapping the examples
    signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    machine = Machine(rate, demo=not no_demo)
    status = 0
    try:
        machine.start()
        asyncio.run(machine.watch())
    except KeyboardInterrupt:
        click.echo("\nheadrace: stopping", err=True)
    except HeadraceError as error:
        click.echo(f"headrace: {error}", err=True)
        status = 1
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        machine.stop()
    raise SystemExit(status)


class Machine:
    """The processes of one machine, and what is shown of them."""

    def __init__(self, rate: float, demo: bool) -> None:
        self.rate, self.demo = rate, demo
        self.folder = settings.data_dir.absolute()
        self.kafka: EmbeddedKafka | None = None
        self.children: dict[str, subprocess.Popen[bytes]] = {}
        self.env = dict(os.environ)
        self.web_port = free_port()
        self.token = secrets.token_urlsafe(32)
        """Of the console's link: it goes by the environment, so that it stands in no log."""
        self.bootstrap = settings.kafka.bootstrap_servers
        self.llm_url = settings.llm.base_url
        self.shown = 0
        self.before: tuple[float, float] | None = None

    # -- start and stop ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts what isn't there yet, in order; returns when the worker is starting."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._start_kafka()
        self._start_llm()
        self.env["HEADRACE_WEB__PORT"] = str(self.web_port)
        self._spawn("worker", "worker")
        self._await_worker()
        console = self._start_web()
        if self.demo:
            self._spawn("demo", "produce", "--demo", "--rate", str(self.rate))
        click.echo(
            f"headrace: running. Kafka {self.bootstrap}; results in topic {settings.topic('ai-results')}; "
            f"logs in {self.folder}. Ctrl-C stops all.\nheadrace: console {console}"
        )

    def _start_kafka(self) -> None:
        host, _, port = self.bootstrap.split(",")[0].rpartition(":")
        local = host in ("127.0.0.1", "localhost")
        if not local or settings.kafka.security_protocol != "PLAINTEXT" or _answers_as_kafka(self.bootstrap):
            click.echo(f"headrace: using the Kafka at {self.bootstrap}")
            return
        wanted = int(port) if port_is_free(int(port)) else 0
        if not wanted:
            click.echo(f"headrace: port {port} is taken by something else; the broker takes another", err=True)
        self.kafka = EmbeddedKafka(self.folder / "kafka", wanted, say=lambda line: click.echo(f"headrace: {line}"))
        click.echo("headrace: starting Kafka")
        self.kafka.start()
        self.bootstrap = self.kafka.bootstrap
        self.env["HEADRACE_KAFKA__BOOTSTRAP_SERVERS"] = self.bootstrap

    def _start_llm(self) -> None:
        url = httpx.URL(self.llm_url)
        if url.host not in ("127.0.0.1", "localhost") or (url.port and not port_is_free(url.port)):
            click.echo(f"headrace: using the model server at {self.llm_url}")
            return
        port = url.port or 8090
        click.echo(f"headrace: starting the model server (port {port}; tiny: it shows the path, not good answers)")
        self._spawn("llm", "llm", "--port", str(port))
        # It answers one call at a time: more in flight would only time out in its queue.
        self.env.setdefault("HEADRACE_LLM__CONCURRENCY", "2")

    def _start_web(self) -> str:
        """Starts gateway and console; returns the console's address, with a token in it where that lets somebody in."""
        limits = settings.gateway
        port = limits.port if limits.port and port_is_free(limits.port) else free_port()
        self._spawn("web", "web", "--port", str(port), HEADRACE_CONSOLE__TOKEN=self.token)
        host = limits.host if limits.host in LOOPBACK else "127.0.0.1"
        url = http_url(host, port) + "/"

        def answers() -> bool:
            with contextlib.suppress(httpx.HTTPError):
                return httpx.get(f"{url}readyz", timeout=5, trust_env=False).is_success
            return False

        self._await("the console", "web", answers)
        without_link = limits.host not in LOOPBACK or settings.console.oidc.issuer or self._has_users()
        return url if without_link else f"{url}?token={self.token}"

    def _has_users(self) -> bool:
        kafka = settings.kafka.model_copy(update={"bootstrap_servers": self.bootstrap})
        book = UserBook()
        asyncio.run(roster.read(settings.model_copy(update={"kafka": kafka}), "console-users", book.apply))
        return bool(book.entries)

    def _spawn(self, name: str, *arguments: str, **env: str) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            self.children[name] = subprocess.Popen(  # noqa: S603  # our own program
                [sys.executable, "-m", "app", *arguments],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=self.env | env,
                start_new_session=True,  # Ctrl-C reaches only us, and we stop them in order
                preexec_fn=die_with_parent,  # no threads are running yet
            )  # fmt: skip

    def _await_worker(self) -> None:
        log = self.folder / "worker.log"
        self._await("the worker", "worker", lambda: "delivery: ready" in log.read_text("utf-8", errors="replace"))

    def _await(self, what: str, child: str, ready: Callable[[], bool]) -> None:
        """Waits until a child is ready.

        Raises:
            HeadraceError: one ended, or it takes too long.
        """

        def met() -> bool:
            self._check_children()
            return ready()

        if not poll(met, START_TIMEOUT_S):
            raise BrokerError(f"{what} isn't ready after {START_TIMEOUT_S:.0f} s; see {self.folder / child}.log")

    def _check_children(self) -> None:
        """A process that ended takes all down, with its last words.

        Raises:
            HeadraceError: one ended.
        """
        if self.kafka is not None and self.kafka.process is not None and self.kafka.process.poll() is not None:
            raise BrokerError(f"Kafka ended: {self.kafka.last_error()}")
        for name, child in self.children.items():
            status = child.poll()
            if status is not None:
                lines = (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
                last = "\n  ".join(lines[-5:])
                raise HeadraceError(
                    f"{name} ended with status {status}; the end of {self.folder / name}.log:\n  {last}"
                )

    def stop(self) -> None:
        """Stops all, last started first; leaves no process behind."""
        for name in ("demo", "web", "worker", "llm"):
            child = self.children.get(name)
            if child is None:
                continue
            if child.poll() is None:
                child.terminate()
            try:
                child.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        if self.kafka is not None:
            self.kafka.stop()

    # -- summary -----------------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Shows the first results one by one, then a line every five seconds."""
        kafka = settings.kafka.model_copy(update={"bootstrap_servers": self.bootstrap})
        consumer = aiokafka.AIOKafkaConsumer(
            group_id=None, enable_auto_commit=False, isolation_level="read_committed", auto_offset_reset="latest",
            **client_kwargs(kafka),
        )  # fmt: skip
        await consumer.start()
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
        try:
            topic = settings.topic("ai-results")
            parts = await self._partitions(consumer, topic)
            consumer.assign([TopicPartition(topic, p) for p in parts])
            following = time.monotonic() + SUMMARY_EVERY_S
            while not stop.is_set():
                await self._results(consumer)
                self._check_children()
                if time.monotonic() >= following:
                    following = time.monotonic() + SUMMARY_EVERY_S
                    await self._summary()
        finally:
            await consumer.stop()
        raise KeyboardInterrupt

    @staticmethod
    async def _partitions(consumer: aiokafka.AIOKafkaConsumer, topic: str) -> list[int]:
        consumer.subscribe([topic])
        while not (found := consumer.partitions_for_topic(topic)):  # noqa: ASYNC110  # no event tells of new metadata
            await asyncio.sleep(0.2)
        consumer.unsubscribe()
        return sorted(found)

    async def _results(self, consumer: aiokafka.AIOKafkaConsumer) -> None:
        for records in (await consumer.getmany(timeout_ms=500)).values():
            for record in records:
                self.shown += 1
                if self.shown <= FIRST_RESULTS and record.value:
                    result = json.loads(record.value)
                    click.echo(
                        f"  {result['event_id'][:24]:24} {result['event_type']:18} -> {result['category']:10} "
                        f"{result['tier']:6} {result['confidence']:.2f}  {result['why']}"
                    )

    async def _summary(self) -> None:
        with contextlib.suppress(httpx.HTTPError):
            async with httpx.AsyncClient(timeout=5, trust_env=False) as client:
                page = (await client.get(f"http://127.0.0.1:{self.web_port}/metrics", headers=_token())).text
            click.echo(self._line(page))

    def _line(self, page: str) -> str:
        numbers = Numbers(parse(page))

        def total(name: str, **labels: str) -> float:
            return numbers.total(name, **labels) or 0.0

        now, events, rate = time.monotonic(), numbers.events_in or 0.0, 0.0
        if self.before:
            rate = (events - self.before[1]) / (now - self.before[0])
        self.before = (now, events)
        outcome = numbers.by("headrace_outcomes_total", "outcome")
        tiers = {tier: outcome.get(tier, 0.0) for tier in ("rule", "light", "deep", "review")}
        results = sum(tiers.values())
        shares = ", ".join(f"{tier} {count / results:.0%}" for tier, count in tiers.items() if count) or "none"
        side = ", ".join(f"{outcome.get(name, 0.0):.0f} {name}" for name in ("duplicate", "noise", "dead"))
        return (
            f"{time.strftime('%H:%M:%S')}  {rate:.0f} events/s, {events:.0f} in; results {results:.0f} ({shares}); "
            f"open {total('headrace_open_items', stage='classify'):.0f}, lag {total('headrace_lag_records'):.0f}; {side}"
        )


def _token() -> dict[str, str]:
    token = settings.web.token.get_secret_value()
    return {"Authorization": f"Bearer {token}"} if token else {}


def _answers_as_kafka(bootstrap: str) -> bool:
    """Asks for metadata once; anything else on that port doesn't answer so."""

    async def ask() -> bool:
        kafka = settings.kafka.model_copy(update={"bootstrap_servers": bootstrap, "request_timeout_s": 20.0})
        consumer: Any = aiokafka.AIOKafkaConsumer(**{**client_kwargs(kafka), "request_timeout_ms": 3000})
        try:
            await consumer.start()
        except Exception:  # noqa: BLE001  # whatever it was: this is no Kafka that we can use
            return False
        finally:
            await consumer.stop()
        return True

    if port_is_free(int(bootstrap.split(",")[0].rpartition(":")[2])):
        return False
    return asyncio.run(ask())
