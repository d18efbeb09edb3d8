"""What commands make of workers' answers."""

import json
from typing import Any

import pytest

from app.commands import fleet
from app.web.announce import Worker
from app.web.workers import Answer

ROWS, NONE = {"rows": [1]}, {"error": "no such table"}


def answer(name: str, status: int, body: Any, why: str = "") -> Answer:
    worker = Worker(id=name, url=f"http://{name}", host="h", pid=1, role="all", started_ms=0, beat_ms=0)
    return Answer(worker, status, body if isinstance(body, bytes) else json.dumps(body).encode(), why)


@pytest.mark.parametrize(
    ("given", "heard", "said"),
    [
        ([answer("a", 404, NONE), answer("b", 200, ROWS)], [("b", ROWS)], []),
        ([answer("a", 404, NONE), answer("b", 404, NONE)], [("a", NONE), ("b", NONE)], []),
        ([answer("a", 404, b"404: Not Found"), answer("b", 200, ROWS)], [("b", ROWS)], ["http://a (its answer isn't JSON)"]),
        ([answer("a", 401, {}), answer("b", 0, b"", "ConnectError")], [],
         ["http://a (401: web.token isn't the worker's)", "http://b (ConnectError)"]),
    ],
)  # fmt: skip
async def test_a_worker_without_a_table_counts_only_if_no_other_has_it(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    given: list[Answer],
    heard: list[tuple[str, Any]],
    said: list[str],
) -> None:
    async def answers(*_: Any) -> list[Answer]:
        return given

    monkeypatch.setattr(fleet, "answers", answers)
    assert [(worker.id, body) for worker, body in await fleet.ask_all("/tables/a/b")] == heard
    assert capsys.readouterr().err.splitlines() == [f"headrace: no answer from worker {each}" for each in said]
