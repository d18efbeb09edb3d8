"""`GET /v1/tables`: State of all workers, a page or a key at a time."""

from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.responses import JSONResponse

from app.web import tables
from app.web.gateway.context import gateway_of, need
from app.web.gateway.examples import problems
from app.web.problems import Problem

__all__ = ["router"]

router = APIRouter(prefix="/v1/tables", tags=["tables"], dependencies=[need("read")])


@router.get("", summary="All tables of all workers", responses=problems(401, 403, 503))
async def get_tables(request: Request) -> JSONResponse:
    """Every State: who owns which partitions, which are being restored, what maps there are."""
    return JSONResponse(msgspec.to_builtins(await tables.states(gateway_of(request).workers.ask_all)))


@router.get("/{state}/{map}", summary="Rows of a map, or one key", responses=problems(401, 403, 404, 422, 503))
async def get_rows(
    request: Request,
    state: str,
    map: str,
    key: Annotated[str | None, Query(description="Only this key.")] = None,
    start: Annotated[str, Query(pattern=f"^{tables.START.pattern}$", description="`next` of the page before.")] = "",
    limit: Annotated[int, Query(ge=1, le=tables.MAX_PAGE)] = 50,
) -> JSONResponse:
    """A page over the partitions of all workers in order. `silent` names workers that didn't answer: what they own is missing."""
    ask = gateway_of(request).workers.ask_all
    try:
        if key is not None:
            found = await tables.find(ask, state, map, key)
        else:
            found = await tables.page(ask, state, map, start, limit)
    except LookupError:
        raise Problem(404, "no-such-table", "no worker has a table of that name") from None
    return JSONResponse(msgspec.to_builtins(found))
