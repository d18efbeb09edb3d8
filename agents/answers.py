"""From a model's answer to the record that is written."""

from models.events import Answer
from models.results import Result, Review, Source, Tier, Tokens
from tables.open_work import OpenItem

__all__ = ["model_result", "review_of"]


def model_result(item: OpenItem, answer: Answer, tier: Tier, why: str, now_ms: int) -> Result:
    """The result of an event that a model decided."""
    request = item.request
    return Result(
        event_id=request.event_id,
        event_type=request.event_type,
        task=request.task,
        category=answer.category,
        fields=answer.fields,
        confidence=round(answer.confidence, 4),
        tier=tier,
        why=why,
        provider=answer.provider,
        model=answer.model,
        model_version=answer.model_version,
        prompt_version=answer.prompt_version,
        tokens=Tokens(answer.prompt_tokens, answer.completion_tokens),
        cost_usd=answer.cost_usd,
        latency_ms=max(0, now_ms - request.received_ms),
        created_ms=now_ms,
        source=Source.of(request.source),
        entity=request.entity,
        trace_id=request.trace_id,
    )


def why_deep(item: OpenItem, extracts: bool) -> str:
    """Why the deep model was asked."""
    if extracts:
        return "the task extracts fields"
    if item.request.hint:
        return f"rule {item.request.hint} asked for it"
    if item.light_done:
        return f"light said {item.light_category} at {item.light_confidence:.2f}, below the threshold"
    return "no light tier"


def review_of(item: OpenItem, categories: list[str], cause: str, attempts: int, now_ms: int) -> Review:
    """What a person needs to decide an event that no model could."""
    request = item.request
    return Review(
        event_id=request.event_id,
        event_type=request.event_type,
        event_time_ms=request.event_time_ms,
        entity=request.entity,
        task=request.task,
        text=request.text,
        categories=categories,
        cause=cause,
        light_category=item.light_category,
        light_confidence=round(item.light_confidence, 4),
        attempts=item.attempts + attempts,
        rounds=item.round,
        tried=item.tried,
        received_ms=request.received_ms,
        created_ms=now_ms,
        source=Source.of(request.source),
        trace_id=request.trace_id,
    )
