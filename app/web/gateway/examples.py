"""What the OpenAPI document shows of `POST /v1/events`."""

from typing import Any

__all__ = ["GET_STREAM", "POST_EVENTS", "PROBLEM", "RESULT", "problems"]

EVENT: dict[str, Any] = {
    "event_id": "o-1001", "event_type": "order.created", "event_time": "2026-11-30T10:00:00Z", "entity_id": "user-7",
    "payload": {"message": "please deliver after six"},
}  # fmt: skip
CLOUDEVENT: dict[str, Any] = {
    "specversion": "1.0", "id": "o-1001", "type": "order.created", "source": "/shop", "subject": "user-7",
    "time": "2026-11-30T10:00:00Z", "data": {"message": "please deliver after six"},
}  # fmt: skip
PROBLEM: dict[str, Any] = {
    "type": "urn:headrace:problem:missing-field", "title": "The request can't be read", "status": 400,
    "reason": "missing-field", "field": "event_id", "detail": "event_id is absent or null; an envelope needs it",
    "request_id": "3f0c9a",
}  # fmt: skip

_accepted = {"status": 202, "event_id": "o-1001", "partition": 2, "offset": 4711}
_refused = {"status": 400, "reason": "missing-field", "field": "event_id", "detail": PROBLEM["detail"]}


def _problem(description: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/problem+json": {"example": PROBLEM}}}


def _json(description: str, examples: dict[str, Any]) -> dict[str, Any]:
    shown = {name: {"value": value} for name, value in examples.items()}
    return {"description": description, "content": {"application/json": {"examples": shown}}}


RESULT: dict[str, Any] = {
    "event_id": "o-1001", "event_type": "order.created", "task": "shop", "category": "order", "confidence": 1.0,
    "tier": "rule", "why": "order-events", "provider": "", "model": "", "model_version": "", "prompt_version": "",
    "tokens": {"prompt": 0, "completion": 0}, "cost_usd": 0.0, "latency_ms": 41, "created_ms": 1796032800041,
    "source": {"topic": "raw-events", "partition": 2, "offset": 4711}, "entity": "user-7", "trace_id": "",
}  # fmt: skip

MEANINGS = {
    401: "No key, or an unknown or revoked one.", 403: "The key lacks the scope.", 404: "There is none.",
    422: "A parameter can't be read.", 429: "Too many at once; see Retry-After.",
    503: "Nobody has the partition now, or no worker is alive; see Retry-After.",
}  # fmt: skip


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The errors that a route may give."""
    return {status: _problem(MEANINGS[status]) for status in statuses}


POST_EVENTS: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"oneOf": [{"type": "object"}, {"type": "array", "items": {"type": "object"}}]},
                "examples": {"one": {"value": EVENT}, "list": {"value": [EVENT, {**EVENT, "event_id": "o-1002"}]}},
            },
            "application/x-ndjson": {
                "schema": {"type": "string"},
                "example": '{"event_id":"o-1001","event_type":"order.created","event_time":1796000000000}\n',
            },
            "application/cloudevents+json": {"schema": {"type": "object"}, "example": CLOUDEVENT},
            "application/cloudevents-batch+json": {
                "schema": {"type": "array", "items": {"type": "object"}}, "example": [CLOUDEVENT],
            },
        },
    },
    "parameters": [
        {"name": "source", "in": "query", "schema": {"type": "string"},
         "description": "The source that the events belong to; without it gateway.source."},
        {"name": "Idempotency-Key", "in": "header", "schema": {"type": "string", "maxLength": 255},
         "description": "A repeat with the same body gets the first reply; another body gets 422."},
        {"name": "X-Request-Id", "in": "header", "schema": {"type": "string"},
         "description": "Comes back in the reply and goes into the record's header `headrace.request-id`."},
        {"name": "traceparent", "in": "header", "schema": {"type": "string"},
         "description": "W3C trace context; goes into the record's headers."},
    ],
    "responses": {
        "202": _json("Stored: Kafka has acked.",
                     {"one": _accepted, "list": {"accepted": 1, "refused": 0, "items": [_accepted]}}),
        "207": _json("A list of which some were stored.",
                     {"list": {"accepted": 1, "refused": 1, "items": [_accepted, _refused]}}),
        "400": _problem("It can't be read; `field` names the field. Nothing was stored."),
        "401": _problem("No key, or an unknown or revoked one."),
        "403": _problem("The key lacks the scope produce."),
        "404": _problem("No source of that name."),
        "408": _problem("The body didn't come in time."),
        "409": _problem("The request with this Idempotency-Key still runs."),
        "413": _problem("Too large, or too many events."),
        "415": _problem("The content type, encoding or charset isn't read."),
        "422": _problem("This Idempotency-Key was used for another request."),
        "429": _problem("Too fast for this key, or the gateway has no room; see Retry-After."),
        "503": _problem("Kafka isn't reachable, or didn't ack in time; see Retry-After."),
    },
}  # fmt: skip

GET_STREAM: dict[str, Any] = {
    "parameters": [
        *(
            {"name": name, "in": "query", "schema": {"type": "array", "items": {"type": "string"}},
             "description": f"Only results of this {name}. May be given again, for any of these."}
            for name in ("task", "category", "tier", "entity")
        ),
        {"name": "Last-Event-ID", "in": "header", "schema": {"type": "string"},
         "description": "The id of the last event that was seen: the stream goes on behind it. Also `?last_id=`."},
    ],
    "responses": {
        "200": {"description": "The stream. `event: closed` says that the reader was too slow.",
                "content": {"text/event-stream": {"example": 'id: 0-17.1-4\nevent: result\ndata: {"event_id":"o-1001"}\n\n'}}},
        "401": _problem(MEANINGS[401]), "403": _problem(MEANINGS[403]), "422": _problem(MEANINGS[422]),
        "429": _problem(MEANINGS[429]), "503": _problem(MEANINGS[503]),
    },
}  # fmt: skip
