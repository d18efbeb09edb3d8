"""What a person's decision about an event must be, and the result that it becomes. Pure."""

from app.settings import TaskSettings
from app.settings_extract import why_wrong
from models.events import Bad
from models.results import Review, Reviewed
from models.reviews import Decision

__all__ = ["allowed", "result_of", "wrong"]


def allowed(review: Review, task: TaskSettings | None) -> list[str]:
    """The categories that may be answered: those of the task as it is now, or of the review where it isn't declared any more."""
    return review.categories if task is None else [category.id for category in task.categories]


def wrong(decision: Decision, review: Review, task: TaskSettings | None) -> Bad | None:
    """Why a decision can't be taken; None when it can.

    Args:
        decision: what was decided.
        review: what it is about.
        task: the review's task as it is now; None: it isn't declared any more.
    """
    if decision.undo:
        return None
    categories = allowed(review, task)
    if decision.category not in categories:
        return Bad(
            reason="bad-decision", field="category", message=f"the category is none of the task's: {', '.join(categories)}"
        )  # fmt: skip
    if decision.fields is not None:
        if task is None or not task.extract:
            return Bad(reason="bad-decision", field="fields", message="the task extracts no fields")
        if why := why_wrong(task.extract, decision.fields):
            return Bad(reason="bad-decision", field="fields", message=f"the fields don't fit the task's schema: {why}")
    return None


def result_of(review: Review, decision: Decision, now_ms: int) -> Reviewed:
    """The result that a decision becomes."""
    return Reviewed(
        event_id=review.event_id, event_type=review.event_type, task=review.task, category=decision.category,
        confidence=1.0, fields=decision.fields, tier="review", why=f"{decision.reviewer} decided: {review.cause}",
        latency_ms=max(0, now_ms - (review.received_ms or review.created_ms)), created_ms=now_ms, source=review.source,
        entity=review.entity, trace_id=review.trace_id, reviewer=decision.reviewer, note=decision.note,
    )  # fmt: skip
