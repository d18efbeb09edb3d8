"""Keeps TLS connections to Kafka from taking 30 s to close.

Under uvloop a TLS connection that still has an answer to come waits for the end of its shutdown time limit, since nothing
is read any more (https://github.com/MagicStack/uvloop/issues/471). aiokafka waits with it: each look into a topic, and so
each lane's start, took 30 s. What is in flight when aiokafka closes a connection is given up anyway.
"""

from typing import Any

from aiokafka.conn import AIOKafkaConnection

__all__ = ["close_tls_at_once"]

LAST_WORDS_S = 0.5
"""For the peer's own closing words; a connection without anything in flight needs some milliseconds."""


def close_tls_at_once() -> None:
    """From now on aiokafka's connections are aborted when the peer doesn't close them soon. Idempotent."""
    if AIOKafkaConnection.close is _close:
        return
    AIOKafkaConnection.close = _close


_usual_close = AIOKafkaConnection.close


def _close(self: Any, reason: Any = None, exc: Any = None) -> Any:
    transport = None if self._writer is None else self._writer.transport
    over_tls = transport is not None and transport.get_extra_info("ssl_object") is not None
    in_flight = bool(self._requests)
    closed = _usual_close(self, reason, exc)
    if transport is not None and over_tls:
        self._loop.call_later(0.0 if in_flight else LAST_WORDS_S, transport.abort)
    return closed
