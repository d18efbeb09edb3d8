"""What a worker's State holds, as JSON: pages of its maps, and what they know of one event, entity, review or result."""

import heapq
import json
from collections.abc import Iterator, Mapping
from itertools import islice
from operator import itemgetter
from typing import Any

import msgspec
from aiohttp import web

from agents.hopping import Hopping
from agents.ingest import Ingest
from agents.open_windows import open_windows
from agents.prompts import told
from agents.results import STAGE as RESULTS_STAGE
from agents.review import waiting
from app.core import App
from app.delivery.lane import Lane
from app.delivery.maps import Map, PackedMap
from tables.open_work import ANSWERED, OPEN
from tables.panes import FIRED, PANES, read_place, show_place
from tables.results import KEPT
from tables.reviews import DECIDED, REVIEWS, WAITING, ReviewRow, at_of, read_at, show_at
from tables.seen import SEEN

__all__ = ["StatePages", "as_json", "read_key", "show_key"]

MAX_PAGE = 1000
REVIEWS_LOOKED_AT = 20_000
"""Waiting reviews a partition is searched for those of one task or cause, at most: a fraction of a second."""
DEFAULT_PAGE = 50


def as_json(value: Any, status: int = 200) -> web.Response:
    """A response with a value in which rows may stand."""
    return web.Response(
        text=json.dumps(value, ensure_ascii=False, default=_plain) + "\n",
        status=status,
        content_type="application/json",
    )


def _plain(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else msgspec.to_builtins(value)


def show_key(of: Map[Any], key: bytes) -> str | int:
    """A key as a person writes it: text, or the number that an offset key holds."""
    if of is PANES or of is FIRED:
        return show_place(key)
    if of is WAITING or of is DECIDED:
        return show_at(key)
    return int.from_bytes(key, "big") if of is OPEN else key.decode("utf-8", "replace")


def read_key(of: Map[Any], text: str) -> bytes:
    """The key that `show_key` shows; of a text that can't be one, a key that isn't there."""
    if of is PANES or of is FIRED:
        return read_place(text)
    if of is WAITING or of is DECIDED:
        return read_at(text)
    is_offset = of is OPEN and text.isdecimal() and len(text) < 20  # more digits can't be one (int64)
    return int(text).to_bytes(8, "big") if is_offset else text.encode()


def show_value(value: Any) -> Any:
    """A row as an object with names, also where it is stored as an array."""
    if isinstance(value, msgspec.Struct):
        return {name: show_value(getattr(value, name)) for name in value.__struct_fields__}
    return value


def _limit(request: web.Request) -> int:
    """How many rows a request asks for, within MAX_PAGE.

    Raises:
        ValueError: that is no number.
    """
    return min(MAX_PAGE, max(1, int(request.query.get("limit", DEFAULT_PAGE))))


def _hopping(lane: Lane) -> Hopping | None:
    """What makes windows in a lane; None: nothing."""
    logic = lane.stage.logic
    return logic.windows if isinstance(logic, Ingest) else logic if isinstance(logic, Hopping) else None


class StatePages:
    """The handlers. They read partitions that run; of what is being restored no rows are shown."""

    def __init__(self, app: App) -> None:
        self.app = app

    @property
    def lanes(self) -> list[Lane]:
        return [lane for lane in self.app.delivery.lanes.values() if lane.ready]

    async def tables(self, request: web.Request) -> web.Response:
        found = []
        for stage in self.app.delivery.stages.values():
            mine = [lane for lane in self.app.delivery.lanes.values() if lane.stage is stage]
            found.append(
                {
                    "state": stage.state.name,
                    "topic": stage.topic,
                    "partitions": sorted(lane.tp.partition for lane in mine if lane.ready),
                    "restoring": sorted(lane.tp.partition for lane in mine if not lane.ready and not lane.stopped),
                    "stopped": {str(lane.tp.partition): lane.stopped for lane in mine if lane.stopped},
                    "positions": {str(lane.tp.partition): lane.position + 1 for lane in mine if lane.ready},
                    "maps": [
                        {"name": m.name, "help": m.help, "keys_estimate": self._estimate(stage.state, m)}
                        for m in stage.state.maps.values()
                    ],
                    "bytes": sum(stage.state.database(p).size_bytes() for p in stage.state.store.partitions),
                }
            )
        return as_json(found)

    @staticmethod
    def _estimate(state: Any, of: Map[Any]) -> int:
        return sum(state.database(p).keys_estimate() for p in state.store.partitions) if len(state.maps) == 1 else -1

    def _find(self, request: web.Request) -> tuple[Map[Any], list[Lane]]:
        name, map_name = request.match_info["state"], request.match_info["map"]
        lanes = [lane for lane in self.lanes if lane.stage.state.name == name]
        stage = next((s for s in self.app.delivery.stages.values() if s.state.name == name), None)
        if stage is None or map_name not in stage.state.maps:
            known = [f"{s.state.name}/{m}" for s in self.app.delivery.stages.values() for m in s.state.maps]
            raise web.HTTPNotFound(text=json.dumps({"error": f"no such table; there are {known}"}))
        return stage.state.maps[map_name], sorted(lanes, key=lambda lane: lane.tp.partition)

    async def rows(self, request: web.Request) -> web.Response:
        """One page, over the partitions of this worker in order; `next` continues it."""
        of, lanes = self._find(request)
        if "key" in request.query:
            return self._row(of, lanes, request.query["key"], absent=200)
        try:
            limit, first = _limit(request), int(request.query.get("partition", 0))
            start = bytes.fromhex(request.query.get("start", ""))
        except ValueError:
            return as_json({"error": "limit and partition are whole numbers, start is a key in hex"}, 400)
        only = "only" in request.query
        rows: list[dict[str, Any]] = []
        following: dict[str, Any] | None = None
        for lane in lanes:
            partition = lane.tp.partition
            if partition < first or (only and partition != first):
                continue
            for key, value in lane.view.scan(of, start if partition == first else b"", limit - len(rows) + 1):
                if len(rows) == limit:
                    following = {"partition": partition, "start": key.hex()}
                    break
                rows.append(
                    {"partition": partition, "key": show_key(of, key), "value": show_value(value), "hex": key.hex()}
                )
            if following:
                break
        return as_json({"rows": rows, "next": following, "partitions": [lane.tp.partition for lane in lanes]})

    async def row(self, request: web.Request) -> web.Response:
        of, lanes = self._find(request)
        return self._row(of, lanes, request.match_info["key"], absent=404)

    @staticmethod
    def _row(of: Map[Any], lanes: list[Lane], text: str, absent: int) -> web.Response:
        key = read_key(of, text)
        found = [
            {"partition": lane.tp.partition, "key": show_key(of, key), "value": show_value(value)}
            for lane in lanes
            if (value := lane.view.get(of, key)) is not None
        ]
        return as_json({"rows": found, "partitions": [lane.tp.partition for lane in lanes]}, 200 if found else absent)

    async def trace(self, request: web.Request) -> web.Response:
        """Looks an event_id up in every partition this worker owns; a few key look-ups each."""
        key = request.match_info["event_id"].encode()
        found: list[dict[str, Any]] = []
        for lane in self.lanes:
            maps = lane.stage.state.maps.values()
            for of in (m for m in maps if isinstance(m, PackedMap) and m in (SEEN, ANSWERED)):
                value = lane.view.get(of, key)
                if value is not None:
                    prompt = told(lane.view, key) if of is ANSWERED else {}
                    found.append({**self._step(lane, of, value), **prompt})
            if OPEN in maps:
                found.extend(self._open_steps(lane, key.decode()))
            if REVIEWS in maps and (row := lane.view.get(REVIEWS, key)) is not None:
                found.extend(self._review_steps(lane, row))
        return as_json({"event_id": key.decode(), "steps": found})

    async def windows(self, request: web.Request) -> web.Response:
        """An entity's open windows in every partition of this worker."""
        entity = request.match_info["entity"].encode()
        found: list[dict[str, Any]] = []
        for lane in self.lanes:
            hopping = _hopping(lane)
            if hopping is not None:
                its = open_windows(lane.view, hopping.aggregates, lane.tp.topic, entity)
                found += [{"state": lane.stage.state.name, **show_value(window)} for window in its]
        return as_json({"entity": entity.decode(), "windows": found})

    async def reviews(self, request: web.Request) -> web.Response:
        """Reviews that wait in this worker's partitions, the oldest first; `waiting` counts all of them."""
        try:
            limit = _limit(request)
        except ValueError:
            return as_json({"error": "limit is a whole number"}, 400)
        lanes = [lane for lane in self.app.delivery.lanes.values() if WAITING in lane.stage.state.maps.values()]
        ready = [lane for lane in lanes if lane.ready]
        rows = heapq.merge(*(self._waiting(lane, request.query) for lane in ready), key=itemgetter("at_ms"))
        return as_json(
            {
                "reviews": list(islice(rows, limit)),
                "waiting": sum(waiting(lane.view) for lane in ready),
                "restoring": sorted(lane.tp.partition for lane in lanes if not lane.ready),
            }
        )

    @staticmethod
    def _waiting(lane: Lane, wanted: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        task, cause = wanted.get("task", ""), wanted.get("cause", "")
        for key, its in lane.view.scan(WAITING, limit=REVIEWS_LOOKED_AT):
            if task and its != task:
                continue
            row = lane.view.get(REVIEWS, at_of(key)[1])
            if row is not None and (not cause or row.review.cause == cause):
                yield {"at_ms": row.at_ms, "partition": lane.tp.partition, "review": show_value(row.review)}

    async def result(self, request: web.Request) -> web.Response:
        """The result of an event, byte for byte as it stands on `ai-results`."""
        event_id, partition = request.query.get("event_id", ""), request.query.get("partition", "")
        lanes = [
            lane
            for lane in self.app.delivery.lanes.values()
            if lane.stage.name == RESULTS_STAGE and str(lane.tp.partition) == partition
        ]
        if not lanes or lanes[0].stopped:
            return as_json({"error": lanes[0].stopped if lanes else "another worker has this partition"}, 421)
        if not lanes[0].ready:
            return as_json({"error": "the partition is being restored"}, 503)
        kept = lanes[0].view.get(KEPT, event_id.encode("utf-8", "surrogatepass"))
        if kept is None:
            return as_json({"error": "no result is kept"}, 404)
        return web.Response(body=kept.result, content_type="application/json")

    @staticmethod
    def _step(lane: Lane, of: Map[Any], value: Any) -> dict[str, Any]:
        return {
            "stage": lane.stage.name, "map": of.name, "topic": lane.tp.topic, "partition": lane.tp.partition,
            **show_value(value),
        }  # fmt: skip

    @staticmethod
    def _review_steps(lane: Lane, row: ReviewRow) -> list[dict[str, Any]]:
        here = {"stage": lane.stage.name, "topic": lane.tp.topic, "partition": lane.tp.partition}
        review, decision = row.review, row.decision
        opened = {
            **here, "map": WAITING.name, "at_ms": review.created_ms, "task": review.task, "cause": review.cause,
            "open": decision is None,
        }  # fmt: skip
        if decision is None:
            return [opened]
        decided = {
            **here, "map": DECIDED.name, "at_ms": row.at_ms, "category": decision.category,
            "reviewer": decision.reviewer, "note": decision.note, "tier": "review",
        }  # fmt: skip
        return [opened, decided]

    @staticmethod
    def _open_steps(lane: Lane, event_id: str) -> list[dict[str, Any]]:
        known = lane.stage.logic.open_items(lane, event_id)  # type: ignore[attr-defined]
        return [
            {
                "stage": lane.stage.name, "map": OPEN.name, "topic": lane.tp.topic, "partition": lane.tp.partition,
                "offset": int.from_bytes(key, "big"), "at_ms": item.opened_ms, "task": item.request.task,
                "light_category": item.light_category, "light_confidence": item.light_confidence,
            }
            for key, item in known
        ]  # fmt: skip
