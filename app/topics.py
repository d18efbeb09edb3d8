"""Every topic of ours: key, value, partitions, retention. Made, or only checked, when a worker starts."""

import asyncio
from dataclasses import dataclass, field, replace
from typing import Literal

from aiokafka.admin import NewTopic
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    InvalidReplicationFactorError,
    KafkaError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    for_code,
)

from app.errors import BrokerError
from app.kafka import admin
from app.settings import Settings

__all__ = ["Topic", "counts", "ensure", "is_changelog", "may_read", "topics"]

DAY_MS = 24 * 3600 * 1000
RAW_HEADROOM_BYTES = 64 << 10
"""Topics that carry a raw record onwards take this much more than kafka.max_message_bytes, for our headers."""
TRIES = 20
"""A new topic is known to all brokers within a second or two."""


HINTS: dict[type[KafkaError], str] = {
    InvalidReplicationFactorError: "set kafka.replication to what the brokers can hold",
    TopicAuthorizationFailedError: "`headrace check --acls` prints the rights that are needed",
    ClusterAuthorizationFailedError: "`headrace check --acls` prints the rights that are needed",
}
ASK = "make it yourself, and set kafka.manage_topics to `check`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """One topic."""

    name: str
    key: str
    value: str
    written_by: str
    raw: bool = False
    """Carries raw records onwards, with our headers."""
    redrivable: bool = False
    """Dead letters may be sent back to it: a stage reads it, or writes its results to it."""
    editable: bool = False
    """Also with another value: a stage reads raw records or decisions there, and checks them."""
    partitions: int | None = None
    """None: kafka.partitions."""
    config: dict[str, str] = field(default_factory=dict)
    shown_to: Literal["viewer", "admin", "nobody"] = "viewer"
    """Who may see its records in the console. `nobody`: hashes of passwords and keys. What isn't for viewers isn't for the
    Kafka user `reader` either."""


OURS = (
    Topic(name="rekeyed", key="event_id", value="the raw record", written_by="ingest", raw=True, redrivable=True,
          editable=True),
    Topic(name="clean-events", key="entity", value="the event as received, plus headers", written_by="ingest", raw=True,
          redrivable=True),
    Topic(name="window-events", key="entity", value="the raw record of an event for the stage `windows`",
          written_by="ingest", raw=True, redrivable=True, editable=True),
    Topic(
        name="sink-noise", key="entity", value="noise, kept for audit", written_by="ingest", raw=True, redrivable=True,
        config={"retention.ms": str(DAY_MS)},
    ),
    Topic(name="dead-letter", key="as received", value="the bytes as received", written_by="all stages", raw=True),
    Topic(name="agg-events", key="entity", value="closed window", written_by="ingest, windows", redrivable=True),
    Topic(name="late-events", key="entity", value="event that missed a window", written_by="ingest, windows",
          raw=True, redrivable=True),
    Topic(name="agent-trigger", key="entity", value="incident", written_by="ingest, windows", redrivable=True),
    Topic(name="model-requests", key="hash of task and text", value="event that no rule decided", written_by="ingest",
          raw=True, redrivable=True, editable=True),
    Topic(
        name="ai-results", key="event_id", value="one result per event", written_by="ingest, classify, review",
        redrivable=True, config={"cleanup.policy": "compact,delete"},
    ),
    Topic(name="manual-review", key="event_id", value="event that no model could decide", written_by="classify", raw=True,
          redrivable=True),
    Topic(name="review-decisions", key="event_id", value="review that was opened, or what a person decided",
          written_by="classify, console", raw=True, redrivable=True, editable=True),
    Topic(name="budget", key="task and day, or provider", value="lease that is asked for or given back", written_by="classify",
          redrivable=True),
    Topic(
        name="budget-grants", key="task and day, or provider", value="lease that is granted, or refused", written_by="budget",
        partitions=1, config={"retention.ms": str(DAY_MS)},
    ),
    Topic(
        name="workers", key="worker id", value="where its web port is", written_by="workers", partitions=1,
        config={"cleanup.policy": "compact", "delete.retention.ms": "3600000"},
    ),
    Topic(
        name="api-keys", key="key id", value="hash, scopes, times", written_by="headrace keys", partitions=1,
        config={"cleanup.policy": "compact"}, shown_to="nobody",
    ),
    Topic(
        name="redriven", key="partition and offset of a dead letter", value="when and where it was sent back, or discarded",
        written_by="headrace redrive, console", partitions=1, config={"cleanup.policy": "compact"},
    ),
    Topic(
        name="gateway-replies", key="hash of key and Idempotency-Key", value="hash of the body, status and reply",
        written_by="gateway", partitions=1, config={"cleanup.policy": "compact,delete", "retention.ms": str(DAY_MS)},
        shown_to="admin",
    ),
    Topic(
        name="console-users", key="user, or session that was ended", value="role, hash of the password, times",
        written_by="headrace users, console", partitions=1, config={"cleanup.policy": "compact"}, shown_to="nobody",
    ),
    Topic(
        name="console-audit", key="user", value="what somebody did in the console", written_by="console", partitions=1,
        config={"cleanup.policy": "delete", "retention.ms": str(365 * DAY_MS)}, shown_to="admin",
    ),
)  # fmt: skip


def topics(settings: Settings) -> list[Topic]:
    """Our topics with their full names and configuration."""
    limit = str(settings.kafka.max_message_bytes + RAW_HEADROOM_BYTES)
    found = []
    for topic in OURS:
        config = dict(topic.config)
        if topic.raw:
            config["max.message.bytes"] = limit
        found.append(
            replace(
                topic, name=settings.topic(topic.name), partitions=topic.partitions or settings.kafka.partitions,
                config=config,
            )
        )  # fmt: skip
    return found


def may_read(settings: Settings, name: str, *, admin: bool = False) -> bool:
    """Whether a person may see records of a topic, by its full name: of sources, changelogs, and ours that are shown."""
    for topic in OURS:
        if settings.topic(topic.name) == name:
            return topic.shown_to == "viewer" or (admin and topic.shown_to == "admin")
    return name in map(settings.source_topic, settings.sources) or is_changelog(settings, name)


def is_changelog(settings: Settings, name: str) -> bool:
    """Whether a topic is a State's, by its full name."""
    return name.startswith(settings.topic("headrace-")) and name.endswith("-changelog")


async def counts(settings: Settings, names: list[str]) -> dict[str, int]:
    """Partition counts of those of the topics that exist."""
    async with admin(settings.kafka) as client:
        there = set(await client.list_topics())  # asking about a missing one may make it, where brokers auto-create
        known = [name for name in names if name in there]
        described = await client.describe_topics(known) if known else []
    return {t["topic"]: len(t["partitions"]) for t in described if not t["error_code"] and t["partitions"]}


async def ensure(settings: Settings) -> dict[str, int]:
    """Makes or checks the topics, those of the sources included.

    Returns:
        Partition counts by full name.

    Raises:
        BrokerError: topics are missing and may not be made, or the broker refuses.
    """
    wanted = topics(settings)
    sources = [
        Topic(name=settings.source_topic(s), key="entity", value="events", written_by="producers",
              partitions=settings.kafka.partitions)
        for s in settings.sources
    ]  # fmt: skip
    names = [t.name for t in (*sources, *wanted)]
    found = await counts(settings, names)
    missing = [t for t in (*sources, *wanted) if t.name not in found]
    if not missing:
        return found
    if settings.kafka.manage_topics == "check":
        raise BrokerError(
            f"topics are missing and kafka.manage_topics is `check`: {', '.join(t.name for t in missing)}; make them, or "
            "set kafka.manage_topics to `create`"
        )
    await make(settings, missing)
    return await counts(settings, names)


async def make(settings: Settings, missing: list[Topic]) -> None:
    """Makes topics, and waits until every broker tells of them.

    Raises:
        BrokerError: the broker refuses, or doesn't show them.
    """
    await _create(settings, missing)
    names = [t.name for t in missing]
    for _ in range(TRIES):
        found = await counts(settings, names)
        if len(found) == len(names):
            return
        await asyncio.sleep(0.25)
    raise BrokerError(f"topics were made but can't be seen yet: {', '.join(n for n in names if n not in found)}")


async def _create(settings: Settings, missing: list[Topic]) -> None:
    new = [
        NewTopic(
            name=t.name,
            num_partitions=t.partitions or settings.kafka.partitions,
            replication_factor=settings.kafka.replication,
            topic_configs=t.config,
        )
        for t in missing
    ]
    async with admin(settings.kafka) as client:
        answer = await client.create_topics(new)
    for name, code, *rest in answer.topic_errors:
        error = for_code(code)
        if code and error is not TopicAlreadyExistsError:  # another worker was quicker: that is fine
            why = f"{error.__name__} {rest[0] if rest and rest[0] else ''}".strip()
            raise BrokerError(f"topic {name} can't be made: {why}; {HINTS.get(error, ASK)}")
