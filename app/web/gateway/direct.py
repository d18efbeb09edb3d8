"""Routes whose endpoint reads the request itself."""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

__all__ = ["Direct"]


class Direct(APIRoute):
    """Calls the endpoint without FastAPI's reading of parameters and bodies, which is half of a small request's time.

    Dependencies are for the OpenAPI document only: the endpoint calls `admitted` itself.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        endpoint: Callable[[Request], Coroutine[Any, Any, Response]] = self.endpoint
        return endpoint
