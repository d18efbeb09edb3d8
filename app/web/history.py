"""One event through every stage: what State says of it, and the records it was read from and written to.

State of the workers is asked; topics are read at single places only.
"""

from collections.abc import Iterable
from typing import Any

import aiokafka
import msgspec
from aiokafka.structs import ConsumerRecord, TopicPartition

from app import topics
from app.delivery.partitions import partition_for
from app.delivery.probe import bounds, probe, read_tail, record_at
from app.settings import Settings
from models.results import Result, Review

__all__ = ["History", "ended", "merged", "ordered", "place_of", "writes"]

NEAR_MS = 120_000
"""An outcome is written within this time of what State notes, or its transaction was aborted."""
READ_AT_MOST = 20_000
"""Records looked at behind that time before giving up."""
WRITTEN_TO = {
    "rule": "ai-results", "light": "ai-results", "deep": "ai-results", "decided": "ai-results", "review": "manual-review",
}  # fmt: skip
"""The topic of a step's outcome, by what became of the event; `decided` is a person's decision."""
STEPS = {name: place for place, name in enumerate(("seen", "open", "answered", "waiting", "decided"))}
"""Maps of the steps in the order of an event's path: one transaction closes it and hands it to review at one time."""
KINDS: dict[str, type[Result | Review]] = {"ai-results": Result, "manual-review": Review}
"""What the records of these topics are."""


def ordered(answers: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The steps that workers told of an event (`GET /trace/EVENT_ID`), in order of time, then of its path."""
    return _in_order(step for answer in answers for step in answer.get("steps", []))


def _in_order(steps: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(steps, key=lambda step: (int(step["at_ms"]), STEPS.get(step["map"], len(STEPS))))


def place_of(step: dict[str, Any]) -> tuple[Any, ...]:
    """Names a step of an event, however far it has come."""
    return step["stage"], step["map"], step.get("topic"), step.get("partition")


def merged(known: Iterable[dict[str, Any]], told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What is known of an event after another look, in order.

    What was told before stays: a worker may be silent now, a partition between two owners, and State forgets that an event
    waited for a model as soon as it is answered, which `over` says then. A decision that was taken back goes.
    """
    steps = {place_of(step): step for step in (*known, *told)}
    undone = any(step["map"] == "waiting" and step["open"] for step in told)
    over = any(step["map"] == "answered" for step in steps.values())
    return _in_order(
        {**step, "over": over} if step["map"] == "open" else step
        for step in steps.values()
        if not (undone and step["map"] == "decided")
    )


def ended(steps: Iterable[dict[str, Any]], *, reviewed: bool) -> bool:
    """Whether an event has its end, as far as its steps say; not while it waits for a model or a person, or isn't known.

    Args:
        steps: of `merged`.
        reviewed: whether State knows of reviews; else nobody tells when one is decided.
    """
    by_map = {step["map"]: step for step in steps}
    if "waiting" in by_map or "decided" in by_map:
        return "decided" in by_map
    if "answered" in by_map:
        return by_map["answered"]["tier"] != "review" or not reviewed
    return "seen" in by_map and by_map["seen"]["outcome"] != "asked" and "open" not in by_map


def writes(step: dict[str, Any]) -> str | None:
    """The topic of a step's outcome, as it is called without the prefix; None: it has none."""
    outcome = "decided" if step["map"] == "decided" else step.get("outcome") or step.get("tier") or ""
    return WRITTEN_TO.get(outcome)


class History:
    """Looks up the records of an event's steps, over one consumer.

    async with History(settings) as history:
        written = await history.written(step, event_id)
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._probe = probe(settings.kafka)
        self._counts: dict[str, int] = {}

    async def __aenter__(self) -> "History":
        self._consumer: aiokafka.AIOKafkaConsumer = await self._probe.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._probe.__aexit__(*error)

    async def read(self, step: dict[str, Any]) -> ConsumerRecord[bytes, bytes] | None:
        """The record that a stage read; None where the step doesn't name its place, or it is gone."""
        if "offset" not in step:
            return None
        return await self.at(step["topic"], int(step["partition"]), int(step["offset"]))

    async def at(self, topic: str, partition: int, offset: int) -> ConsumerRecord[bytes, bytes] | None:
        """The record at a place; None where there is none (any more), or where records aren't for everybody's eyes.

        Places come from records and workers: whatever they say, hashes of secrets aren't shown.
        """
        if not topics.may_read(self._settings, topic) or not 0 <= partition < await self._count(topic):
            return None
        tp = TopicPartition(topic, partition)
        start, end = (await bounds(self._consumer, [tp]))[tp]
        return await record_at(self._consumer, tp, offset, end) if start <= offset < end else None

    async def written(self, step: dict[str, Any], event_id: str) -> dict[str, Any] | None:
        """The result or review of a step: its partition by key, its place by time."""
        name = writes(step)
        if name is None:
            return None
        topic, key = self._settings.topic(name), event_id.encode()
        count = await self._count(topic)
        if not count:
            return None
        found = await self._find(TopicPartition(topic, partition_for(key, count)), key, int(step["at_ms"]), KINDS[name])
        if found is None:
            return None
        record, value = found
        return {
            "topic": topic, "partition": record.partition, "offset": record.offset, "timestamp_ms": record.timestamp,
            "value": value,
        }  # fmt: skip

    async def _count(self, topic: str) -> int:
        """How many partitions a topic has; 0: there is none."""
        if topic not in self._counts:
            likely = {
                *map(self._settings.topic, WRITTEN_TO.values()),
                *map(self._settings.source_topic, self._settings.sources),
            }
            asked = [topic, *likely]  # all at once: each question is a connection of its own
            self._counts.update(dict.fromkeys(asked, 0) | await topics.counts(self._settings, asked))
        return self._counts[topic]

    async def _find(
        self, tp: TopicPartition, key: bytes, at_ms: int, kind: type[Result | Review]
    ) -> tuple[ConsumerRecord[bytes, bytes], dict[str, Any]] | None:
        """The event's record that was made at a time; one that was made before, such as that of an earlier decision, isn't it."""
        place = (await self._consumer.offsets_for_times({tp: at_ms - 1000})).get(tp)
        if place is None:
            return None
        end = (await self._consumer.end_offsets([tp]))[tp]
        seen = 0
        async for record in read_tail(self._consumer, tp, place.offset, end):
            value = _value(record.value, kind) if record.key == key else None
            if value is not None and value["created_ms"] >= at_ms:
                return record, value
            seen += 1
            if seen >= READ_AT_MOST or record.timestamp > at_ms + NEAR_MS:
                return None
        return None


def _value(raw: bytes | None, kind: type[Result | Review]) -> dict[str, Any] | None:
    """A result or review as it stands; None: it is none, so who isn't us has written it."""
    try:
        value = msgspec.json.decode(raw or b"", type=dict[str, Any])
        msgspec.convert(value, kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return value
