"""What becomes of windows: the record of a closed one, and what intent rules and windows' tasks make of it."""

from collections.abc import Callable, Iterable

import msgspec

from app.delivery.outbox import LARGE_BYTES, Outbox
from app.logic.aggregates import Aggregate
from app.logic.aggregates import Window as Sum
from app.logic.intent import compile_intents, rendered
from app.logic.requests import request_key
from app.settings import IntentRule, Settings, TaskSettings
from models.events import ModelRequest, Origin
from models.results import Result, Source
from models.windows import Incident, Number, Step, Window
from tables.panes import HINTS, Hint

__all__ = ["Verdicts", "entity_text", "window_id"]

_json = msgspec.json.Encoder().encode

EVENT_TYPE = "window"
EVIDENCE_STEPS = 20


def entity_text(entity: bytes) -> str:
    """An entity as text; bytes that aren't UTF-8 stay visible and apart."""
    return entity.decode("utf-8", "backslashreplace")


def window_id(aggregate: Aggregate, entity: bytes, start_ms: int) -> str:
    return f"{entity_text(entity)}@{aggregate.name}@{start_ms}"


class Verdicts:
    """Writes outcomes to an outbox. `topic` and `partition` are those of the input that windows are made of."""

    def __init__(self, settings: Settings, aggregates: list[Aggregate], topic: str) -> None:
        self.topic = topic
        self.intents = compile_intents(settings.intents, aggregates)
        self.has_hints = any(rule.deep_s for rule in settings.intents)
        self._tasks = {
            aggregate.name: next(
                (t for t in settings.tasks if t.input == "windows" and (not t.aggregates or aggregate.name in t.aggregates)),
                None,
            )
            for aggregate in aggregates
        }  # fmt: skip
        self._marks = {
            aggregate.name: [m.name for m in settings.marks if not m.sources or set(aggregate.sources) & set(m.sources)]
            for aggregate in aggregates
        }
        """A window may hold events of any mark, so it has all that its sources can have."""
        self._results, self._requests = settings.topic("ai-results"), settings.topic("model-requests")
        self._windows, self._incidents = settings.topic("agg-events"), settings.topic("agent-trigger")

    def closer(
        self, out: Outbox, partition: int, aggregate: Aggregate, start_ms: int
    ) -> Callable[[bytes, Sum, list[str]], None]:
        """What is done with each closed window of one start.

        Args:
            out: where it is written.
            partition: of the input.
            aggregate: whose windows they are.
            start_ms: their start.

        Returns:
            A function of the entity, the window's sum, and the rules that fired while it was open.
        """
        name, end_ms, keep, features = aggregate.name, start_ms + aggregate.size_ms, aggregate.keep, aggregate.features
        intents, task = self.intents[name], self._tasks[name]
        rows, suffix, now_ms = out.rows(self._windows), f"@{name}@{start_ms}", out.now_ms

        def close_one(entity: bytes, window: Sum, fired: list[str]) -> None:
            decided = False
            if intents.rules:
                new = [rule for rule in intents.fired(window, early=False) if rule.name not in fired]
                if new or fired:
                    decided = self.act(out, partition, aggregate, entity, start_ms, window, new, fired, early=False)
                    fired = [*fired, *(rule.name for rule in new)]
            text = entity_text(entity)
            sequence = [Step(at_ms, label, note) for at_ms, _, label, note in window.sequence]
            cut = window.events - len(sequence) if keep else 0
            record = Window(
                text + suffix, name, text, start_ms, end_ms, window.events, window.first_ms, window.last_ms,
                window.counts, window.other, shown(aggregate, window) if features else {},
                estimates(aggregate, window) if features else [], sequence, cut, fired,
                Source(self.topic, partition, window.last_offset), now_ms,
            )  # fmt: skip
            value = _json(record)
            if len(value) + len(entity) < LARGE_BYTES // 2:
                rows.append((entity, value, []))
            else:
                out.send(self._windows, entity, value)
            out.count("window", name)
            if cut:
                out.count("cut", name, cut)
            if task is not None and not decided:
                self._ask(out, partition, aggregate, entity, task, window, record.id)

        return close_one

    def act(
        self, out: Outbox, partition: int, aggregate: Aggregate, entity: bytes, start_ms: int, window: Sum,
        new: Iterable[IntentRule], fired: list[str], *, early: bool,
    ) -> bool:  # fmt: skip
        """Writes the outcomes of rules that hold for the first time in a window.

        Returns:
            Whether the window has its result, now or from before.
        """
        by_name = {intent.rule.name: intent.rule for intent in self.intents[aggregate.name].rules}
        decided = any(by_name[name].category for name in fired if name in by_name)
        for rule in new:
            out.count("intent", rule.name)
            if rule.category and not decided:
                decided = True
                self._result(out, partition, aggregate, entity, start_ms, window, rule)
            if rule.incident:
                self._incident(out, partition, aggregate, entity, start_ms, window, rule, early)
            if rule.deep_s:
                until_ms = window.last_ms + round(rule.deep_s * 1000)
                out.put(HINTS, entity, Hint(until_ms, rule.name, window.last_offset))
        return decided

    def _result(
        self, out: Outbox, partition: int, aggregate: Aggregate, entity: bytes, start_ms: int, window: Sum,
        rule: IntentRule,
    ) -> None:  # fmt: skip
        result = Result(
            event_id=window_id(aggregate, entity, start_ms), event_type=EVENT_TYPE, task=rule.task or aggregate.name,
            category=rule.category, confidence=1.0, tier="rule", why=rule.name,
            latency_ms=max(0, out.now_ms - window.last_append_ms), created_ms=out.now_ms,
            source=Source(self.topic, partition, window.last_offset), entity=entity_text(entity),
        )  # fmt: skip
        out.send(self._results, result.event_id.encode(), _json(result))
        out.count("rule", rule.name)

    def _incident(
        self, out: Outbox, partition: int, aggregate: Aggregate, entity: bytes, start_ms: int, window: Sum,
        rule: IntentRule, early: bool,
    ) -> None:  # fmt: skip
        incident = Incident(
            id=f"{window_id(aggregate, entity, start_ms)}@{rule.name}", kind=rule.incident, severity=rule.severity,
            rule=rule.name, aggregate=aggregate.name, entity=entity_text(entity), start_ms=start_ms,
            end_ms=start_ms + aggregate.size_ms, open=early, events=window.events, counts=window.counts,
            features=shown(aggregate, window), sequence=steps_of(window)[-EVIDENCE_STEPS:],
            source=Source(self.topic, partition, window.last_offset), created_ms=out.now_ms,
        )  # fmt: skip
        out.send(self._incidents, entity, _json(incident))

    def _ask(
        self, out: Outbox, partition: int, aggregate: Aggregate, entity: bytes, task: TaskSettings, window: Sum,
        event_id: str,
    ) -> None:  # fmt: skip
        """No rule decided: the window goes to the models, if it is large enough."""
        if window.events < task.min_events:
            return
        text = rendered(aggregate, entity_text(entity), window)
        request = ModelRequest(
            event_id=event_id, event_type=EVENT_TYPE, event_time_ms=window.last_ms, entity=entity_text(entity),
            task=task.name, text=text, source=Origin(self.topic, partition, window.last_offset),
            received_ms=window.last_append_ms, marks=self._marks[aggregate.name],
        )  # fmt: skip
        out.send(self._requests, request_key(task.name, text), _json(request))
        out.count("asked", task.name)


def shown(aggregate: Aggregate, window: Sum) -> dict[str, Number | None]:
    return {f.name: f.show(state) for f, state in zip(aggregate.features, window.features, strict=True)}


def estimates(aggregate: Aggregate, window: Sum) -> list[str]:
    return [f.name for f, state in zip(aggregate.features, window.features, strict=True) if f.estimated(state)]


def steps_of(window: Sum) -> list[Step]:
    return [Step(at_ms, label, note) for at_ms, _, label, note in window.sequence]
