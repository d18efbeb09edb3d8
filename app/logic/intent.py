"""Intent rules over a window: compiled once, evaluated on its sum. Pure.

A rule sees counts, features and labels, never an event's text, unless the settings made that a label.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from app.logic.aggregates import Aggregate, Item, Pane, Window
from app.settings_windows import IntentRule, WindowCondition

__all__ = ["Intent", "Intents", "compile_intents", "rendered"]

ALL = "*"


@dataclass(frozen=True, slots=True)
class Intent:
    """One rule."""

    rule: IntentRule
    steps: tuple[frozenset[str], ...]
    """The sequence, one set of labels for each event that is wanted."""
    features: dict[str, int]
    """Place of each feature in the aggregate."""
    needs: tuple[tuple[frozenset[str] | None, float], ...]
    """How many events of some labels (None: of any) a window must have at least."""

    def possible(self, panes: Sequence[Pane]) -> bool:
        """Whether a window of these panes has the events that the rule needs at least: what can be told without a sum."""
        for labels, wanted in self.needs:
            found = 0
            for pane in panes:
                for part in (pane, *(pane.late or {}).values()):
                    if labels is None:
                        found += part.events
                    else:
                        found += part.other  # they may have any label
                        for label in labels:
                            found += part.counts.get(label, 0)
            if found < wanted:
                return False
        return True

    @property
    def labels(self) -> frozenset[str]:
        """The labels that it names; none: it counts events of any."""
        counted = frozenset(c.count for c in self.rule.when if c.count and c.count != ALL)
        return counted.union(*self.steps)

    def holds(self, aggregate: Aggregate, window: Window) -> bool:
        """Whether the window, or what it holds so far, meets the rule."""
        for condition in self.rule.when:
            number = self._number(condition, aggregate, window)
            if number is None:
                return False
            if condition.at_least is not None and number < condition.at_least:
                return False
            if condition.at_most is not None and number > condition.at_most:
                return False
        if not self.steps:
            return True
        if window.events < len(self.steps):
            return False
        within_ms = None if self.rule.within_s is None else self.rule.within_s * 1000
        return found_in_order(self.steps, window.sequence, within_ms)

    def _number(self, condition: WindowCondition, aggregate: Aggregate, window: Window) -> int | float | None:
        if condition.count == ALL:
            return window.events
        if condition.count:
            return window.counts.get(condition.count, 0)
        place = self.features[condition.feature]
        return aggregate.features[place].show(window.features[place])


def found_in_order(steps: Sequence[frozenset[str]], sequence: Iterable[Item], within_ms: float | None) -> bool:
    """Whether events of these labels lie in this order, others in between allowed, within a time from first to last."""
    begun: list[int | None] = [None] * len(steps)
    """For each step, the latest start of a match up to it: a later start can only make the whole shorter."""
    last = len(steps) - 1
    places: dict[str, list[int]] = defaultdict(list)
    for place in range(last, -1, -1):
        for label in steps[place]:
            places[label].append(place)
    for at_ms, _, label, _ in sequence:
        if label not in places:
            continue
        for place in places[label]:
            start = at_ms if place == 0 else begun[place - 1]
            if start is None:
                continue
            begun[place] = start
            if place == last and (within_ms is None or at_ms - start <= within_ms):
                return True
    return False


class Intents:
    """The rules of one aggregate, in order, and when an event makes it worth looking at an open window."""

    def __init__(self, aggregate: Aggregate, rules: list[Intent]) -> None:
        self.aggregate, self.rules = aggregate, rules
        self.early = [intent for intent in rules if intent.rule.early]
        self.labels: frozenset[str] = frozenset().union(*(intent.labels for intent in self.early))
        """An open window is looked at when an event has one of these labels: others can't complete a rule that names some,"""
        self._named: dict[str, list[Intent]] = defaultdict(list)
        self._others = [intent for intent in self.early if not intent.labels]
        for intent in self.early:
            for label in intent.labels:
                self._named[label].append(intent)
        self.floor = min((_floor(intent, aggregate.panes) for intent in self.early), default=1 << 62)
        """or when its pane holds so many events: for rules that count events of any label."""

    def possible(self, label: str, panes: Sequence[Pane]) -> bool:
        """Whether an event with this label may have completed a rule, as far as counts tell."""
        for intent in self._named.get(label, ()):
            if intent.possible(panes):
                return True
        return any(intent.possible(panes) for intent in self._others)

    def fired(self, window: Window, early: bool) -> list[IntentRule]:
        """The rules that hold, in order."""
        rules = self.early if early else self.rules
        return [intent.rule for intent in rules if intent.holds(self.aggregate, window)]


def _needs(rule: IntentRule, steps: tuple[frozenset[str], ...]) -> tuple[tuple[frozenset[str] | None, float], ...]:
    counted = [
        (None if c.count == ALL else frozenset([c.count]), c.at_least) for c in rule.when if c.count and c.at_least
    ]
    return (*counted, *((labels, float(n)) for labels, n in Counter(steps).items()))


def _floor(intent: Intent, panes: int) -> int:
    """A quarter of an even share: a rule on 100 events in two hops is looked at from 12 events in one of them on."""
    if intent.labels:
        return 1 << 62
    wanted = [c.at_least for c in intent.rule.when if c.at_least is not None]
    return max(1, int(max(wanted, default=1)) // (4 * panes))


def compile_intents(rules: list[IntentRule], aggregates: list[Aggregate]) -> dict[str, Intents]:
    """The rules by aggregate."""
    found: dict[str, list[Intent]] = defaultdict(list)
    by_name = {a.name: a for a in aggregates}
    for rule in rules:
        aggregate = by_name.get(rule.aggregate)
        if aggregate is None:
            continue
        places = {feature.name: place for place, feature in enumerate(aggregate.features)}
        steps = [
            frozenset([step.label] if isinstance(step.label, str) else step.label)
            for step in rule.sequence
            for _ in range(step.times)
        ]
        found[rule.aggregate].append(Intent(rule, tuple(steps), places, _needs(rule, tuple(steps))))
    return {a.name: Intents(a, found[a.name]) for a in aggregates}


def rendered(aggregate: Aggregate, entity: str, window: Window) -> str:
    """A window as text for a model: its counts, its features, then the sequence with seconds from its first event."""
    span_s = (window.last_ms - window.first_ms) / 1000
    counts = ", ".join(
        f"{label} {n}" for label, n in sorted(window.counts.items(), key=lambda each: (-each[1], each[0]))
    )
    lines = [f"{window.events} events of {entity[:200]} in {span_s:g} s: {counts}"]
    for feature, state in zip(aggregate.features, window.features, strict=True):
        lines.append(f"{feature.name}: {feature.show(state)}")
    if len(window.sequence) < window.events and aggregate.keep:
        lines.append(f"({window.events - len(window.sequence)} earlier events left out)")
    lines += [
        f"+{(at_ms - window.first_ms) / 1000:g} s {label}{' ' + note if note else ''}"
        for at_ms, _, label, note in window.sequence
    ]
    return "\n".join(lines)
