"""The part of `headrace check` on topics: whether they are there, and in the shape that a worker needs."""

import contextlib

import click
from aiokafka.errors import KafkaError

from app import rights, topics
from app.commands.findings import Findings
from app.core import app, settings
from app.delivery.probe import configs_of
from app.kafka import explained, is_refusal

__all__ = ["check_topics"]


async def check_topics(found: Findings) -> dict[str, int]:
    """Compares inputs, outputs and changelogs with what a worker needs; the partitions of those that are there, by name."""
    click.echo("topics")
    wanted = {t.name: t for t in topics.topics(settings)}
    names = [*wanted, *[settings.source_topic(s) for s in settings.sources]]
    counts = await topics.counts(settings, names)
    configs = await _configs([name for name in names if name in counts], found)
    for name in names:
        if name not in counts:
            _missing(name, wanted.get(name), any(ours in counts for ours in wanted), found)
        elif name in configs:
            _topic(name, counts[name], wanted.get(name), configs[name], found)
    await _changelogs(counts, found)
    return counts


def _missing(name: str, topic: topics.Topic | None, others: bool, found: Findings) -> None:
    """A topic that isn't there; where others are, it may have been deleted."""
    who = "a source" if topic is None else f"written by {topic.written_by}"
    config = "".join(f", {key}={value}" for key, value in (topic.config if topic else {}).items())
    how = f"{(topic and topic.partitions) or settings.kafka.partitions} partitions{config}"
    if settings.kafka.manage_topics == "check":
        found.fail(f"{name}: missing, and kafka.manage_topics is `check`: make it with {how} ({who})")
    elif others:
        found.warn(
            f"{name}: isn't there ({who}), and other topics are. Was it deleted? A worker that starts makes it, with {how}; "
            "until then what needs it waits"
        )
    else:
        found.ok(f"{name}: not there yet; a worker makes it")


async def _changelogs(counts: dict[str, int], found: Findings) -> None:
    """State's own topics. One that isn't compacted loses rows that are still needed."""
    stages = [stage for stage in app.delivery.stages.values() if stage.topic in counts]
    there = await topics.counts(settings, [stage.changelog for stage in stages])
    configs = await _configs(list(there), found)
    for stage in stages:
        name, need = stage.changelog, counts[stage.topic]
        if name not in there:
            if there:
                found.warn(
                    f"{name} (State of {stage.name}): isn't there, and others are. Was it deleted? Made again, empty, with "
                    f"{need} partitions and cleanup.policy=compact, workers write it anew from their local copies; a worker that "
                    "starts makes it unless kafka.manage_topics is `check`"
                )
        elif there[name] != need:
            found.fail(
                f"{name}: has {there[name]} partitions, and {stage.topic} {need}: see `headrace tables repartition`"
            )
        elif name not in configs:
            continue
        elif "compact" not in configs[name].get("cleanup.policy", "compact").split(","):
            found.fail(f"{name}: its cleanup.policy isn't compact: State that is still needed would be removed. Set it")
        else:
            found.ok(f"{name}: {need} partitions")


def _topic(name: str, partitions: int, topic: topics.Topic | None, config: dict[str, str], found: Findings) -> None:
    for key, value in (topic.config if topic else {}).items():
        given = config.get(key)
        if given is None:
            continue
        if key.endswith("bytes") and int(given) < int(value):
            found.warn(f"{name}: {key} is {given}; {value} lets records of full size pass with our headers")
        elif key == "cleanup.policy" and set(given.split(",")) != set(value.split(",")):
            found.warn(f"{name}: {key} is {given}; {value} is meant")
    largest = int(config.get("max.message.bytes", 0))
    if topic is None and largest > settings.kafka.max_message_bytes:
        found.warn(
            f"{name}: records may have {largest} bytes, and kafka.max_message_bytes is {settings.kafka.max_message_bytes}: "
            "raise it (and the brokers' message.max.bytes), or larger ones stop their partition"
        )
    found.ok(f"{name}: {partitions} partitions")


async def _configs(names: list[str], found: Findings) -> dict[str, dict[str, str]]:
    """Without the topics that can't be looked at, which are told."""
    with contextlib.suppress(KafkaError):
        return await configs_of(settings.kafka, names)
    spared = {right.name for right in rights.acls(settings, "worker") if "DescribeConfigs" not in right.operations}
    configs: dict[str, dict[str, str]] = {}
    for name in names:  # one by one, as an error tells of one only
        try:
            configs |= await configs_of(settings.kafka, [name])
        except KafkaError as error:
            if is_refusal(error) and name in spared:
                found.warn(
                    f"{name}: its configuration may not be read, so it isn't compared; a worker needs no right to it"
                )
            else:
                found.fail(f"{name}: its configuration can't be read: {explained(settings.kafka, error)}")
    return configs
