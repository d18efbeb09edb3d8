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

__all__ = ["History", "ordered"]

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
    steps = (step for answer in answers for step in answer.get("steps", []))
    return sorted(steps, key=lambda step: (int(step["at_ms"]), STEPS.get(step["map"], len(STEPS))))


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
        outcome = "decided" if step["map"] == "decided" else step.get("outcome") or step.get("tier") or ""
        name = WRITTEN_TO.get(outcome)
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
