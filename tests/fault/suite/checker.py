"""Compares the topics after a run with what had to be there. Knows the product by its topics' formats alone.

Every count of `Findings.wrong` must be 0. The invariants are those of the design: I1 one terminal outcome an event,
I2 none without input, I3 State equals a recomputation, I4 committed offsets never pass open work, I6 model calls within
their budget; I5, progress after healing, is measured while the run goes on (see `rig`).
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tests.fault.suite.load import TRIES
from tests.fault.suite.truth import Place, Truth, answer, recompute

__all__ = ["Findings", "Snapshot", "check", "folded"]

EPOCH = 1 << 62
EXAMPLES = 3
CALLS_A_ROUND = 9
"""Three wire calls for each of three answers. A round allows six, but only a fault that spoils answers needs them, and that
one allows twenty rounds."""

Folded = dict[int, dict[bytes, bytes]]
"""Partition -> rows that a changelog ends with."""


@dataclass
class Findings:
    """What isn't as it must be, with a few examples of each."""

    wrong: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    """Sizes, for the report."""

    def add(self, what: str, example: object, n: int = 1) -> None:
        self.wrong[what] += n
        shown = self.examples.setdefault(what, [])
        if len(shown) < EXAMPLES:
            shown.append(str(example)[:300])

    def each(self, what: str, found: Iterable[object]) -> None:
        for one in found:
            self.add(what, one)

    @property
    def right(self) -> bool:
        return not self.wrong


@dataclass
class Snapshot:
    """All that a check needs; topics without their prefix, in the order of partitions and offsets."""

    prefix: str
    topics: dict[str, list[Any]]
    calls: list[dict[str, Any]] = field(default_factory=list)
    """The model server's log."""
    committed: dict[str, dict[int, int]] = field(default_factory=dict)
    """Topic -> partition -> offset of the group, at the end."""
    samples: list[Any] = field(default_factory=list)
    """See `watch.Sample`."""
    losses: int = 0
    """How often a worker lost its partitions, by its end or a rebalance: each time its calls in flight may be repeated."""
    reviews_allowed: bool = False
    """The model server was made to fail, or to answer badly."""
    rounds: int = 1
    """Rounds of the provider chain that an event may have taken."""
    in_flight: int = 0
    """Events that calls of one worker may hold at once."""

    def of(self, topic: str) -> list[Any]:
        return self.topics.get(topic, [])


def check(snap: Snapshot) -> Findings:
    """Everything."""
    found, truth = Findings(), recompute(snap.of("raw"))
    parts: list[Callable[[Findings, Snapshot, Truth], None]] = [
        _outcomes, _passed_on, _dead_letters, _order, _windows, _incidents, _late, _state_of_ingest, _state_of_classify,
        _offsets, _samples, _calls,
    ]  # fmt: skip
    for part in parts:
        part(found, snap, truth)
    found.counts |= {
        "records": truth.records, "events": len(truth.events), "dead": len(truth.dead), "windows": len(truth.windows),
        "late": truth.late.total(), "deep": len(truth.of_kind("message")), "calls": len(snap.calls),
        "samples": len(snap.samples),
    }  # fmt: skip
    return found


# -- I1, I2: outcomes ----------------------------------------------------------------------------------------------


def _outcomes(found: Findings, snap: Snapshot, truth: Truth) -> None:
    """Each accepted id: noise, or one result or review, of the right tier and category."""
    results, reviews = ([json.loads(r.value) for r in snap.of(name)] for name in ("ai-results", "manual-review"))
    ends = Counter([each["event_id"] for each in (*results, *reviews)])
    ends.update(_header(r, "headrace.event-id") for r in snap.of("sink-noise"))
    found.each("I1 lost", truth.events.keys() - ends.keys())
    found.each("I2 invented", ends.keys() - truth.events.keys())
    found.each("I1 copies", (name for name, n in ends.items() for _ in range(n - 1)))
    if not snap.reviews_allowed:
        found.each("review without a reason", (each["event_id"] for each in reviews))
    for each in results:
        event = truth.events.get(each["event_id"])
        if event is None:
            continue
        tier, category = answer(event)
        if (each["tier"], each["category"]) != (tier, category if category is not None else each["category"]):
            found.add("wrong result", each)
        place = (each["source"]["partition"], each["source"]["offset"])
        if place not in event.places or (event.keyed and place != event.place):
            found.add("result of another record", each)
    counts = Counter(each["tier"] for each in results)
    found.counts |= {f"results_{tier}": n for tier, n in counts.items()} | {"reviews": len(reviews)}


def _passed_on(found: Findings, snap: Snapshot, truth: Truth) -> None:
    """clean-events, sink-noise and model-requests: each event once, as it was received, where it belongs."""
    values = {(r.partition, r.offset): r.value for r in snap.of("raw")}
    noise = truth.of_kind("heartbeat")
    for topic, want in (("clean-events", truth.events.keys() - noise), ("sink-noise", noise)):
        names = Counter(_header(r, "headrace.event-id") for r in snap.of(topic))
        _compare(found, topic, names, Counter(want))
        for record in snap.of(topic):
            event, place = truth.events.get(_header(record, "headrace.event-id")), _origin(record)
            if event is not None and (place not in event.places or values[place] != record.value):
                found.add(f"{topic} not as received", place)
    asked = Counter(json.loads(r.value)["event_id"] for r in snap.of("model-requests"))
    _compare(found, "model-requests", asked, Counter(truth.of_kind("message", "note")))


def _dead_letters(found: Findings, snap: Snapshot, truth: Truth) -> None:
    """Each record that is no event, once, with its reason and bytes."""
    places = Counter(_dead_place(r) for r in snap.of("dead-letter"))
    _compare(found, "dead letters", places, Counter(truth.dead.keys()))
    for record in snap.of("dead-letter"):
        want = truth.dead.get(_dead_place(record))
        reason = _header(record, "headrace.reason")
        if (want is not None and want != (want[0] and reason, record.value)) or not reason:
            found.add("dead letter with another reason", (reason, want))


def _order(found: Findings, snap: Snapshot, truth: Truth) -> None:
    """Events of one entity stand in clean-events in the order in which they were sent."""
    last: dict[tuple[int, bytes], int] = {}
    for record in snap.of("clean-events"):
        event = truth.events.get(_header(record, "headrace.event-id"))
        if event is None or not event.keyed:
            continue
        partition, offset = _origin(record)
        if last.get((partition, record.key), -1) >= offset:
            found.add("order of an entity", (record.key, offset))
        last[partition, record.key] = offset


# -- windows -------------------------------------------------------------------------------------------------------


def _windows(found: Findings, snap: Snapshot, truth: Truth) -> None:
    written = Counter[tuple[str, int]]()
    for record in snap.of("agg-events"):
        got = json.loads(record.value)
        place = (got["entity"], got["start_ms"])
        written[place] += 1
        window = truth.windows.get(place)
        if window is None:
            continue
        want = window.shown()
        shown = {name: got[name] for name in want if name != "sequence"}
        shown["sequence"] = [(step["at_ms"], step["label"]) for step in got["sequence"]]
        if shown != want:
            found.add("window with other content", (place, shown, want))
    _compare(found, "windows", written, Counter(truth.windows.keys()))


def _incidents(found: Findings, snap: Snapshot, truth: Truth) -> None:
    """An incident for each closed window that meets the rule; perhaps already for an open one; none twice."""
    got = Counter(json.loads(r.value)["id"] for r in snap.of("agent-trigger"))

    def due(windows: dict[tuple[str, int], Any]) -> set[str]:
        return {
            f"{entity}@short@{start}@tries"
            for (entity, start), window in windows.items()
            if sum(kind == "fail" for _, _, kind in window.steps) >= TRIES
        }

    closed, maybe = due(truth.windows), due(truth.open)
    found.each("incidents lost", closed - got.keys())
    found.each("incidents invented", got.keys() - closed - maybe)
    found.each("incidents copies", (name for name, n in got.items() if n > 1))


def _late(found: Findings, snap: Snapshot, truth: Truth) -> None:
    _compare(found, "late events", Counter(_origin(r) for r in snap.of("late-events")), truth.late)


# -- I3: State -----------------------------------------------------------------------------------------------------


def folded(records: Iterable[Any]) -> Folded:
    """The rows that a changelog ends with; packed records are unpacked (their keys and prefixes are capital letters)."""
    rows: Folded = defaultdict(dict)
    for record in records:
        if record.value is None:
            rows[record.partition].pop(record.key, None)
        else:
            rows[record.partition][record.key] = record.value
    return rows


def _unpacked(rows: dict[bytes, bytes], records: bytes) -> Iterable[tuple[bytes, Any]]:
    for key, value in rows.items():
        if key[:1] == records:
            for row, content in msgspec.msgpack.decode(value):
                yield bytes(row), msgspec.msgpack.decode(content)


def _state_of_ingest(found: Findings, snap: Snapshot, truth: Truth) -> None:
    """Seen ids with their first record, panes of open windows, and the marker at the input's end."""
    state = folded(snap.of("headrace-ingest-raw-changelog"))
    seen: dict[str, Any] = {}
    panes: dict[tuple[int, str, int], int] = {}
    for partition, rows in state.items():
        for name, row in _unpacked(rows, b"S"):
            if name.decode() in seen:
                found.add("I3 id twice in State", name)
            seen[name.decode()] = (partition, row[0], row[2])
        for key, value in rows.items():
            if key[:1] == b"p":
                pane = msgspec.msgpack.decode(value)
                events = pane[0] + sum(late[0] for late in (pane[9] or {}).values())
                panes[partition, key[17:].decode(), int.from_bytes(key[9:17], "big") - EPOCH] = events
    want = {name: (*event.place, event.crc) for name, event in truth.events.items() if event.keyed}
    _compare_rows(found, "I3 seen ids", seen, want)
    _compare_rows(found, "I3 panes", panes, truth.panes)
    hopped = folded(snap.of("headrace-ingest-rekeyed-changelog"))
    ids = [name.decode() for rows in hopped.values() for name, _ in _unpacked(rows, b"S")]
    _compare(found, "I3 rekeyed ids", Counter(ids), Counter(n for n, e in truth.events.items() if not e.keyed))
    _markers(found, "ingest-raw", state, {p: end for p, (end, _) in truth.ends.items()})


def _state_of_classify(found: Findings, snap: Snapshot, truth: Truth) -> None:
    state = folded(snap.of("headrace-classify-changelog"))
    found.each("I3 open items left", (key for rows in state.values() for key in rows if key[:1] == b"o"))
    ends = {r.partition: r.offset for r in snap.of("model-requests")}
    _markers(found, "classify", state, ends)


def _markers(found: Findings, stage: str, state: Folded, ends: dict[int, int]) -> None:
    """The marker of each partition is at its last record."""
    for partition, end in ends.items():
        raw = state.get(partition, {}).get(b"\x00applied")
        stands = None if raw is None else msgspec.msgpack.decode(raw)[0]
        if stands != end:
            found.add("I3 marker", f"{stage} partition {partition}: marker {stands}, last record {end}")


# -- I4: offsets ---------------------------------------------------------------------------------------------------


def _offsets(found: Findings, snap: Snapshot, truth: Truth) -> None:
    """At the end everything is committed, and nothing beyond."""
    for partition, (end, _) in truth.ends.items():
        stood = snap.committed.get("raw", {}).get(partition)
        if stood != end + 1:
            found.add("committed offset at the end", f"raw {partition}: {stood}, the last record is {end}")


def _samples(found: Findings, snap: Snapshot, truth: Truth) -> None:
    """Whenever it was looked: what lies below a committed offset had its outcome in the log by then."""
    needs: dict[tuple[str, int], list[tuple[int, str, int, int]]] = defaultdict(list)
    first: dict[Place, tuple[str, int, int]] = {}
    for topic in ("clean-events", "sink-noise"):
        for record in snap.of(topic):
            event = truth.events.get(_header(record, "headrace.event-id"))
            if event is not None and event.keyed:
                first[_origin(record)] = (topic, record.partition, record.offset)
    for record in snap.of("dead-letter"):
        first[_dead_place(record)] = ("dead-letter", record.partition, record.offset)
    for (partition, offset), where in first.items():
        needs["raw", partition].append((offset, *where))
    stored = set()
    for record in snap.of("headrace-classify-changelog"):
        if record.key[:1] == b"o" and record.value is not None and (record.partition, record.key) not in stored:
            stored.add((record.partition, record.key))
            offset = int.from_bytes(record.key[1:], "big")
            needs["model-requests", record.partition].append(
                (offset, "headrace-classify-changelog", record.partition, record.offset)
            )
    for place, wanted in needs.items():
        _sampled(found, snap, place, sorted(wanted))


def _sampled(found: Findings, snap: Snapshot, place: tuple[str, int], wanted: list[tuple[int, str, int, int]]) -> None:
    highest: dict[tuple[str, int], int] = {}
    at = 0
    stood = -1
    for sample in snap.samples:
        committed = sample.committed.get(place)
        if committed is None:  # a broker that has just come back doesn't know its groups yet
            continue
        if committed < stood:
            found.add("committed offset went back", f"{place}: {stood} -> {committed}")
        stood = max(stood, committed)
        while at < len(wanted) and wanted[at][0] < stood:
            _, topic, partition, offset = wanted[at]
            highest[topic, partition] = max(highest.get((topic, partition), -1), offset)
            at += 1
        for there, offset in highest.items():
            if sample.ends.get(there, 1 << 62) <= offset:
                found.add("I4 committed past open work", f"{place} stood at {stood}, {there} had no {offset} yet")


# -- I6: model calls -----------------------------------------------------------------------------------------------


def _calls(found: Findings, snap: Snapshot, truth: Truth) -> None:
    """No text is asked more often than its attempts allow; right answers are paid twice only where a worker was lost."""
    asked = Counter(text for call in snap.calls for text in call["items"])
    unknown = asked.keys() - {event.text for event in truth.events.values()}
    found.each("I2 calls about nothing", unknown)
    most = CALLS_A_ROUND * snap.rounds + snap.losses * CALLS_A_ROUND
    found.each("I6 text asked too often", ((text, n) for text, n in asked.items() if n > most))
    right = Counter(
        text for call in snap.calls if call["fault"] == "answer" and call["done"]
        for text in call["items"]
    )  # fmt: skip
    again = sum(n - 1 for n in right.values())
    if again > snap.losses * snap.in_flight:
        found.add("I6 answers paid twice", f"{again}, with {snap.losses} losses of {snap.in_flight} in flight", again)
    found.counts |= {"answers_again": again, "most_asked": max(asked.values(), default=0)}


# -- small ---------------------------------------------------------------------------------------------------------


def _compare(found: Findings, what: str, got: Counter[Any], want: Counter[Any]) -> None:
    found.each(f"{what} lost", (want - got).elements())
    extra = got - want
    found.each(f"{what} invented", (one for one in extra if one not in want))
    found.each(f"{what} copies", (one for one in extra.elements() if one in want))


def _compare_rows(found: Findings, what: str, got: dict[Any, Any], want: dict[Any, Any]) -> None:
    found.each(f"{what} missing", want.keys() - got.keys())
    found.each(f"{what} too many", got.keys() - want.keys())
    found.each(f"{what} wrong", ((k, got[k], want[k]) for k in got.keys() & want.keys() if got[k] != want[k]))


def _header(record: Any, name: str) -> str:
    """The last header of a name, as Kafka's own lastHeader."""
    value = next((value for key, value in reversed(record.headers) if key == name), b"")
    return (value or b"").decode()


def _origin(record: Any) -> Place:
    _, partition, offset = _header(record, "headrace.origin").rsplit("/", 2)
    return int(partition), int(offset)


def _dead_place(record: Any) -> Place:
    return int(_header(record, "__connect.errors.partition")), int(_header(record, "__connect.errors.offset"))
