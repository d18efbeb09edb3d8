"""The consumer of a sink: with a group where processes share partitions, without one where a file takes them all."""

from typing import Any

import aiokafka

from app.kafka import client_kwargs
from app.settings import Settings
from app.settings_sinks import SinkSettings

__all__ = ["make_consumer", "shares"]

NEVER_IDLE_MS = 2**31 - 1
"""While the database is away nothing is read, for hours if need be: aiokafka would leave the group after max_poll_interval,
and not come back before somebody reads. A process that hangs sends no heartbeats, and loses its partitions by that."""
METADATA_MS = 60_000
"""How soon partitions are noticed that were added."""


def shares(own: SinkSettings) -> bool:
    """Whether processes of a sink share its partitions. A second machine has a DuckDB file of its own: it needs all of them."""
    return own.kind == "postgres"


def make_consumer(settings: Settings, own: SinkSettings) -> aiokafka.AIOKafkaConsumer:
    """A consumer that isn't started, and that goes nowhere by itself: where to read is said by the database alone."""
    return aiokafka.AIOKafkaConsumer(
        enable_auto_commit=False, auto_offset_reset="none", isolation_level="read_committed", metadata_max_age_ms=METADATA_MS,
        **_group(settings, own), **client_kwargs(settings.kafka),
    )  # fmt: skip


def _group(settings: Settings, own: SinkSettings) -> dict[str, Any]:
    if not shares(own):
        return {"group_id": None}
    return {
        "group_id": settings.topic(f"headrace-sink-{own.name}"),
        "session_timeout_ms": int(settings.kafka.session_timeout_s * 1000),
        "heartbeat_interval_ms": int(settings.kafka.heartbeat_s * 1000),
        "max_poll_interval_ms": NEVER_IDLE_MS,
    }
