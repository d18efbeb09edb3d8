"""Errors of requests as `application/problem+json` (RFC 9457), with the field at fault."""

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response

from models.events import Bad

__all__ = ["STATUS_OF", "Problem", "problem_response"]

_json = msgspec.json.Encoder().encode

STATUS_OF = {"too-large": 413}
"""HTTP status of a reason that isn't 400."""

TITLES = {
    400: "The request can't be read", 401: "A key is needed", 403: "The key may not do this", 404: "Not found",
    405: "The method isn't served here", 408: "The request took too long", 409: "Conflict",
    411: "A length is needed", 413: "Too large", 415: "This content type isn't read",
    422: "The request doesn't fit", 429: "Too many", 500: "An error on this side", 503: "Not available now",
}  # fmt: skip


class Problem(Exception):
    """Ends a request with an error reply.

    Args:
        status: HTTP status.
        reason: a stable word.
        detail: for a person: what is wrong, what to do. Never holds payload text.
        field: the field at fault.
        headers: more reply headers.
        items: of a list, what became of each.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        detail: str,
        *,
        field: str = "",
        headers: Mapping[str, str] | None = None,
        items: list[Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.items = items
        self.status, self.reason, self.detail, self.field = status, reason, detail, field
        self.headers = dict(headers or {})

    @classmethod
    def of(cls, bad: Bad) -> "Problem":
        """A value that is no event."""
        return cls(STATUS_OF.get(bad.reason, 400), bad.reason, bad.message, field=bad.field)


def problem_response(problem: Problem, request_id: str) -> Response:
    """The reply."""
    body: dict[str, Any] = {
        "type": f"urn:headrace:problem:{problem.reason}",
        "title": TITLES.get(problem.status, "Error"),
        "status": problem.status,
        "reason": problem.reason,
        "detail": problem.detail,
    }
    if problem.field:
        body["field"] = problem.field
    if problem.items is not None:
        body["items"] = problem.items
    if request_id:
        body["request_id"] = request_id
    return Response(_json(body), problem.status, problem.headers, "application/problem+json")
