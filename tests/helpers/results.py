"""Results as records of `ai-results`, for tests of what reads them."""

from typing import Any

import msgspec

from models.events import Received
from models.results import Result, Source, Tokens

__all__ = ["a_record", "a_result"]


def a_result(event_id: str, **more: Any) -> Result:
    """A result of the deep tier; fields may be given."""
    return Result(
        **{
            "event_id": event_id, "event_type": "order.created", "task": "shop", "category": "order", "confidence": 0.75,
            "tier": "deep", "why": "no rule", "tokens": Tokens(120, 7), "cost_usd": 0.0000125, "latency_ms": 12,
            "created_ms": 1_796_000_000_000, "source": Source("raw-events", 3, 99), "entity": "u1", **more,
        }
    )  # fmt: skip


def a_record(
    value: object, offset: int = 0, partition: int = 0, *, key: bytes | None = None, topic: str = "ai-results",
    timestamp: int = 1_796_000_000_000,
) -> Received:  # fmt: skip
    """A record of a value: a struct or an object becomes JSON, bytes and None stay."""
    raw = value if isinstance(value, bytes) or value is None else msgspec.json.encode(value)
    if key is None and isinstance(value, Result):
        key = value.event_id.encode()
    return Received(topic, partition, offset, timestamp, key, raw)
