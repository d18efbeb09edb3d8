"""Ingest: validate, deduplicate, drop noise, and let rules decide, all on one decoded batch in one transaction.

What no rule decides goes to `model-requests`; clean-events is written for others. Records without a key, and sources
that say `rekey`, take a hop by event_id first, so that copies of an event meet in one partition.
"""

import zlib
from typing import TypeAlias

import msgspec
from aiokafka.structs import ConsumerRecord

from agents.expiry import Expiry
from app.core import App, add_stage
from app.delivery.lane import Lane
from app.delivery.outbox import Outbox
from app.delivery.stage import Batch
from app.logic.dead import dead_headers
from app.logic.rekey import rekey_headers, unwrap
from app.logic.requests import request_key
from app.logic.rules import NeedsModel, NoiseRules, RuleAnswer, TaskRouter, condition_fields
from app.settings import Settings, SourceSettings
from app.sources.source import Source, compile_source
from models.events import Bad, Event, Headers, ModelRequest, Origin
from models.results import Result
from models.results import Source as ResultSource
from tables.seen import SEEN, Seen

__all__ = ["Ingest", "declare"]

_json = msgspec.json.Encoder().encode
_pack = msgspec.msgpack.Encoder().encode
_unpack_seen = msgspec.msgpack.Decoder(Seen).decode

Raw: TypeAlias = ConsumerRecord[bytes, bytes]


class Ingest:
    """The stage's logic. With `hop` it reads our own rekeyed topic, else a source's topic."""

    def __init__(
        self, settings: Settings, name: str, sources: dict[str, Source], rules: tuple[NoiseRules, TaskRouter], hop: bool
    ) -> None:
        self.name, self.sources, self.hop = name, sources, hop
        self.noise, self.router = rules
        self.horizon_ms = int(settings.ingest.dedup_horizon_s * 1000)
        self.clean, self.sink = settings.topic("clean-events"), settings.topic("sink-noise")
        self.dead_topic, self.rekeyed = settings.topic("dead-letter"), settings.topic("rekeyed")
        self.requests, self.results = settings.topic("model-requests"), settings.topic("ai-results")
        self.tasked = bool(settings.tasks)
        self.expiry = Expiry(SEEN, self.horizon_ms)
        self._only = next(iter(sources.values())) if not hop else None

    def decide(self, batch: Batch) -> None:
        """Validates and deduplicates a batch; then each new event goes its way."""
        out = batch.out
        good = self._read(batch)
        ids = [event.event_id.encode() for _, _, event, _ in good]
        found = batch.state.get_raw(SEEN, ids)
        rows: list[tuple[bytes, bytes]] = []
        mine: dict[bytes, int] = {}
        oldest_ms = out.now_ms - self.horizon_ms
        for (record, source, event, offset), key, was in zip(good, ids, found, strict=True):
            crc = zlib.crc32(record.value)
            first = mine.get(key)
            if first is None and was is not None:
                seen = _unpack_seen(was)
                first = seen.crc if seen.at_ms > oldest_ms else None
            if first is not None:
                out.count("duplicate" if first == crc else "conflict", source.name)
                continue
            mine[key] = crc
            outcome, detail = self._route(out, record, source, event, key)
            rows.append((key, _pack(Seen(offset, out.now_ms, crc, outcome, detail))))
        if rows:
            out.put_packed(SEEN, out.now_ms, batch.records[0].offset, rows)

    def _read(self, batch: Batch) -> list[tuple[Raw, Source, Event, int]]:
        """The valid events, with the offset each was read at; what isn't one is a dead letter, and what must hop is sent on."""
        good = []
        for record in batch.records:
            source, origin = self._only, record
            if source is None:
                origin, source_name = unwrap(record)
                source = self.sources.get(source_name)
                if source is None:
                    bad = Bad(reason="bad-field", field="headrace.source", message="no source of that name is declared")
                    self._bury(batch.out, record, bad)
                    continue
            event = source.read(origin)
            if isinstance(event, Bad):
                self._bury(batch.out, origin, event)
            elif self._only is not None and (source.rekey or not record.key):
                headers = rekey_headers(record, source.name)
                batch.out.send(self.rekeyed, event.event_id.encode(), record.value, headers)
                batch.out.count("rekeyed", source.name)
            else:
                good.append((origin, source, event, record.offset))
        return good

    def _route(self, out: Outbox, record: Raw, source: Source, event: Event, key: bytes) -> tuple[str, str]:
        """Sends a new event where it belongs; returns its outcome and the rule or task that decided."""
        headers = (
            *record.headers,
            ("headrace.origin", b"%s/%d/%d" % (record.topic.encode(), record.partition, record.offset)),
            ("headrace.event-id", key),
        )
        if source.types and event.event_type not in source.types:
            return self._drop(out, record, event, headers, "filtered", "source-types")
        rule = self.noise.match(event, source.name)
        if rule is not None:
            return self._drop(out, record, event, headers, "noise", rule)
        out.send(self.clean, event.entity.encode(), record.value, headers)
        if not self.tasked:
            out.count("accepted")
            return "accepted", ""
        route = self.router.route(event, source.name)
        if isinstance(route, RuleAnswer):
            out.send(self.results, key, _json(rule_result(record, event, route, out.now_ms)), trace_headers(event))
            out.count("rule", route.rule)
            out.latencies.append(("rule", max(0, out.now_ms - record.timestamp) / 1000))
            return "rule", route.rule
        if isinstance(route, NeedsModel):
            request = model_request(record, event, route)
            out.send(self.requests, request_key(route.task, event.text), _json(request), trace_headers(event))
            out.count("asked", route.task)
            return "asked", route.task
        out.count("untasked")
        return "untasked", ""

    def _drop(
        self, out: Outbox, record: Raw, event: Event, headers: Headers, outcome: str, rule: str
    ) -> tuple[str, str]:
        out.send(self.sink, event.entity.encode(), record.value, (*headers, ("headrace.rule", rule.encode())))
        out.count(outcome, rule)
        return outcome, rule

    def _bury(self, out: Outbox, record: Raw, bad: Bad) -> None:
        out.send(self.dead_topic, record.key, record.value, dead_headers(record, bad, self.name))
        out.count("dead", bad.reason)

    def dead(self, batch: Batch, record: Raw, error: Exception) -> None:
        origin = record if self._only is not None else unwrap(record)[0]
        message = f"{type(error).__name__} in stage {self.name}; the log has the traceback"
        self._bury(batch.out, origin, Bad(reason="stage-failed", message=message))

    def tick(self, lane: Lane, now_ms: int) -> None:
        self.expiry.tick(lane, now_ms)

    def ready(self, lane: Lane) -> None:
        """Nothing to take up: ingest has no open work."""

    def closed(self, lane: Lane) -> None:
        """Nothing runs beside the lane."""

    def committed(self, lane: Lane) -> None:
        """Nothing waits for a commit."""

    def room(self, lane: Lane) -> bool:
        return True


def rule_result(record: Raw, event: Event, route: RuleAnswer, now_ms: int) -> Result:
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


def model_request(record: Raw, event: Event, route: NeedsModel) -> ModelRequest:
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
    )


def trace_headers(event: Event) -> Headers:
    return (("headrace.trace-id", event.trace_id.encode()),) if event.trace_id else ()


def declare(app: App) -> None:
    """Adds an ingest stage for every source, and one for the rekeyed topic."""
    settings = app.settings
    fields = condition_fields(settings)
    rules = (NoiseRules(settings), TaskRouter(settings))

    def compiled(source: SourceSettings) -> Source:
        return compile_source(source, settings, fields, with_text=bool(settings.tasks))

    sources = {source.name: compiled(source) for source in settings.sources}
    for source in settings.sources:
        add_stage(
            app,
            name=f"ingest-{source.name}",
            topic=settings.source_topic(source),
            logic=Ingest(settings, f"ingest-{source.name}", {source.name: sources[source.name]}, rules, hop=False),
            maps=[SEEN],
            start=source.start,
            help=f"Validates and deduplicates {source.topic}; rules decide what they can.",
        )
    add_stage(
        app,
        name="ingest-rekeyed",
        topic=settings.topic("rekeyed"),
        logic=Ingest(settings, "ingest-rekeyed", sources, rules, hop=True),
        maps=[SEEN],
        help="The same for events that had to be keyed by their event_id first.",
    )
