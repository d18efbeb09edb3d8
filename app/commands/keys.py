"""`headrace keys`: makes, lists and revokes API keys."""

import logging.config
import time
from collections.abc import Sequence

import click
import msgspec
from faust.cli.base import cli

from app.commands.fleet import run, shown_time
from app.core import logging_config, settings
from app.errors import HeadraceError
from app.settings_web import Scope
from app.web import roster
from app.web.keys import SCOPES, ApiKey, KeyRing, new_key

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
    for key in sorted(run(_read).entries.values(), key=lambda key: key.created_ms):
        state = f"revoked {shown_time(key.revoked_ms)}" if key.revoked_ms else "in use"
        click.echo(f"{key.id}  {','.join(key.scopes):20}  made {shown_time(key.created_ms)}  {state}  {key.name}")


@keys.command("revoke")
@click.argument("key_id")
def revoke(key_id: str) -> None:
    """Revoke a key by its id, or by the key itself. Gateways refuse it as soon as they read of it."""
    wanted = key_id.removeprefix("hr_").partition("_")[0]

    async def work() -> ApiKey:
        key = (await _read()).entries.get(wanted)
        if key is None:
            raise HeadraceError(f"there is no key with id {wanted}; `headrace keys list` shows them")
        if not key.revoked_ms:
            await _write(msgspec.structs.replace(key, revoked_ms=int(time.time() * 1000)))
        return key

    click.echo(f"key {run(work).id} is revoked")


async def _write(key: ApiKey) -> None:
    await roster.write(settings, "api-keys", key.id, key)


async def _read() -> KeyRing:
    ring = KeyRing()
    await roster.read(settings, "api-keys", ring.apply)
    return ring
