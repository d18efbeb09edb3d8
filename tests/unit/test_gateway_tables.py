"""Results and tables over several workers, some of which leave."""

import json
from typing import Any
from urllib.parse import unquote

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.delivery.partitions import partition_for
from app.web.announce import Worker, path_part
from app.web.problems import Problem
from app.web.tables import _cut
from app.web.workers import Answer, Workers
from tests.helpers.asgi import client, gateway_app


def a_worker(name: str) -> Worker:
    return Worker(id=name, url=f"http://{name}", host="h", pid=1, role="all", started_ms=1, beat_ms=1)


class Simulated(Workers):
    """Workers in a dictionary: for each, which partitions it owns and what is in them."""

    def __init__(self, owned: dict[str, dict[int, dict[str, str]]]) -> None:
        self.owned, self.silent, self.asked = owned, set[str](), list[str]()
        self.status_of_silent = 0
        self._owners = {}

    @property
    def alive(self) -> list[Worker]:
        return [a_worker(name) for name in self.owned]

    async def _ask(self, worker: Worker, path: str, params: dict[str, str]) -> Answer:
        self.asked.append(worker.id)
        if worker.id in self.silent:
            return Answer(worker, self.status_of_silent, b"{}", "" if self.status_of_silent else "ConnectError")
        partitions = self.owned[worker.id]
        if path == "/results":
            partition = int(params["partition"])
            if partition not in partitions:
                return Answer(worker, 421, b"{}")
            found = partitions[partition].get(params["event_id"])
            return Answer(worker, 404, b"{}") if found is None else Answer(worker, 200, found.encode())
        return Answer(worker, 200, json.dumps(self._rows(partitions, params)).encode())

    @staticmethod
    def _rows(partitions: dict[int, dict[str, str]], params: dict[str, str]) -> dict[str, Any]:
        """As a worker answers."""
        first, start, limit = int(params["partition"]), params["start"], int(params["limit"])
        rows = [
            {"partition": p, "key": key, "value": value, "hex": key.encode().hex()}
            for p in sorted(partitions)
            for key, value in sorted(partitions[p].items())
            if p > first or (p == first and key.encode().hex() >= start)
        ]
        more = rows[limit] if len(rows) > limit else None
        return {"rows": rows[:limit], "next": more and {"partition": more["partition"], "start": more["hex"]}}


@settings(max_examples=50, deadline=None)
@given(
    st.dictionaries(st.integers(0, 5), st.dictionaries(st.text("abc", min_size=1, max_size=4), st.just("v"))),
    st.integers(1, 3), st.integers(1, 7),
)  # fmt: skip
async def test_pages_over_workers_hold_each_row_once_in_order(
    partitions: dict[int, dict[str, str]], count: int, limit: int
) -> None:
    app, _ = gateway_app()
    owned: dict[str, dict[int, dict[str, str]]] = {f"w{n}": {} for n in range(count)}
    for partition, rows in partitions.items():
        owned[f"w{partition % count}"][partition] = rows
    app.state.gateway.workers = Simulated(owned)
    seen, start = [], ""
    async with client(app, "read") as http:
        while True:
            reply = await http.get("/v1/tables/s/m", params={"limit": limit, "start": start})
            page = reply.json()
            assert len(page["rows"]) <= limit
            seen += [(row["partition"], row["key"]) for row in page["rows"]]
            start = page["next"]
            if start is None:
                break
    assert seen == [(p, key) for p in sorted(partitions) for key in sorted(partitions[p])]


def test_a_page_without_rows_before_a_stop_still_goes_on() -> None:
    assert _cut([], [{"partition": 2, "start": "6161"}], 5) == ([], "2:6161")


async def test_a_result_is_asked_of_the_owner_alone_once_it_is_known() -> None:
    partition = partition_for("e/1 😀".encode(), 4)
    rows = {"e/1 😀": '{"event_id": "e/1 😀"}'}
    workers = Simulated({"w0": {(partition + 1) % 4: {}}, "w1": {partition: rows}})
    for asked in (["w0", "w1"], ["w1"]):
        workers.asked.clear()
        assert await workers.result("e/1 😀", 4) == rows["e/1 😀"].encode()
        assert workers.asked == asked


async def test_after_the_owner_left_the_new_one_is_found_and_meanwhile_it_says_so() -> None:
    partition = partition_for(b"e1", 4)
    workers = Simulated({"w0": {partition: {"e1": "{}"}}, "w1": {}})
    assert await workers.result("e1", 4) == b"{}"
    workers.silent = {"w0"}
    with pytest.raises(Problem) as caught:
        await workers.result("e1", 4)
    assert (caught.value.status, caught.value.reason) == (503, "no-owner")
    workers.owned["w1"] = {partition: {"e1": "{}"}}
    assert await workers.result("e1", 4) == b"{}"
    workers.owned = {}
    with pytest.raises(Problem, match="no worker"):
        await workers.result("e1", 4)


async def test_silent_workers_are_named_and_unknown_tables_refused() -> None:
    app, _ = gateway_app()
    workers = app.state.gateway.workers = Simulated({"w0": {0: {"a": "v"}}, "w1": {1: {"b": "v"}}})
    workers.silent = {"w1"}
    async with client(app, "read") as http:
        page = (await http.get("/v1/tables/s/m")).json()
        assert [row["key"] for row in page["rows"]] == ["a"]
        assert page["silent"] == [{"worker": "http://w1", "why": "ConnectError"}]
        for status, why in ((401, "401: web.token isn't the worker's"), (500, "500"), (503, "503")):
            workers.status_of_silent = status
            page = (await http.get("/v1/tables/s/m")).json()
            assert [row["key"] for row in page["rows"]] == ["a"]
            assert page["silent"] == [{"worker": "http://w1", "why": why}]
        workers.status_of_silent, workers.silent = 404, {"w1"}  # it hasn't got the map
        assert (await http.get("/v1/tables/s/m")).json()["silent"] == []
        workers.silent = {"w0", "w1"}
        assert (await http.get("/v1/tables/s/m")).json()["reason"] == "no-such-table"
        workers.status_of_silent = 401
        assert (await http.get("/v1/tables")).json() == {
            "tables": [],
            "silent": [{"worker": f"http://w{n}", "why": "401: web.token isn't the worker's"} for n in (0, 1)],
        }
        for path in ("/v1/tables/../m", "/v1/tables/s/%2e%2e", "/v1/tables/a%2Fb/m", "/v1/tables/s/m%20"):
            assert (await http.get(path)).status_code == 404, path
        for query in ("limit=0", "limit=1001", "limit=x", "start=zz", "start=1:XY", "start=1:abc"):
            reply = await http.get(f"/v1/tables/s/m?{query}")
            assert (reply.status_code, reply.json()["field"]) == (422, query.partition("=")[0])


async def test_a_result_that_is_not_there_is_waited_for_as_long_as_asked() -> None:
    app, writer = gateway_app()
    writer._partitioners = {}
    partition = partition_for(b"e1", 4)
    workers = app.state.gateway.workers = Simulated({"w0": {partition: {}}})

    class Four:
        count = 4

    writer._partitioners["ai-results"] = Four()  # type: ignore[assignment]  # only the count is looked at
    async with client(app, "read") as http:
        assert (await http.get("/v1/results/e1")).json()["reason"] == "no-result"
        asked = len(workers.asked)
        assert (await http.get("/v1/results/e1?wait=1")).status_code == 404
        assert len(workers.asked) - asked >= 3
        workers.owned["w0"][partition]["e1"] = '{"category": "order"}'
        reply = await http.get("/v1/results/e1?wait=30")
        assert (reply.status_code, reply.json()) == (200, {"category": "order"})
        assert (await http.get("/v1/results/e1?wait=-1")).status_code == 422
    assert app.state.gateway.waiting == 0


@pytest.mark.parametrize("event_id", ["..", ".", "a/../b", "e 1?x=2#y", "%2E", "é😀"])
def test_an_id_in_a_path_of_a_worker_stays_one_part(event_id: str) -> None:
    asked = httpx.URL(f"http://w0/trace/{path_part(event_id)}")
    assert unquote(asked.raw_path.decode().removeprefix("/trace/")) == event_id
    assert asked.raw_path.count(b"/") == 2
