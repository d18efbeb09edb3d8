"""What a person decides about a review, and what the stage `review` reads (JSON on `review-decisions`)."""

from typing import Annotated

import msgspec

from models.results import Review

__all__ = ["Decision", "Opened"]

Short = Annotated[str, msgspec.Meta(max_length=200)]
MAX_NOTE_CHARS = 2000


class Decision(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One decision; the record's key is the event's id. A later one for the same event takes its place."""

    event_id: Annotated[str, msgspec.Meta(min_length=1)]
    category: Short = ""
    """One of the task's; empty with `undo`."""
    fields: dict[str, object] | None = None
    """What the task extracts, where the reviewer gave it."""
    reviewer: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    note: Annotated[str, msgspec.Meta(max_length=MAX_NOTE_CHARS)] = ""
    decided_ms: int
    undo: bool = False
    """The event waits again; the result that was written stands until the next decision."""


class Opened(msgspec.Struct, kw_only=True):
    """A review as the stage that gave up on the event writes it beside `manual-review`."""

    review: Review
