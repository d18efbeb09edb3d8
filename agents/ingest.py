"""Ingest: validate, deduplicate, drop noise, and let rules decide, all on one decoded batch in one transaction.

What no rule decides goes to `model-requests`; clean-events is written for others. Records without a key, and sources
that say `rekey`, take a hop by event_id first, so that copies of an event meet in one partition.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, TypeAlias
from zlib import crc32

import msgspec

from agents.dead import bury, failed
from agents.expiry import Expiry
from agents.upstream import HOP, Upstream, entity_of, upstream_of
from agents.windows import WindowChain, chained
from app.core import App, add_stage
from app.delivery.lane import Lane
from app.delivery.maps import Map
from app.delivery.outbox import LARGE_BYTES, Outbox
from app.delivery.stage import Batch
from app.logic.progress import Progress, progress_of
from app.logic.rekey import rekey_headers, unwrap
from app.logic.requests import request_key
from app.logic.rules import NeedsModel, NoiseRules, RuleAnswer, TaskRouter, condition_fields
from app.settings import Settings
from app.sources.source import Source, compile_source
from models.events import Bad, Event, Headers, ModelRequest, Origin, Record
from models.results import Result
from models.results import Source as ResultSource
from tables.progress import SAID
from tables.seen import SEEN, Seen

__all__ = ["Ingest", "declare"]

_json = msgspec.json.Encoder().encode
_pack = msgspec.msgpack.Encoder().encode
_unpack_seen = msgspec.msgpack.Decoder(Seen).decode

SMALL_BYTES = LARGE_BYTES // 2
"""Key and value of a record that is surely below LARGE_BYTES with our headers."""


ACCEPTED = ("accepted", "")

Own: TypeAlias = list[tuple[str, bytes | None]]
"""Headers of ours."""
Good: TypeAlias = tuple[Record, Source, Event, int]
"""A valid event, where it came from, and the offset of the record that this stage read: the raw one, or the rekeyed."""


class Ingest:
    """The stage's logic. With `hop` it reads our own rekeyed topic, else a source's topic."""

    def __init__(
        self, settings: Settings, name: str, sources: dict[str, Source], rules: tuple[NoiseRules, TaskRouter], hop: bool,
        topic: str = "",
    ) -> None:  # fmt: skip
        self.name, self.hop = name, hop
        self.use(sources, rules)
        self.horizon_ms = int(settings.ingest.dedup_horizon_s * 1000)
        self.clean, self.sink = settings.topic("clean-events"), settings.topic("sink-noise")
        self.dead_topic, self.rekeyed = settings.topic("dead-letter"), settings.topic("rekeyed")
        self.requests, self.results = settings.topic("model-requests"), settings.topic("ai-results")
        self.tasked = bool(settings.tasks)
        self.expiry = Expiry(SEEN, self.horizon_ms)
        self._prefixes: dict[tuple[str, int], bytes] = {}
        aggregates = [] if self._only is None else chained(settings, self._only.name)
        self.windows = WindowChain(settings, aggregates, topic) if aggregates else None
        self.upstream: Upstream | None = upstream_of(settings, name, None if self._only is None else self._only.name)
        self._windowed = {name for a in settings.aggregates for name in settings.over(a)}
        self._clean: list[tuple[Record, Event]] = []
        self._passed: list[tuple[Record, Event, Source]] = []
        self._heard: list[Progress] = []
        self._asked: list[tuple[Record, Event, NeedsModel, Source]] = []
        """Of the batch at hand: what goes on to clean-events; what moves event time for the stage `windows`, or counts
        there; what partitions before this stage said; what no rule decided."""

    def use(self, sources: dict[str, Source], rules: tuple[NoiseRules, TaskRouter]) -> None:
        """Takes other rules, between two batches."""
        self.sources = sources
        self.noise, self.router = rules
        self._only = next(iter(sources.values())) if not self.hop else None
        self._noise_of = {name: self.noise.of(name) for name in sources}

    def decide(self, batch: Batch) -> None:
        """Validates and deduplicates a batch; then each new event goes its way."""
        out, now_ms = batch.out, batch.out.now_ms
        self._passed, self._heard = [], []
        good = self._read(batch)
        keys = [event.event_id.encode() for _, _, event, _ in good]
        mine: dict[bytes, int] = {}
        self._clean, self._asked = [], []
        rows: list[tuple[bytes, bytes]] = []
        outcomes: list[tuple[str, str]] = []
        for (record, source, event, offset), key, was in zip(good, keys, batch.state.get_raw(SEEN, keys), strict=True):
            crc = crc32(record.value or b"")
            first = mine.get(key)
            if first is None and was is not None:
                first = self._within_horizon(was, now_ms)
            if first is not None:
                outcomes.append(("duplicate" if first == crc else "conflict", source.name))
                continue
            mine[key] = crc
            outcome = self._route(out, record, source, event, key)
            outcomes.append(outcome)
            rows.append((key, _pack(Seen(offset, now_ms, crc, outcome[0], outcome[1]))))
        if rows:
            out.put_packed(SEEN, now_ms, batch.records[0].offset, rows)
        for (outcome_name, detail), n in Counter(outcomes).items():
            out.count(outcome_name, detail, n)
        if self.windows is not None:
            self.windows.take(batch, self._clean)
        if self.upstream is not None:
            self.upstream.take(batch, self._passed, self._heard)
        self._ask(batch)

    def _within_horizon(self, was: bytes, now_ms: int) -> int | None:
        """The checksum of an id's first record, or None where it is older than the horizon."""
        seen = _unpack_seen(was)
        return seen.crc if seen.at_ms > now_ms - self.horizon_ms else None

    def _read(self, batch: Batch) -> list[Good]:
        """The valid events; what isn't one is a dead letter, and what must hop is sent on."""
        source = self._only
        if source is None:
            return self._read_rekeyed(batch)
        good: list[Good] = []
        for record, event in zip(batch.records, source.read_all(batch.records), strict=True):
            if isinstance(event, Bad):
                bury(batch.out, self.dead_topic, record, event, self.name)
            elif source.rekey or not record.key:
                headers = rekey_headers(record, source.name)
                batch.out.send(self.rekeyed, event.event_id.encode(), record.value, headers)
                batch.out.count("rekeyed", source.name)
                if source.rekey and self.upstream is not None:
                    self._passed.append((record, event, source))
            else:
                good.append((record, source, event, record.offset))
        return good

    def _read_rekeyed(self, batch: Batch) -> list[Good]:
        """Of our own rekeyed topic, where each record says which source it came from."""
        good: list[Good] = []
        for record in batch.records:
            progress = None if record.key is not None else progress_of(record)
            if progress is not None:
                self._heard.append(progress)
                continue
            origin, source_name = unwrap(record)
            source = self.sources.get(source_name)
            if source is None:
                bad = Bad(reason="bad-field", field="headrace.source", message="no source of that name is declared")
                bury(batch.out, self.dead_topic, record, bad, self.name)
                continue
            event = source.read(origin)
            if isinstance(event, Bad):
                bury(batch.out, self.dead_topic, origin, event, self.name)
            else:
                good.append((origin, source, event, record.offset))
        return good

    def _route(self, out: Outbox, record: Record, source: Source, event: Event, key: bytes) -> tuple[str, str]:
        """Sends a new event where it belongs; returns its outcome and the rule or task that decided."""
        dropped = self._why_dropped(source, event)
        place = (record.topic, record.partition)
        prefix = self._prefixes.get(place)
        if prefix is None:
            prefix = self._prefixes[place] = f"{record.topic}/{record.partition}/".encode()
        headers: Own = [("headrace.origin", prefix + b"%d" % record.offset), ("headrace.event-id", key)]
        if dropped is not None:
            headers.append(("headrace.rule", dropped[1].encode()))
        topic = self.clean if dropped is None else self.sink
        # As it was received, keyed by its entity, with our headers behind its own.
        entity = entity_of(record, event, source) if self.hop else record.key or b""
        value = record.value or b""
        if record.headers or len(entity) + len(value) > SMALL_BYTES:
            out.send(topic, entity, value, [*record.headers, *headers])
        else:
            out.rows(topic).append((entity, value, headers))
        if dropped is not None:
            return dropped
        if self.windows is not None:
            self._clean.append((record, event))
        if self.upstream is not None:
            self._passed.append((record, event, source))
        if self.hop and not source.rekey and source.name in self._windowed:
            out.count("unkeyed", source.name)
        return self._task(out, record, source, event, key) if self.tasked else ACCEPTED

    def _why_dropped(self, source: Source, event: Event) -> tuple[str, str] | None:
        """The outcome of an event that goes to sink-noise, and by which rule; None: it doesn't."""
        if source.types and event.event_type not in source.types:
            return "filtered", "source-types"
        rule = self._noise_of[source.name](event)
        return None if rule is None else ("noise", rule)

    def _task(self, out: Outbox, record: Record, source: Source, event: Event, key: bytes) -> tuple[str, str]:
        route = self.router.route(event, source.name)
        if type(route) is RuleAnswer:
            result = rule_result(record, event, route, out.now_ms)
            out.send(self.results, key, _json(result), trace_headers(event))
            out.latencies.setdefault("rule", []).append(result.latency_ms / 1000)
            out.decide(route.task, "rule", event.text)
            return "rule", route.rule
        if type(route) is NeedsModel:
            self._asked.append((record, event, route, source))
            return "asked", route.task
        return "untasked", ""

    def _ask(self, batch: Batch) -> None:
        """Sends on what no rule decided. Last, since an intent rule may have something to say about it."""
        asked, out = self._asked, batch.out
        said = [""] * len(asked)
        if self.windows is not None:
            said = self.windows.deep_rules(batch, [(record, event) for record, event, _, _ in asked])
        for (record, event, route, source), rule in zip(asked, said, strict=True):
            request = model_request(record, event, route, self.router.marks(event, source.name))
            if rule and not request.skip_light:
                request.skip_light, request.hint = True, rule
            out.send(self.requests, request_key(route.task, event.text), _json(request), trace_headers(event))

    def dead(self, batch: Batch, record: Record, error: Exception) -> None:
        origin = record if self._only is not None else unwrap(record)[0]
        bury(batch.out, self.dead_topic, origin, failed(error, self.name), self.name)

    def tick(self, lane: Lane, now_ms: int) -> None:
        self.expiry.tick(lane, now_ms)
        if self.windows is not None:
            self.windows.tick(lane)
        if self.upstream is not None:
            self.upstream.tick(lane)

    def ready(self, lane: Lane) -> None:
        if self.windows is not None:
            self.windows.ready(lane)
        if self.upstream is not None:
            self.upstream.ready(lane)

    def closed(self, lane: Lane) -> None:
        if self.windows is not None:
            self.windows.closed(lane)
        if self.upstream is not None:
            self.upstream.closed(lane)

    def committed(self, lane: Lane) -> None:
        if self.windows is not None:
            self.windows.committed(lane)

    def room(self, lane: Lane) -> bool:
        return self.windows is None or self.windows.room(lane)


def rule_result(record: Record, event: Event, route: RuleAnswer, now_ms: int) -> Result:
    return Result(
        event_id=event.event_id,
        event_type=event.event_type,
        task=route.task,
        category=route.category,
        confidence=1.0,
        tier="rule",
        why=route.rule,
        latency_ms=max(0, now_ms - record.timestamp),
        created_ms=now_ms,
        source=ResultSource(record.topic, record.partition, record.offset),
        entity=event.entity,
        trace_id=event.trace_id,
    )


def model_request(record: Record, event: Event, route: NeedsModel, marks: list[str]) -> ModelRequest:
    return ModelRequest(
        event_id=event.event_id,
        event_type=event.event_type,
        event_time_ms=event.event_time_ms,
        entity=event.entity,
        task=route.task,
        text=event.text,
        source=Origin(record.topic, record.partition, record.offset),
        trace_id=event.trace_id,
        received_ms=record.timestamp,
        skip_light=route.skip_light,
        hint=route.hint,
        marks=marks,
    )


def trace_headers(event: Event) -> Headers:
    return (("headrace.trace-id", event.trace_id.encode()),) if event.trace_id else ()


def compiled(settings: Settings) -> tuple[dict[str, Source], tuple[NoiseRules, TaskRouter]]:
    """Sources and rules, ready to be used.

    Raises:
        SettingsError: a mapping or rule is wrong.
    """
    fields = condition_fields(settings)
    sources = {s.name: compile_source(s, settings, fields, with_text=bool(settings.tasks)) for s in settings.sources}
    return sources, (NoiseRules(settings), TaskRouter(settings))


def maps_of(logic: Ingest) -> list[Map[Any]]:
    windows: tuple[Map[Any], ...] = () if logic.windows is None else logic.windows.maps
    return [SEEN, *windows, *(() if logic.upstream is None else (SAID,))]


def declare(app: App) -> None:
    """Adds an ingest stage for every source, and one for the rekeyed topic."""
    settings = app.settings
    sources, rules = compiled(settings)
    logics: list[Ingest] = []
    for source in settings.sources:
        name, topic = f"ingest-{source.name}", settings.source_topic(source)
        logic = Ingest(settings, name, {source.name: sources[source.name]}, rules, hop=False, topic=topic)
        logics.append(logic)
        add_stage(
            app,
            name=name,
            topic=topic,
            logic=logic,
            maps=maps_of(logic),
            start=source.start,
            help=f"Validates and deduplicates {source.topic}; rules decide what they can.",
        )
    logics.append(Ingest(settings, HOP, sources, rules, hop=True))
    add_stage(
        app,
        name=HOP,
        topic=settings.topic("rekeyed"),
        logic=logics[-1],
        maps=maps_of(logics[-1]),
        help="The same for events that had to be keyed by their event_id first.",
    )

    def prepare(changed: Settings) -> Callable[[], None]:
        sources, rules = compiled(changed)

        def switch() -> None:
            for logic in logics:
                logic.use(sources if logic.hop else {name: sources[name] for name in logic.sources}, rules)

        return switch

    app.reloadable.append(prepare)
