"""`headrace users`: who may use the console, and as what."""

import logging.config
import sys
import time

import click
from faust.cli.base import cli

from app.commands.fleet import run, shown_time
from app.core import logging_config, settings
from app.errors import HeadraceError
from app.web import roster
from app.web.users import ROLES, Role, User, UserBook, bad_name, bad_password, hash_password

__all__ = ["users"]

TOPIC = "console-users"

given_role = click.option(
    "--role", type=click.Choice(ROLES), default="viewer", show_default=True,
    help="viewer: see all. operator: also redrive and discard. reviewer: also decide reviews. admin: all.",
)  # fmt: skip
from_stdin = click.option("--password-stdin", is_flag=True, help="Read the password from standard input, one line.")


@cli.group("users", short_help="Users of the console: add, list, set-role, passwd, remove.")
def users() -> None:
    """Make, list, change and remove users of the console. Passwords are stored as argon2 hashes in `console-users`.

    A change of role or password, and a removal, end the user's sessions at once.

    \b
    Examples:
      headrace users add ada --role admin
      pwgen 20 1 | headrace users add ci --password-stdin
      headrace users list
    """  # noqa: D301 - the mark that keeps click from wrapping the examples
    logging.config.dictConfig(logging_config(settings))


@users.command("add")
@click.argument("name")
@given_role
@from_stdin
def add(name: str, role: Role, password_stdin: bool) -> None:
    """Make a user; the password is asked for."""
    if why := bad_name(name):
        raise click.BadParameter(why, param_hint="NAME")
    password = _password(password_stdin)

    async def work() -> None:
        if name in (await _read()).entries:
            raise HeadraceError(f"there is a user {name} already; `headrace users passwd` and `set-role` change it")
        now = int(time.time() * 1000)
        hashed = await hash_password(password)
        await roster.write(
            settings, TOPIC, name, User(name=name, role=role, password=hashed, created_ms=now, changed_ms=now)
        )

    run(work)
    click.echo(f"user {name} with role {role}")


@users.command("list")
def list_() -> None:
    """List all users."""
    for user in sorted(run(_read).entries.values(), key=lambda user: user.name):
        click.echo(
            f"{user.name:24}  {user.role:8}  made {shown_time(user.created_ms)}  changed {shown_time(user.changed_ms)}"
        )


@users.command("set-role")
@click.argument("name")
@click.argument("role", type=click.Choice(ROLES))
def set_role(name: str, role: Role) -> None:
    """Give a user another role."""

    async def work() -> None:
        await roster.write(settings, TOPIC, name, (await _known(name)).changed(role=role))

    run(work)
    click.echo(f"user {name} with role {role}")


@users.command("passwd")
@click.argument("name")
@from_stdin
def passwd(name: str, password_stdin: bool) -> None:
    """Give a user another password."""
    password = _password(password_stdin)

    async def work() -> None:
        user = await _known(name)
        await roster.write(settings, TOPIC, name, user.changed(password=await hash_password(password)))

    run(work)
    click.echo(f"user {name} has a new password")


@users.command("remove")
@click.argument("name")
def remove(name: str) -> None:
    """Remove a user."""

    async def work() -> None:
        await _known(name)
        await roster.write(settings, TOPIC, name, None)

    run(work)
    click.echo(f"user {name} is removed")


def _password(from_stdin: bool) -> str:
    password: str = (
        sys.stdin.readline().rstrip("\r\n")
        if from_stdin
        else click.prompt("Password", hide_input=True, confirmation_prompt=True)
    )
    if why := bad_password(password):
        raise click.UsageError(why)
    return password


async def _known(name: str) -> User:
    user = (await _read()).entries.get(name)
    if user is None:
        raise HeadraceError(f"there is no user {name}; `headrace users list` shows them")
    return user


async def _read() -> UserBook:
    book = UserBook()
    await roster.read(settings, TOPIC, book.apply)
    return book
