"""What a stage can't take becomes a dead letter."""

from app.delivery.outbox import Outbox
from app.logic.dead import dead_headers
from models.events import Bad, Record

__all__ = ["bury", "failed"]


def bury(out: Outbox, topic: str, record: Record, bad: Bad, stage: str) -> None:
    """Sends a record to the dead letter topic, byte for byte, and counts it.

    Args:
        out: of the batch.
        topic: the dead letter topic.
        record: as the stage read it, or as it was received first where it is to go back there.
        bad: why.
        stage: who says so.
    """
    out.send(topic, record.key, record.value, dead_headers(record, bad, stage))
    out.count("dead", bad.reason)


def failed(error: Exception, stage: str) -> Bad:
    """Why a record with which a stage fails is one: a fault of ours, so the log has more."""
    return Bad(reason="stage-failed", message=f"{type(error).__name__} in stage {stage}; the log has the traceback")
