"""`headrace tables`: State of all workers. What changes State is in `tables_state` and `tables_repartition`."""

import json
from typing import Any

import click
from faust.cli.base import cli

from app.commands.fleet import ask_all, run
from app.web.announce import path_part

__all__ = ["Tables", "tables"]


class Tables(click.Group):
    """A group whose usual command needs no name: TABLE has a slash in it, so it is never taken for one."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] != "--help"):
            args = ["show", *args]
        return super().parse_args(ctx, args)


@cli.group("tables", cls=Tables, short_help="Show State across workers; export, import, reset and divide it.")
def tables() -> None:
    """State of all workers: list the tables, page through one, look up a key.

    \b
    Examples:
      headrace tables
      headrace tables ingest-raw-events/seen --limit 20
      headrace tables ingest-raw-events/seen 7d1f3a
      headrace tables classify/open --json
      headrace tables export ingest-raw-events seen.jsonl --map seen
      headrace tables repartition 24
    """  # noqa: D301 - the mark that keeps click from wrapping the examples


@tables.command("show", short_help="List tables, page through one, or look up a key (the default).")
@click.argument("table", required=False)
@click.argument("key", required=False)
@click.option("--limit", type=click.IntRange(1, 100_000), default=50, show_default=True, help="Rows to show.")
@click.option("--partition", type=click.IntRange(0), help="Only this one.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def show(table: str | None, key: str | None, limit: int, partition: int | None, as_json: bool) -> None:
    """List the tables of all workers; with TABLE (as state/map) its rows; with KEY one key."""
    if table is None:
        run(lambda: _list(as_json))
    elif "/" not in table:
        raise click.UsageError("TABLE is state/map, as `headrace tables` lists them")
    elif key is None:
        run(lambda: _rows(table, limit, partition, as_json))
    else:
        run(lambda: _row(table, key, as_json))


def _show(row: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(row, ensure_ascii=False))
    else:
        click.echo(f"{row['partition']:>4}  {row['key']}  {json.dumps(row['value'], ensure_ascii=False)}")


async def _list(as_json: bool) -> None:
    for worker, states in await ask_all("/tables"):
        if not as_json:
            click.echo(f"worker {worker.pid} on {worker.host}, {worker.url}")
        for state in states:
            if as_json:
                click.echo(json.dumps({"worker": worker.url, **state}, ensure_ascii=False))
                continue
            where = f"partitions {', '.join(map(str, state['partitions'])) or 'none'}"
            if state["restoring"]:
                where += f"; restoring {', '.join(map(str, state['restoring']))}"
            for number, why in state["stopped"].items():
                where += f"; STOPPED {number}: {why}"
            click.echo(f"  {state['state']}: {where}; {state['bytes'] / 1e6:.1f} MB")
            for each in state["maps"]:
                count = f", about {each['keys_estimate']} keys" if each["keys_estimate"] >= 0 else ""
                click.echo(f"    {state['state']}/{each['name']}{count}: {each['help']}")


async def _rows(table: str, limit: int, partition: int | None, as_json: bool) -> None:
    left = limit
    start: dict[str, str] = {} if partition is None else {"partition": str(partition), "only": "1"}
    for worker, first in await ask_all(f"/tables/{table}", {"limit": str(min(left, 1000)), **start}):
        answer = first
        while True:
            if "error" in answer:
                raise click.ClickException(answer["error"])
            for row in answer["rows"][:left]:
                _show(row, as_json)
            left -= len(answer["rows"])
            following = answer["next"]
            if left <= 0 or not following:
                break
            params = {"limit": str(min(left, 1000)), **start, **{k: str(v) for k, v in following.items()}}
            pages = await ask_all(f"/tables/{table}", params)
            answer = next((page for other, page in pages if other.id == worker.id), {"rows": [], "next": None})
        if left <= 0:
            click.echo(f"(first {limit} rows; --limit for more)", err=True)
            return


async def _row(table: str, key: str, as_json: bool) -> None:
    found = [row for _, answer in await ask_all(f"/tables/{table}/{path_part(key)}") for row in answer.get("rows", [])]
    for row in found:
        _show(row, as_json)
    if not found:
        raise click.ClickException(f"{table} has no key {key!r} in any partition that a worker owns now")
