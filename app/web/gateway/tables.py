"""`GET /v1/tables`: State of all workers, a page or a key at a time."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import JSONResponse

from app.web.gateway.context import gateway_of, need
from app.web.gateway.examples import problems
from app.web.gateway.problems import Problem
from app.web.gateway.workers import Answer

__all__ = ["router"]

router = APIRouter(prefix="/v1/tables", tags=["tables"], dependencies=[need("read")])

MAX_PAGE = 1000


@router.get("", summary="All tables of all workers", responses=problems(401, 403, 503))
async def get_tables(request: Request) -> JSONResponse:
    """Every State: who owns which partitions, which are being restored, what maps there are."""
    answers = await gateway_of(request).workers.ask_all("/tables")
    states: dict[str, dict[str, Any]] = {}
    for answer in answers:
        for state in answer.json() if answer.status == 200 else ():
            merged = states.setdefault(
                state["state"],
                {"state": state["state"], "topic": state["topic"], "maps": {}, "partitions": {}, "bytes": 0},
            )
            merged["bytes"] += state["bytes"]
            for each in state["maps"]:
                merged["maps"][each["name"]] = each["help"]
            for kind in ("partitions", "restoring"):
                label = "owned" if kind == "partitions" else "restoring"
                for partition in state[kind]:
                    merged["partitions"][str(partition)] = {"worker": answer.worker.url, "state": label}
            for partition, why in state["stopped"].items():
                merged["partitions"][partition] = {"worker": answer.worker.url, "state": "stopped", "why": why}
    return JSONResponse({"tables": [states[name] for name in sorted(states)], "silent": _silent(answers)})


@router.get("/{state}/{map}", summary="Rows of a map, or one key", responses=problems(401, 403, 404, 422, 503))
async def get_rows(
    request: Request,
    state: str,
    map: str,
    key: Annotated[str | None, Query(description="Only this key.")] = None,
    start: Annotated[
        str, Query(pattern=r"^(\d{1,6}:[0-9a-f]{0,8192})?$", description="`next` of the page before.")
    ] = "",
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
) -> JSONResponse:
    """A page over the partitions of all workers in order. `silent` names workers that didn't answer: what they own is missing."""
    workers = gateway_of(request).workers
    if key is not None:
        answers = await workers.ask_all(f"/tables/{_part(state)}/{_part(map)}", {"key": key})
        rows = [row for answer in _good(answers) for row in answer.json()["rows"]]
        return JSONResponse({"rows": rows, "next": None, "silent": _silent(answers)})
    partition, _, after = start.partition(":")
    params = {"partition": partition or "0", "start": after, "limit": str(limit)}
    answers = await workers.ask_all(f"/tables/{_part(state)}/{_part(map)}", params)
    found = sorted(
        ((row["partition"], n, row) for answer in _good(answers) for n, row in enumerate(answer.json()["rows"])),
        key=lambda each: each[:2],
    )
    stops = [answer.json()["next"] for answer in _good(answers) if answer.json()["next"]]
    return JSONResponse(_page([row for _, _, row in found], stops, limit) | {"silent": _silent(answers)})


def _page(rows: list[dict[str, Any]], stops: list[dict[str, Any]], limit: int) -> dict[str, Any]:
    """The first rows over all workers, and where the next page begins.

    A worker that had more than a page stopped somewhere: rows behind that place wait for the next page.
    """
    following = min(((stop["partition"], stop["start"]) for stop in stops), default=None)
    if following is not None:
        rows = [row for row in rows if (row["partition"], row["hex"]) < following]
    if len(rows) > limit:
        following = rows[limit]["partition"], rows[limit]["hex"]
    return {
        "rows": [_shown(row) for row in rows[:limit]],
        "next": None if following is None else f"{following[0]}:{following[1]}",
    }


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "hex"}


def _part(name: str) -> str:
    """A name in a path of ours.

    Raises:
        Problem: no State or map is called so.
    """
    if not name.replace("-", "").replace("_", "").replace(".", "").isalnum() or name.startswith("."):
        raise Problem(404, "no-such-table", "no State or map is called so")
    return name


def _good(answers: list[Answer]) -> list[Answer]:
    """Those of workers that have the table.

    Raises:
        Problem: none has it.
    """
    good = [answer for answer in answers if answer.status == 200]
    if not good and any(answer.status for answer in answers):
        raise Problem(404, "no-such-table", "no worker has a table of that name")
    return good


def _silent(answers: list[Answer]) -> list[dict[str, str]]:
    return [{"worker": answer.worker.url, "why": answer.why} for answer in answers if not answer.status]
