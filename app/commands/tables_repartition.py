"""`headrace tables repartition N`: more partitions, with the State of all stages divided among them."""

import asyncio
from typing import Any, get_args

import click
from aiokafka.admin import NewPartitions
from aiokafka.errors import KafkaError

from app import topics
from app.commands.fleet import run
from app.commands.tables import tables
from app.core import app
from app.delivery.offline import keep_out
from app.delivery.repartition import Partitioner, Plan, divide, finish, unfinished
from app.delivery.stage import Stage
from app.errors import BrokerError, StateError
from app.kafka import admin

__all__ = ["plan_for"]

KEYED_BY_ENTITY = "entity"


@tables.command("repartition", short_help="Give the inputs more partitions and divide State; workers must be stopped.")
@click.argument("count", type=click.IntRange(2, 1000))
@click.option(
    "--partitioner",
    type=click.Choice(get_args(Partitioner)),
    default="murmur2",
    show_default=True,
    help="How the producers of your inputs choose a partition: murmur2 is Java's and aiokafka's default, crc32 that of "
    "librdkafka (`consistent`).",
)
@click.option("--yes", is_flag=True, help="Don't ask.")
def repartition(count: int, partitioner: Partitioner, yes: bool) -> None:
    """Give every input COUNT partitions, a multiple of what they have, and divide the State of all stages among them.

    \b
    1. Stop the producers of your inputs.
    2. Let the workers take what is there, then stop all of them.
    3. Run this. When it is cut off, run it again.
    4. Set kafka.partitions to COUNT, start the workers, then the producers.

    Nothing else may write to the inputs meanwhile. Partitions can't be lowered again.
    """  # noqa: D301 - the mark that keeps click from wrapping the steps
    run(lambda: _repartition(count, partitioner, yes))


def plan_for(stage: Stage, have: int, begun: int | None, count: int, partitioner: Partitioner) -> Plan | None:
    """From which count to which; None when this State has it already.

    Raises:
        StateError: it can't be divided that way.
    """
    old = have if begun is None else begun
    if old == count:
        return None
    if old > count or count % old:
        raise StateError(
            f"{stage.state.name} has {old} partitions: {count} isn't a multiple of it, so keys of several partitions would meet "
            "in one, and their windows and ids don't"
        )
    return Plan(old=old, new=count, partitioner=partitioner)


async def _repartition(count: int, partitioner: Partitioner, yes: bool) -> None:
    settings, stages = app.settings, list(app.delivery.stages.values())
    await keep_out(settings)
    named = [stage.changelog for stage in stages]
    there = await topics.counts(settings, [*named, *(stage.topic for stage in stages)])
    sources = {settings.source_topic(source) for source in settings.sources}
    plans: list[tuple[Stage, Plan]] = []
    for stage in stages:
        have = there.get(stage.changelog)
        if have is None:
            raise StateError(f"{stage.changelog} isn't there: no worker of these settings has run yet")
        chosen: Partitioner = partitioner if stage.topic in sources else "murmur2"  # our own producers use that
        plan = plan_for(stage, have, await unfinished(settings, stage), count, chosen)
        if plan is not None:
            plans.append((stage, plan))
    inputs = [stage.topic for stage in stages]
    outputs = [t.name for t in topics.topics(settings) if t.key == KEYED_BY_ENTITY and t.partitions != 1]
    for stage, plan in plans:
        click.echo(f"{stage.state.name}: State goes from {plan.old} to {plan.new} partitions", err=True)
    click.echo(f"topics that get {count} partitions: {', '.join(dict.fromkeys([*inputs, *outputs]))}", err=True)
    if not yes:
        click.confirm("Producers are stopped, workers too, and nothing is left to read. Go on?", abort=True, err=True)

    async def grow(topic: str) -> None:
        await _grow([topic], count)

    for stage, plan in plans:
        await divide(settings, stage, plan, grow, click.echo)
    await _grow([*inputs, *outputs], count)
    for stage, plan in plans:
        await finish(settings, stage, plan)
    click.echo(f"done; set kafka.partitions = {count}, then start the workers")


async def _grow(names: list[str], count: int) -> None:
    """Raises the partition counts of those that have fewer.

    Raises:
        BrokerError: the broker refuses.
    """
    have = await topics.counts(app.settings, names)
    wanted: dict[str, Any] = {name: NewPartitions(total_count=count) for name, n in have.items() if n < count}
    if not wanted:
        return
    try:
        async with admin(app.settings.kafka) as client:
            await client.create_partitions(wanted)
    except KafkaError as error:
        raise BrokerError(
            f"{', '.join(wanted)} can't get {count} partitions: {error}; nothing is lost, try again"
        ) from error
    for _ in range(topics.TRIES):
        now = await topics.counts(app.settings, list(wanted))
        if all(n >= count for n in now.values()):
            return
        await asyncio.sleep(0.25)
    raise BrokerError(f"partitions were added but can't be seen yet: {', '.join(wanted)}")
