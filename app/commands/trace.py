"""`headrace trace EVENT_ID`: an event through every stage. Found through State; topics are read at one place only."""

import json
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import aiokafka
import click
from aiokafka.structs import ConsumerRecord, TopicPartition
from faust.cli.base import cli

from app.commands.fleet import ask_all, run
from app.core import settings
from app.delivery.partitions import partition_for
from app.delivery.probe import probe, read_tail

__all__ = ["trace"]

NEAR_MS = 120_000
"""An outcome is written within this time of what State notes, or its transaction was aborted."""
READ_AT_MOST = 20_000
"""Records looked at behind that time before giving up."""


@cli.command("trace", short_help="Show what happened to one event, stage by stage.")
@click.argument("event_id")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def trace(event_id: str, as_json: bool) -> None:
    """Show EVENT_ID through every stage: topic, partition, offset, times, tier, and why.

    \b
    Examples:
      headrace trace 7d1f3a
      headrace trace order-1001 --json
    """  # noqa: D301 - the mark that keeps click from wrapping the examples
    if not run(lambda: _trace(event_id, as_json)):
        raise SystemExit(1)


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


async def _trace(event_id: str, as_json: bool) -> bool:
    answers = await ask_all(f"/trace/{quote(event_id, safe='')}")
    steps = sorted((step for _, answer in answers for step in answer.get("steps", [])), key=lambda s: int(s["at_ms"]))
    if not steps:
        click.echo(
            f"headrace: {event_id} isn't known: it was never taken, is older than ingest.dedup_horizon_s, or went to the "
            f"dead letter topic ({settings.topic('dead-letter')}), which keeps no ids",
            err=True,
        )
        return False
    for step in steps:
        await _show_step(step, event_id, as_json)
    return True


async def _show_step(step: dict[str, Any], event_id: str, as_json: bool) -> None:
    written = await _written(step, event_id)
    if as_json:
        click.echo(json.dumps({**step, "written": written}, ensure_ascii=False))
        return
    click.echo(f"{_time(int(step['at_ms']))}  {step['stage']}: {_told(step)}")
    if "offset" in step:
        click.echo(f"    read     {step['topic']} partition {step['partition']} offset {step['offset']}")
    if written:
        click.echo(
            f"    written  {written['topic']} partition {written['partition']} offset {written['offset']} "
            f"at {_time(written['timestamp_ms'])}"
        )
        result = written.get("value") or {}
        if "category" in result:
            model = f", model {result['model']}" if result.get("model") else ""
            click.echo(
                f"    result   {result['category']} by {result['tier']} at {result['confidence']}{model}: {result['why']}; "
                f"{result['latency_ms']} ms after its append"
            )


def _told(step: dict[str, Any]) -> str:
    if step["map"] == "open":
        light = step["light_category"]
        said = f"; light said {light} at {step['light_confidence']:.2f}" if light else ""
        return f"waits for a model (task {step['task']}{said})"
    if step["map"] == "answered":
        return f"{step['tier']}: {step['category'] or 'no category'} ({step['why']})"
    words = {"rule": "decided by rule", "asked": "asked a model for task", "noise": "dropped as noise by rule",
             "filtered": "not let through", "untasked": "no task takes it", "accepted": "accepted"}  # fmt: skip
    return f"{words.get(step['outcome'], step['outcome'])} {step['detail']}".strip()


async def _written(step: dict[str, Any], event_id: str) -> dict[str, Any] | None:
    """The result, review or request record of a step: its partition by key, its place by time."""
    outcome = step.get("outcome") or step.get("tier")
    name = {"rule": "ai-results", "light": "ai-results", "deep": "ai-results", "review": "manual-review"}.get(
        outcome or ""
    )
    if name is None:
        return None
    topic, key = settings.topic(name), event_id.encode()
    async with probe(settings.kafka) as consumer:
        partitions = consumer.partitions_for_topic(topic) or await _partitions(consumer, topic)
        if not partitions:
            return None
        tp = TopicPartition(topic, partition_for(key, len(partitions)))
        record = await _find(consumer, tp, key, int(step["at_ms"]))
    if record is None:
        return None
    return {
        "topic": topic, "partition": record.partition, "offset": record.offset, "timestamp_ms": record.timestamp,
        "value": json.loads(record.value or b"null"),
    }  # fmt: skip


async def _partitions(consumer: aiokafka.AIOKafkaConsumer, topic: str) -> set[int]:
    consumer.subscribe([topic])
    await consumer._client.force_metadata_update()
    consumer.unsubscribe()
    return set(consumer.partitions_for_topic(topic) or ())


async def _find(
    consumer: aiokafka.AIOKafkaConsumer, tp: TopicPartition, key: bytes, at_ms: int
) -> ConsumerRecord[bytes, bytes] | None:
    place = (await consumer.offsets_for_times({tp: at_ms - 1000})).get(tp)
    if place is None:
        return None
    end = (await consumer.end_offsets([tp]))[tp]
    seen = 0
    async for record in read_tail(consumer, tp, place.offset, end):
        if record.key == key:
            return record
        seen += 1
        if seen >= READ_AT_MOST or record.timestamp > at_ms + NEAR_MS:
            return None
    return None
