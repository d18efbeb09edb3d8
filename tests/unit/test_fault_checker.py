"""The fault suite's checker: right topics pass it, and each thing that may be wrong with them is found."""

import ast
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.fault.suite import checker, truth
from tests.fault.suite.checker import Snapshot, check
from tests.fault.suite.load import Stream
from tests.fault.suite.truth import Truth, answer, recompute
from tests.fault.suite.watch import Sample, longest_stall_s
from tests.helpers.source import syntax_tree

NOW_MS = 1_796_000_000_000


@dataclass
class Row:
    """A record of a topic."""

    partition: int
    offset: int
    key: Any
    value: Any
    headers: list[tuple[str, bytes]]
    timestamp: int = NOW_MS * 2  # no event is too far ahead of it


def header(**values: object) -> list[tuple[str, bytes]]:
    names = {"origin": "headrace.origin", "id": "headrace.event-id", "reason": "headrace.reason",
             "partition": "__connect.errors.partition", "offset": "__connect.errors.offset"}  # fmt: skip
    return [(names[name], str(value).encode()) for name, value in values.items()]


def right(seed: int = 1, count: int = 1500) -> Snapshot:
    """Topics as a run leaves them in which nothing went wrong."""
    ends = [0, 0]
    raw = []
    ticks = itertools.count()
    clock = lambda: NOW_MS / 1000 + next(ticks) * 0.01  # noqa: E731  # 100 events a second
    for key, value in Stream(seed, clock).take(count):
        partition = (key or b"x")[-1] % 2
        raw.append(Row(partition, ends[partition], key, value, []))
        ends[partition] += 1
    raw.sort(key=lambda r: (r.partition, r.offset))
    want = recompute(raw)
    snap = Snapshot("", {"raw": raw}, committed={"raw": dict(enumerate(ends))}, in_flight=10)
    outcomes(snap, want)
    state(snap, want)
    place = {("raw", p): end for p, end in enumerate(ends)}
    snap.samples = [Sample(0.0, dict.fromkeys(place, 0), {}), Sample(1.0, place, {})]
    return snap


def put(snap: Snapshot, topic: str, partition: int, key: Any, value: Any, headers: list[Any] | None = None) -> None:
    rows = snap.topics.setdefault(topic, [])
    raw = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
    rows.append(Row(partition, len(rows), key, raw, headers or []))


def outcomes(snap: Snapshot, want: Truth) -> None:
    by_place, texts = {(r.partition, r.offset): r for r in snap.of("raw")}, set[str]()
    for name, event in sorted(want.events.items(), key=lambda item: item[1].place):
        record, (partition, offset) = by_place[event.place], event.place
        headers = header(origin=f"raw/{partition}/{offset}", id=name)
        if event.kind == "heartbeat":
            put(snap, "sink-noise", partition, record.key, record.value, headers)
            continue
        put(snap, "clean-events", partition, record.key, record.value, headers)
        tier, category = answer(event)
        source = {"partition": partition, "offset": offset}
        put(snap, "ai-results", 0, name.encode(),
            {"event_id": name, "tier": tier, "category": category or "order", "source": source})  # fmt: skip
        if tier != "rule":
            put(snap, "model-requests", 0, b"h", {"event_id": name})
        if tier == "deep" and event.text not in texts:
            texts.add(event.text)
            snap.calls.append({"items": [event.text], "fault": "answer", "done": True})
    for (partition, offset), (reason, value) in want.dead.items():
        put(snap, "dead-letter", partition, b"k", value, header(reason=reason, partition=partition, offset=offset))
    for (entity, start), window in want.windows.items():
        shown = window.shown()
        shown["sequence"] = [{"at_ms": at_ms, "label": kind} for at_ms, kind in shown["sequence"]]
        put(snap, "agg-events", 0, entity.encode(), {"entity": entity, "start_ms": start, **shown})
        if shown["counts"].get("fail", 0) >= 3:
            put(snap, "agent-trigger", 0, entity.encode(), {"id": f"{entity}@short@{start}@tries"})
    for (partition, offset), n in want.late.items():
        for _ in range(n):
            put(snap, "late-events", 0, b"k", b"", header(origin=f"raw/{partition}/{offset}"))


def state(snap: Snapshot, want: Truth) -> None:
    pack, ingest = msgspec.msgpack.encode, "headrace-ingest-raw-changelog"
    for name, event in want.events.items():
        partition, offset = event.place
        packed = pack([(name.encode(), pack([offset, 0, event.crc, "", ""]))])
        changelog = ingest if event.keyed else "headrace-ingest-rekeyed-changelog"
        put(snap, changelog, partition, b"S" + name.encode(), packed)
    for (partition, entity, hop), events in want.panes.items():
        key = b"p" + b"8 bytes." + (hop + checker.EPOCH).to_bytes(8, "big") + entity.encode()
        put(snap, ingest, partition, key, pack([events, 0, 0, 0, 0, {}, 0, [], [], None, -1]))
    for partition, (end, _) in want.ends.items():
        put(snap, ingest, partition, b"\x00applied", pack([end, 0, 0, "x"]))
    last = len(snap.of("model-requests")) - 1
    for offset in range(last + 1):
        put(snap, "headrace-classify-changelog", 0, b"o" + offset.to_bytes(8, "big"), b"item")
        put(snap, "headrace-classify-changelog", 0, b"o" + offset.to_bytes(8, "big"), None)
    put(snap, "headrace-classify-changelog", 0, b"\x00applied", pack([last, 0, 0, "x"]))


def test_what_is_right_passes_with_something_of_every_kind() -> None:
    found = check(right())
    assert found.wrong == {}
    for what in ("events", "dead", "windows", "late", "deep", "calls"):
        assert found.counts[what] > 10, what


def drop(topic: str) -> Callable[[Snapshot], None]:
    return lambda snap: snap.topics[topic].__delitem__(len(snap.topics[topic]) // 2)


def double(topic: str) -> Callable[[Snapshot], None]:
    return lambda snap: snap.topics[topic].append(snap.topics[topic][len(snap.topics[topic]) // 2])


def edit(topic: str, **fields: object) -> Callable[[Snapshot], None]:
    def act(snap: Snapshot) -> None:
        row = snap.topics[topic][len(snap.topics[topic]) // 2]
        row.value = json.dumps({**json.loads(row.value), **fields}).encode()

    return act


def swap(snap: Snapshot) -> None:
    """Two events of one entity change places."""
    rows = snap.topics["clean-events"]
    first = next(row for row in rows if row.key is not None)
    second = next(row for row in rows if row.key == first.key and row is not first)
    first.value, second.value = second.value, first.value
    first.headers, second.headers = second.headers, first.headers


def reason(snap: Snapshot) -> None:
    snap.topics["dead-letter"][3].headers = [
        (name, b"too-large" if name == "headrace.reason" else value)
        for name, value in snap.topics["dead-letter"][3].headers
    ]


def beyond(snap: Snapshot) -> None:
    """A committed offset is seen before the outcome of the record below it is in the log."""
    snap.samples[1].ends["clean-events", 0] = 5


def back(snap: Snapshot) -> None:
    snap.samples.append(Sample(2.0, {("raw", 0): 1}, {}))


def undone(snap: Snapshot) -> None:
    snap.topics["headrace-classify-changelog"] = [
        row for row in snap.topics["headrace-classify-changelog"] if row.value is not None
    ]


def short(snap: Snapshot) -> None:
    snap.committed["raw"][0] -= 1


def paid_twice(snap: Snapshot) -> None:
    snap.calls += snap.calls[:2]


def asked_often(snap: Snapshot) -> None:
    snap.calls += [{**snap.calls[0], "fault": "raw"}] * 10


WRONG: dict[str, tuple[Callable[[Snapshot], None], str]] = {
    "a result is lost": (drop("ai-results"), "I1 lost"),
    "a result is there twice": (double("ai-results"), "I1 copies"),
    "a result of nothing": (edit("ai-results", event_id="nobody"), "I2 invented"),
    "a wrong category": (edit("ai-results", category="nothing"), "wrong result"),
    "a wrong tier": (edit("ai-results", tier="review"), "wrong result"),
    "a result of another record": (edit("ai-results", source={"partition": 0, "offset": 0}), "result of another record"),
    "a review without need": (
        lambda snap: put(snap, "manual-review", 0, b"e", {"event_id": "e1"}), "review without a reason"
    ),
    "a clean event is lost": (drop("clean-events"), "clean-events lost"),
    "noise is there twice": (double("sink-noise"), "sink-noise copies"),
    "a request is there twice": (double("model-requests"), "model-requests copies"),
    "an entity's order": (swap, "order of an entity"),
    "a dead letter is lost": (drop("dead-letter"), "dead letters lost"),
    "a dead letter is there twice": (double("dead-letter"), "dead letters copies"),
    "a dead letter's reason": (reason, "dead letter with another reason"),
    "a window is lost": (drop("agg-events"), "windows lost"),
    "a window is there twice": (double("agg-events"), "windows copies"),
    "a window's count": (edit("agg-events", events=999), "window with other content"),
    "an incident is lost": (drop("agent-trigger"), "incidents lost"),
    "an incident is there twice": (double("agent-trigger"), "incidents copies"),
    "a late event is lost": (drop("late-events"), "late events lost"),
    "an id is not in State": (drop("headrace-ingest-raw-changelog"), "I3 seen ids missing"),
    "an open item is left": (undone, "I3 open items left"),
    "the last offset isn't committed": (short, "committed offset at the end"),
    "an offset passed open work": (beyond, "I4 committed past open work"),
    "an offset went back": (back, "committed offset went back"),
    "answers are paid twice": (paid_twice, "I6 answers paid twice"),
    "a text is asked too often": (asked_often, "I6 text asked too often"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_found(what: str) -> None:
    act, word = WRONG[what]
    snap = right()
    act(snap)
    assert word in check(snap).wrong


def test_a_partition_that_stands_still_with_input_is_a_stall() -> None:
    ends = {("raw", 0): 10}
    at = [(0.0, 3), (5.0, 3), (9.0, 4), (10.0, 10), (50.0, 10)]
    samples = [Sample(time, {("raw", 0): stood}, ends) for time, stood in at]
    assert longest_stall_s(samples) == 5.0


def test_the_checker_uses_nothing_of_the_product() -> None:
    for module in (checker, truth):
        tree = syntax_tree(Path(str(module.__file__)))
        names = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        names += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
        assert not [name for name in names if name.split(".")[0] in ("app", "agents", "models", "tables")]
