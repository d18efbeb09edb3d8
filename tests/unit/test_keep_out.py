"""State is only divided or reset while no worker is there, whatever its role."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from app.core import build
from app.delivery.offline import keep_out
from app.errors import StateError
from app.settings import ROLES, Role, load


class Cluster:
    """Says which groups have a member."""

    def __init__(self, alive: str) -> None:
        self.alive = alive

    async def find_coordinator(self, group: str) -> int:
        return 0

    async def _send_request_to_node(self, node: int, request: Any) -> Any:
        group = request._group
        members = [("id", "worker", "/127.0.0.1", b"", b"")] if group == self.alive else []
        return SimpleNamespace(groups=[(0, group, "Stable", "consumer", "", members)])


@pytest.mark.parametrize("role", ROLES)
async def test_a_worker_of_any_role_keeps_others_from_its_state(role: Role, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_ROLE", role)
    settings = load()

    @asynccontextmanager
    async def admin(kafka: object) -> AsyncIterator[Cluster]:
        yield Cluster(build(settings).conf.id)

    monkeypatch.setattr("app.delivery.offline.admin", admin)
    with pytest.raises(StateError, match="1 workers of group"):
        await keep_out(settings)
