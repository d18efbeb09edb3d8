"""`headrace check`: is all there that a worker needs? Each line says ok, warn or FAIL, and what to do."""

import asyncio
import contextlib
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import click
import msgspec
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import (
    GroupCoordinatorNotAvailableError,
    GroupLoadInProgressError,
    KafkaError,
    NotCoordinatorForGroupError,
)
from aiokafka.structs import ConsumerRecord, TopicPartition
from faust.cli.base import cli

from app import rights
from app.broker.acls import line
from app.commands.check_topics import check_topics
from app.commands.findings import Findings
from app.commands.fleet import run
from app.core import app, settings
from app.delivery.probe import initial_offset, probe, read_tail
from app.delivery.transaction import new_producer
from app.errors import BrokerError, SettingsError
from app.kafka import admin, client_kwargs, is_refusal, unreachable
from app.llm.trial import try_provider
from app.logic.rules import NoiseRules, TaskRouter, condition_fields
from app.rights import Kind
from app.settings import SourceSettings
from app.sources.source import compile_source
from app.web.console.oidc import IdentityProvider, OidcError
from models.events import Bad, Event

__all__ = ["check"]

CONNECT_TIMEOUT_S = 3.0
COORDINATOR_TIMEOUT_S = 30.0
RETRY_S = 0.2


@cli.command("check", short_help="Check settings, Kafka, topics and rights; show what a sample record becomes.")
@click.option("--acls", is_flag=True, help="Print the ACLs that are needed, as kafka-acls.sh lines, and stop.")
@click.option("--for", "kind", type=click.Choice(rights.KINDS), default="worker", show_default=True, help="Whose ACLs.")
@click.option("--providers", is_flag=True, help="Send one real completion to each model provider, and stop.")
@click.option(
    "--sample", type=click.Path(exists=True, allow_dash=True, path_type=Path), help="Show what its first line becomes."
)
@click.option("--source", "source_name", help="The source that reads the sample. Default: the first.")
def check(acls: bool, kind: Kind, providers: bool, sample: Path | None, source_name: str | None) -> None:
    """Check the settings, the brokers, their listeners, topics, rights, each source's backlog, and who is asked for logins.

    The newest record of each source is shown as the event that it becomes; with --sample, a line of yours is, and Kafka
    isn't asked. Exit status 1: something is wrong.

    \b
    Examples:
      headrace check
      headrace check --acls
      headrace check --acls --for gateway
      headrace check --providers
      headrace check --sample events.jsonl --source orders
    """  # noqa: D301 - the mark that keeps click from wrapping the examples
    found = Findings()
    if acls:
        click.echo("\n".join(acl_lines(kind)))
        return
    if providers:
        run(lambda: _providers(found))
    elif sample is not None:
        _sample(sample, source_name, found)
    else:
        run(lambda: _check(found))
        if settings.console.oidc.issuer:
            run(lambda: _identity(found))
    if found.wrong:
        click.echo(f"{found.wrong} things are wrong")
        raise SystemExit(1)


# -- samples -----------------------------------------------------------------------------------------------------------


def _source(name: str | None) -> SourceSettings:
    for source in settings.sources:
        if name is None or source.name == name:
            return source
    known = ", ".join(s.name for s in settings.sources)
    raise click.UsageError(f"there is no source {name!r}; declared are {known}")


def _sample(path: Path, name: str | None, found: Findings) -> None:
    raw = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    value = raw if path.suffix == ".json" else next((line for line in raw.splitlines() if line.strip()), b"")
    record = ConsumerRecord(
        topic=settings.source_topic(_source(name)), partition=0, offset=0, timestamp=_now_ms(), timestamp_type=0, key=None,
        value=value, checksum=None, serialized_key_size=0, serialized_value_size=len(value), headers=(),
    )  # fmt: skip
    _show(record, _source(name), found)


def _now_ms() -> int:
    return int(time.time() * 1000)


def _show(record: Any, source: SourceSettings, found: Findings) -> None:
    """One record as the event, dead letter, noise or route that it becomes."""
    read = compile_source(source, settings, condition_fields(settings), with_text=bool(settings.tasks)).read(record)
    where = f"source {source.name}, {record.topic} partition {record.partition} offset {record.offset}"
    if isinstance(read, Bad):
        field = f" field {read.field}:" if read.field else ""
        found.fail(f"{where}: a dead letter, {read.reason}:{field} {read.message}")
        return
    rule = NoiseRules(settings).match(read, source.name)
    if source.types and read.event_type not in source.types:
        becomes = "not let through (types)"
    elif rule is not None:
        becomes = f"noise by rule {rule}"
    else:
        route = TaskRouter(settings).route(read, source.name)
        details = {k: getattr(route, k) for k in ("task", "category", "rule", "skip_light") if hasattr(route, k)}
        becomes = f"{type(route).__name__} {details}"
    found.ok(f"{where}: {becomes}")
    for name, value in _fields(read):
        click.echo(f"          {name} = {str(value)[:200]}")


def _fields(event: Event) -> Iterable[tuple[str, Any]]:
    return [(k, v) for k, v in msgspec.structs.asdict(event).items() if v not in ("", {}, None)]


# -- Kafka -------------------------------------------------------------------------------------------------------------


async def _check(found: Findings) -> None:
    click.echo(
        f"settings: {len(settings.sources)} sources, {len(settings.noise)} noise rules, {len(settings.tasks)} tasks"
    )
    for source in settings.sources:
        compile_source(source, settings, condition_fields(settings))
    NoiseRules(settings), TaskRouter(settings)
    found.ok("settings are valid")
    click.echo(f"Kafka at {settings.kafka.bootstrap_servers} ({settings.kafka.security_protocol})")
    try:
        await _brokers(found)
    except BrokerError as error:
        found.fail(str(error))
    if found.wrong:
        return
    counts = await check_topics(found)
    await _rights(found)
    click.echo("sources")
    for source in settings.sources:
        await _backlog(source, counts, found)


async def _brokers(found: Findings) -> None:
    """Each broker must be reachable under the name that it tells clients (its advertised listener)."""
    client = AIOKafkaClient(**client_kwargs(settings.kafka))
    try:
        await client.bootstrap()  # an admin client goes on to the advertised name, and tells only that it failed
        brokers = sorted(client.cluster.brokers())
    except (KafkaError, OSError) as error:
        raise await unreachable(settings.kafka, error) from error
    finally:
        await client.close()
    found.ok(f"reachable; {len(brokers)} broker{'s' if len(brokers) != 1 else ''}")
    for broker in brokers:
        host, port = broker.host, broker.port
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, writer = await asyncio.open_connection(host, port)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        except (OSError, TimeoutError) as error:
            why = "its name can't be resolved" if isinstance(error, socket.gaierror) else "it doesn't answer there"
            found.fail(
                f"broker {broker.nodeId} says it is at {host}:{port}, and {why} from here. The first address worked, but "
                "clients go on to this one: set the broker's advertised.listeners to a name that this machine can reach"
            )
            continue
        found.ok(f"broker {broker.nodeId} at {host}:{port}")


async def _rights(found: Findings) -> None:
    """Does what a worker does, with names of its kind, and says what is refused."""
    click.echo("rights")
    group = app.conf.id

    async def transact() -> None:
        producer = await new_producer(settings, settings.topic("headrace-check"))
        await producer.stop()

    async def join() -> None:
        await _stood(group)

    steps: list[tuple[str, Callable[[], Awaitable[None]]]] = [
        (f"transactions with ids {settings.topic('headrace')}-*", transact),
        (f"consumer group {group}", join),
    ]
    for what, step in steps:
        try:
            await step()
        except KafkaError as error:
            if not is_refusal(error):
                raise BrokerError(f"{what}: {type(error).__name__}: {error}") from error
            found.fail(f"{what}: refused ({type(error).__name__}); `headrace check --acls` prints what is needed")
        else:
            found.ok(what)


async def _stood(group: str) -> dict[TopicPartition, Any]:
    """Where the group stands. The first question to a new cluster makes it create its offsets topic, which takes a while."""
    async with admin(settings.kafka) as client, asyncio.timeout(COORDINATOR_TIMEOUT_S):
        while True:
            try:
                offsets: dict[TopicPartition, Any] = await client.list_consumer_group_offsets(group)
            except (GroupCoordinatorNotAvailableError, NotCoordinatorForGroupError, GroupLoadInProgressError):
                await asyncio.sleep(RETRY_S)
            else:
                return offsets


async def _backlog(source: SourceSettings, counts: dict[str, int], found: Findings) -> None:
    topic = settings.source_topic(source)
    if topic not in counts:
        return
    tps = [TopicPartition(topic, p) for p in range(counts[topic])]
    stood = await _stood(app.conf.id)
    async with probe(settings.kafka) as consumer:
        starts, ends = await consumer.beginning_offsets(tps), await consumer.end_offsets(tps)
        backlog = 0
        newest: ConsumerRecord[bytes, bytes] | None = None
        for tp in tps:
            at = stood[tp].offset if tp in stood and stood[tp].offset >= 0 else None
            if at is None:
                at = await initial_offset(consumer, tp, source.start, starts[tp], ends[tp])
            backlog += max(0, ends[tp] - max(at, starts[tp]))
            if ends[tp] > starts[tp]:
                async for record in read_tail(consumer, tp, max(starts[tp], ends[tp] - 2), ends[tp]):
                    newest = record if newest is None or record.timestamp >= newest.timestamp else newest
    found.ok(f"{source.name}: topic {topic}, start {source.start}, backlog {backlog} records")
    if newest is not None:
        _show(newest, source, found)


# -- providers ---------------------------------------------------------------------------------------------------------


async def _providers(found: Findings) -> None:
    """One completion each, all at once. It may cost a little."""
    chain = settings.llm.chain()
    click.echo("providers, in the order in which they are asked")
    for provider, trial in zip(chain, await asyncio.gather(*(try_provider(settings, p) for p in chain)), strict=True):
        say = found.ok if trial.works else found.fail
        say(f"{trial.name} at {provider.base_url}: {trial.says}")


# -- identity provider -------------------------------------------------------------------------------------------------


async def _identity(found: Findings) -> None:
    """Asks for what the console would ask for at the first login by it."""
    oidc = settings.console.oidc
    click.echo(f"identity provider {oidc.issuer}")
    try:
        said = await IdentityProvider(oidc).metadata()
    except SettingsError as error:  # the console may well be another machine's
        found.warn(str(error))
        return
    except OidcError as error:
        found.fail(f"{error}; nobody can log in to the console by it (console.oidc)")
        return
    keys = len(said["jwks"]["keys"])
    (found.ok if keys else found.fail)(f"discovery; {keys} keys")
    if "S256" not in said.get("code_challenge_methods_supported", ["S256"]):
        found.warn("it doesn't say that it knows PKCE (S256), which the console uses")
    if unknown := set(oidc.scopes) - set(said.get("scopes_supported", oidc.scopes)):
        found.warn(f"it doesn't say that it knows the scopes {', '.join(sorted(unknown))} (console.oidc.scopes)")
    if not oidc.client_secret.get_secret_value():
        found.warn("HEADRACE_CONSOLE__OIDC__CLIENT_SECRET isn't set here; where the console runs it must be")
    found.ok(f"the redirect URI that it must know: {oidc.callback}")


# -- ACLs --------------------------------------------------------------------------------------------------------------


def acl_lines(kind: Kind) -> list[str]:
    """The rights of a worker, a gateway or a reader, as kafka-acls.sh lines."""
    kafka = settings.kafka
    return [line(acl, kafka.bootstrap_servers, kafka.username or "YOUR-USER") for acl in rights.acls(settings, kind)]
