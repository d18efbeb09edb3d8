"""Where a lane goes on reading: State's marker, the committed offset and the log are compared, and disagreements named.

Pure: what Kafka said is passed in. The marker in State decides; anybody's offset reset changes nothing.
"""

from dataclasses import dataclass

from app.delivery.state import Applied

__all__ = ["Log", "Position", "locate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """What the broker says of one input partition."""

    start: int
    end: int
    """The last stable offset."""
    committed: int | None
    at_marker: tuple[int, int] | None
    """Timestamp (ms) and crc of the record at the marker's offset; None when it isn't there any more."""
    initial: int
    """Where the source's `start` setting points."""
    compacted: bool = False
    """Records may be missing between `start` and `end`. Only asked where one is."""

    def lacks(self, offset: int) -> bool:
        """Whether no record is where one was: a transaction's marker may stand there in a topic that was made anew."""
        return self.at_marker is None and self.start <= offset < self.end


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The answer: the next offset to read, or why the partition must stop."""

    next: int
    stop: str = ""
    lost: int = 0
    """Records that the log no longer had, so that nobody will ever read them."""
    notice: str = ""


def locate(applied: Applied | None, log: Log) -> Position:
    """Decides where to go on.

    Args:
        applied: the marker in State, or None for a new State.
        log: what the broker says.
    """
    if applied is None:
        if log.committed is not None and log.committed > 0:
            return Position(
                next=log.committed,
                stop=f"the group has committed offset {log.committed}, but State holds nothing: its changelog was lost. "
                "Going on would let duplicates through and forget open work. Bring the changelog topic back; or, to "
                "begin anew, use another kafka.topic_prefix",
            )
        return Position(next=max(log.initial, log.start))
    after = applied.offset + 1
    if log.end < after:
        return Position(
            next=after,
            stop=f"State has seen offset {applied.offset}, but the topic ends at {log.end}: it was recreated or cut. "
            "New records would be taken for old ones. To read the new topic from its beginning, use another "
            "kafka.topic_prefix, or give the new topic another name",
        )
    if log.at_marker is not None and log.at_marker != (applied.timestamp_ms, applied.crc):
        return Position(
            next=after,
            stop=f"another record stands at offset {applied.offset} than the one State has seen: the topic was recreated. "
            "To read it from its beginning, use another kafka.topic_prefix, or give the new topic another name",
        )
    if log.lacks(applied.offset) and not log.compacted:
        return Position(
            next=after,
            stop=f"no record stands at offset {applied.offset}, where State has seen one, and the topic isn't compacted: it was "
            "recreated. To read it from its beginning, use another kafka.topic_prefix, or give the new topic another name",
        )
    if log.start > after:
        return Position(
            next=log.start,
            lost=log.start - after,
            notice=f"offsets {after} to {log.start - 1} were removed by the topic's retention before they were read",
        )
    notice = ""
    if log.committed is not None and log.committed != after:
        notice = (
            f"the group's committed offset was set to {log.committed}; State stands at {applied.offset} and decides"
        )
    return Position(next=after, notice=notice)
