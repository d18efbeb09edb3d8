"""`GET /v1/results/{event_id}`: the result of one event, waiting for it if asked to."""

import asyncio
import time
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from app.web.gateway.context import Gateway, gateway_of, need
from app.web.gateway.examples import RESULT, problems
from app.web.problems import Problem

__all__ = ["router"]

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0
"""A result usually takes some tens of milliseconds by rule and seconds by a model."""

router = APIRouter(prefix="/v1", tags=["results"])


@router.get(
    "/results/{event_id:path}", summary="The result of one event", dependencies=[need("read")],
    responses={200: {"description": "The result.", "content": {"application/json": {"example": RESULT}}},
               **problems(401, 403, 404, 429, 503)},
)  # fmt: skip
async def get_result(
    request: Request,
    event_id: str,
    wait: Annotated[float, Query(ge=0, description="Seconds to wait for it; at most gateway.max_wait_s.")] = 0.0,
) -> Response:
    """The latest result of an event, as it stands on `ai-results`. 404: none is kept (not decided yet, unknown, too old)."""
    gateway = gateway_of(request)
    body = await _wait(gateway, event_id, min(wait, gateway.settings.gateway.max_wait_s))
    if body is None:
        raise Problem(404, "no-result", "no result is kept for this event_id: not decided yet, unknown, or too old")
    return Response(body, media_type="application/json")


async def _wait(gateway: Gateway, event_id: str, wait_s: float) -> bytes | None:
    if not wait_s:
        return await gateway.workers.result(event_id, gateway.result_partitions)
    if gateway.waiting >= gateway.settings.gateway.max_waiting:
        raise Problem(
            429, "busy", "too many requests wait for results (gateway.max_waiting)", headers={"Retry-After": "1"}
        )
    gateway.waiting += 1
    try:
        return await _poll(gateway, event_id, time.monotonic() + wait_s)
    finally:
        gateway.waiting -= 1


async def _poll(gateway: Gateway, event_id: str, until: float) -> bytes | None:
    """Asks again and again; an owner that is gone for a moment is waited for as well."""
    pause_s = FIRST_PAUSE_S
    while True:
        last = time.monotonic() + pause_s >= until or gateway.draining
        try:
            found = await gateway.workers.result(event_id, gateway.result_partitions)
        except Problem:
            if last:
                raise
            found = None
        if found is not None or last:
            return found
        await asyncio.sleep(pause_s)
        pause_s = min(LONGEST_PAUSE_S, pause_s * 1.5, max(0.01, until - time.monotonic()))
