"""`POST /v1/events`: one event, a list, or lines; CloudEvents too. 202 only after Kafka acked."""

import logging
from typing import Any

import msgspec
from aiokafka.errors import KafkaError, MessageSizeTooLargeError
from aiokafka.structs import RecordMetadata
from fastapi import APIRouter, Request, Response

from app import metrics
from app.web.gateway.bodies import read_body
from app.web.gateway.context import Gateway, admitted, gateway_of, need, passed_on
from app.web.gateway.examples import POST_EVENTS
from app.web.gateway.intake import Intake, Parsed
from app.web.gateway.replies import MAX_NAME_CHARS, Reply, digest
from app.web.keys import ApiKey
from app.web.problems import STATUS_OF, Problem
from app.web.writer import RETRY_AFTER_S, Item, unavailable
from models.events import Bad

__all__ = ["router"]

log = logging.getLogger("headrace.web")

router = APIRouter(prefix="/v1", tags=["events"])

_json = msgspec.json.Encoder().encode

RETRY_AFTER = "Retry-After"
UNKNOWN = "not known to be stored: send it again with the same id, a copy is dropped"


class Outcome(msgspec.Struct, omit_defaults=True, gc=False):
    """What became of one event."""

    status: int
    event_id: str = ""
    partition: int | None = None
    offset: int | None = None
    reason: str = ""
    field: str = ""
    detail: str = ""


class Outcomes(msgspec.Struct):
    """Of a list."""

    accepted: int
    refused: int
    items: list[Outcome]


@router.post(
    "/events", status_code=202, openapi_extra=POST_EVENTS, summary="Send events", dependencies=[need("produce")]
)
async def post_events(request: Request) -> Response:
    """Stores events. 202: Kafka has acked. 207: a list of which some were refused; each item says what became of it."""
    gateway, key = gateway_of(request), admitted(request, "produce")
    gateway.rates.admit(key.id)
    intake = gateway.intake(request.query_params.get("source", ""))
    gateway.writer.check()
    taken = 0

    def take(size: int) -> None:
        nonlocal taken
        taken += size
        gateway.writer.take(size)

    try:
        body = await read_body(request, gateway.settings.gateway, take)
        status, content, headers = await _answer(request, gateway, key, intake, body)
    finally:
        gateway.writer.give_back(taken)
    return Response(content, status, {**headers, **gateway.rates.headers(key.id)}, "application/json")


async def _answer(
    request: Request, gateway: Gateway, key: ApiKey, intake: Intake, body: bytes
) -> tuple[int, bytes, dict[str, str]]:
    """Stores a body once for each Idempotency-Key."""
    given = request.headers.get("idempotency-key")
    if given is None:
        return await _store(request, gateway, key, intake, body)
    if not given or len(given) > MAX_NAME_CHARS:
        raise Problem(
            400, "bad-field", f"Idempotency-Key has 1 to {MAX_NAME_CHARS} characters", field="idempotency-key"
        )
    name = digest(key.id.encode(), given.encode("utf-8", "surrogateescape"))
    said = sorted(f"{n}:{v}" for n, v in _headers(request).items() if n == "content-type" or n.startswith("ce-"))
    asked = digest(intake.source.name.encode(), *[each.encode() for each in said], body)
    kept: Reply | None = gateway.replies.begin(name, asked)
    if kept is not None:
        return kept.status, kept.content, {"Idempotency-Replayed": "true"}
    status, content, headers = 0, b"", dict[str, str]()
    try:
        status, content, headers = await _store(request, gateway, key, intake, body)
    finally:
        # What isn't known to be stored is to be sent again: such a reply stands for nothing.
        stored = gateway.replies.end(name, 0 if RETRY_AFTER in headers else status, content)
    if stored is not None:
        try:
            await gateway.writer.send_aside(gateway.replies_topic, name, stored)
        except (KafkaError, TimeoutError) as error:  # the events are stored; a repeat at another gateway is a duplicate
            log.warning("the reply to an Idempotency-Key isn't known to the other gateways (%s)", type(error).__name__)
    return status, content, headers


async def _store(
    request: Request, gateway: Gateway, key: ApiKey, intake: Intake, body: bytes
) -> tuple[int, bytes, dict[str, str]]:
    """Reads a body, writes its events and says what became of each.

    Raises:
        Problem: nothing of it was stored.
    """
    parsed = intake.parse(_headers(request), body, passed_on(request))
    gateway.rates.charge(key.id, len(parsed.found))
    items = [found for found in parsed.found if isinstance(found, Item)]
    written = iter(await gateway.writer.write(intake.topic, items) if items else ())
    outcomes = [_outcome(found, next(written) if isinstance(found, Item) else None) for found in parsed.found]
    for outcome in outcomes:
        metrics.GATEWAY_EVENTS.labels(outcome.reason or "accepted").inc()
    return _single(parsed, outcomes[0]) if parsed.single else _list(outcomes)


def _headers(request: Request) -> dict[str, str]:
    """Names in lower case; of a repeated one the last counts."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in request.scope["headers"]}


def _outcome(found: Item | Bad, written: RecordMetadata | Exception | None) -> Outcome:
    if isinstance(found, Bad):
        return Outcome(STATUS_OF.get(found.reason, 400), reason=found.reason, field=found.field, detail=found.message)
    if isinstance(written, RecordMetadata):
        return Outcome(202, found.event_id, written.partition, written.offset)
    if isinstance(written, MessageSizeTooLargeError):
        return Outcome(413, found.event_id, reason="too-large", detail="larger than the broker takes")
    why = type(written).__name__
    return Outcome(503, found.event_id, reason="kafka-unavailable", detail=f"{why}: {UNKNOWN}")


def _single(parsed: Parsed, outcome: Outcome) -> tuple[int, bytes, dict[str, str]]:
    if outcome.status == 202:
        return 202, _json(outcome), {}
    if outcome.status == 503:
        raise unavailable(outcome.detail)
    raise Problem(outcome.status, outcome.reason, outcome.detail, field=outcome.field)


def _list(outcomes: list[Outcome]) -> tuple[int, bytes, dict[str, str]]:
    accepted = sum(1 for outcome in outcomes if outcome.status == 202)
    again = any(outcome.status == 503 for outcome in outcomes)
    if accepted == len(outcomes):
        status = 202
    elif accepted:
        status = 207
    else:
        status = 503 if again else 400
    body = Outcomes(accepted, len(outcomes) - accepted, outcomes)
    headers = {RETRY_AFTER: str(RETRY_AFTER_S)} if again else {}
    if accepted:
        return status, _json(body), headers
    first: Any = next(outcome for outcome in outcomes if (outcome.status == 503) == again)
    raise Problem(
        status, first.reason, f"none of {len(outcomes)} events was stored; the first: {first.detail}",
        field=first.field, headers=headers, items=msgspec.to_builtins(outcomes),
    )  # fmt: skip
