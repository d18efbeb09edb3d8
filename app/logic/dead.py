"""Headers of a dead letter: Kafka Connect's `__connect.errors.*`, so that tools which know them work, and our own.

The original headers come first, unchanged. A record that was a dead letter before keeps its old ones among them; a
reader takes the last header of a name, as Kafka's own `lastHeader` does, so ours win.
"""

from models.events import Bad, Headers, Record

__all__ = ["dead_headers"]

CONNECTOR = b"headrace"


def dead_headers(record: Record, bad: Bad, stage: str) -> list[tuple[str, bytes | None]]:
    """All headers of the dead letter.

    Args:
        record: the record as it was received; its headers are passed on.
        bad: why it is no event.
        stage: the stage that found it, e.g. `ingest-raw-events`.
    """
    where, reason = stage.encode(), bad.reason.encode()
    return [*record.headers, *_connect(record, bad, where, reason), *_own(bad, where, reason)]


def _connect(record: Record, bad: Bad, stage: bytes, reason: bytes) -> Headers:
    """KIP-298's names. The stack trace is left out: it would hold no more than the message, many times over."""
    return (
        ("__connect.errors.topic", record.topic.encode()),
        ("__connect.errors.partition", b"%d" % record.partition),
        ("__connect.errors.offset", b"%d" % record.offset),
        ("__connect.errors.connector.name", CONNECTOR),
        ("__connect.errors.task.id", b"%d" % record.partition),
        ("__connect.errors.stage", stage),
        ("__connect.errors.class.name", b"app.sources"),
        ("__connect.errors.exception.class.name", reason),
        ("__connect.errors.exception.message", bad.message.encode("utf-8", "replace")),
    )


def _own(bad: Bad, stage: bytes, reason: bytes) -> Headers:
    return (
        ("headrace.reason", reason),
        ("headrace.field", bad.field.encode("utf-8", "replace")),
        ("headrace.stage", stage),
    )
