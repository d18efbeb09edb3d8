"""`headrace keys`: makes, lists and revokes API keys."""

import logging.config
import time
from collections.abc import Sequence
from datetime import UTC, datetime

import aiokafka
import click
import msgspec
from aiokafka.structs import TopicPartition
from faust.cli.base import cli

from app import topics
from app.commands.fleet import run
from app.core import logging_config, settings
from app.delivery.probe import probe, read_tail
from app.errors import HeadraceError
from app.kafka import client_kwargs
from app.settings_web import Scope
from app.web.keys import SCOPES, ApiKey, KeyRing, encode_key, new_key

__all__ = ["keys"]


@cli.group("keys", short_help="API keys of the gateway: create, list, revoke.")
def keys() -> None:
    """Make, list and revoke API keys. They are stored as SHA-256 in the topic `api-keys`.

    \b
    Examples:
      headrace keys create --scope produce --name shop
      headrace keys list
      headrace keys revoke 5f3a9c01d2e4
    """  # noqa: D301 - the mark that keeps click from wrapping the examples
    logging.config.dictConfig(logging_config(settings))  # aiokafka's retries are no news


@keys.command("create")
@click.option(
    "--scope", "scopes", type=click.Choice(SCOPES), multiple=True, required=True,
    help="produce: send events. read: results and tables. review: decide reviews. admin: all. May be given again.",
)  # fmt: skip
@click.option("--name", default="", help="Who uses it.")
def create(scopes: Sequence[Scope], name: str) -> None:
    """Make a key. The last word of the output is the key; it is shown only now."""
    token, key = new_key(dict.fromkeys(scopes), name, int(time.time() * 1000))
    run(lambda: _write(key))
    click.echo(f"key {key.id} with scope {', '.join(key.scopes)}; it isn't shown again: {token}")


@keys.command("list")
def list_() -> None:
    """List all keys, revoked ones too; never the keys themselves."""
    for key in sorted(run(_read).keys.values(), key=lambda key: key.created_ms):
        state = f"revoked {_time(key.revoked_ms)}" if key.revoked_ms else "in use"
        click.echo(f"{key.id}  {','.join(key.scopes):20}  made {_time(key.created_ms)}  {state}  {key.name}")


@keys.command("revoke")
@click.argument("key_id")
def revoke(key_id: str) -> None:
    """Revoke a key by its id, or by the key itself. Gateways refuse it as soon as they read of it."""
    wanted = key_id.removeprefix("hr_").partition("_")[0]

    async def work() -> ApiKey:
        key = (await _read()).keys.get(wanted)
        if key is None:
            raise HeadraceError(f"there is no key with id {wanted}; `headrace keys list` shows them")
        if not key.revoked_ms:
            await _write(msgspec.structs.replace(key, revoked_ms=int(time.time() * 1000)))
        return key

    click.echo(f"key {run(work).id} is revoked")


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


async def _write(key: ApiKey) -> None:
    await topics.ensure(settings)
    producer = aiokafka.AIOKafkaProducer(acks="all", **client_kwargs(settings.kafka))
    await producer.start()
    try:
        await producer.send_and_wait(settings.topic("api-keys"), encode_key(key), key.id.encode(), partition=0)
    finally:
        await producer.stop()


async def _read() -> KeyRing:
    ring, tp = KeyRing(), TopicPartition(settings.topic("api-keys"), 0)
    async with probe(settings.kafka) as consumer:
        if tp.topic in await consumer.topics():
            start, end = (await consumer.beginning_offsets([tp]))[tp], (await consumer.end_offsets([tp]))[tp]
            async for record in read_tail(consumer, tp, start, end):
                ring.apply(record)
    return ring
