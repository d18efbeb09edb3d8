"""Noise rules and task rules: data in settings, compiled once, evaluated on events.

A rule sees what its conditions name and nothing else, so text in an event can't change its tier or its categories
except where a condition looks at that text. A regular expression runs on one value, cut to a bound.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Generic, TypeVar, assert_never

from app.errors import SettingsError
from app.settings import Condition, Settings, TaskRule, TaskSettings
from app.sources.paths import compile_path
from models.events import Event

__all__ = [
    "BUILT_IN",
    "NeedsModel",
    "NoiseRules",
    "Route",
    "RuleAnswer",
    "TaskRouter",
    "Untasked",
    "compile_conditions",
    "condition_fields",
]

T = TypeVar("T")
Test = Callable[[Event], bool]

BUILT_IN = ("event_type", "event_id", "source_system", "entity", "text")
"""Fields that every event has; all others are paths into its document."""

MAX_KNOWN_TYPES = 10_000
"""Event types beyond these are looked at anew each time: senders choose the names."""
MAX_MATCH_CHARS = 10_000
"""A regular expression sees no more of a value: some take time that grows faster than the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleAnswer:
    """A rule decided."""

    task: str
    category: str
    rule: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedsModel:
    """No rule decided; `skip_light` when one asked for the deep model, whose name is the hint."""

    task: str
    skip_light: bool = False
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Untasked:
    """No task takes this event."""


Route = RuleAnswer | NeedsModel | Untasked


def condition_fields(settings: Settings) -> tuple[str, ...]:
    """The paths that rules need in `Event.fields`, each once, in order."""
    conditions = [condition for rule in settings.noise for condition in rule.when]
    conditions += [condition for mark in settings.marks for condition in mark.when]
    conditions += [condition for task in settings.tasks for rule in task.rules for condition in rule.when]
    named = [condition.field for condition in conditions]
    for aggregate in settings.aggregates:
        named += [condition.field for condition in aggregate.when]
        named += [aggregate.label, aggregate.note, *(feature.field for feature in aggregate.features)]
    return tuple(dict.fromkeys(field for field in named if field and field not in BUILT_IN))


def compile_conditions(conditions: Sequence[Condition], where: str = "condition") -> Test:
    """One test that holds when all conditions do.

    Args:
        conditions: at least one.
        where: what they belong to, for errors.

    Raises:
        SettingsError: a bad pattern or path, or a value that doesn't fit the operator. Not retryable.
    """
    tests = [_compile(condition, f"{where}, condition {number}") for number, condition in enumerate(conditions, 1)]
    if len(tests) == 1:
        return tests[0]
    return lambda event: all(test(event) for test in tests)


def _compile(condition: Condition, where: str) -> Test:
    name = condition.field
    where = f"{where} ({name} {condition.op})"
    holds = _value_test(condition, where)
    if name in BUILT_IN:
        field = attrgetter(name)
        if condition.op in ("equals", "in"):  # built-in fields are text, so that their canonical form is themselves
            allowed = _allowed(condition, where)
            return lambda event: field(event) in allowed
        return lambda event: holds(field(event))
    compile_path(name, where)  # a mistake shows here, with the rule's name
    return lambda event: holds(event.fields.get(name))


def _value_test(condition: Condition, where: str) -> Callable[[object], bool]:
    op, value = condition.op, condition.value
    if op == "exists" or op == "missing":
        if value is not None:
            raise SettingsError(f"{where}: takes no value, given {value!r}")
        return _exists if op == "exists" else lambda given: not _exists(given)
    if op == "equals" or op == "not_equals" or op == "in" or op == "not_in":
        return _membership(op in ("not_equals", "not_in"), _allowed(condition, where))
    if op == "less" or op == "greater":
        return _order(op, value, where)
    if op == "matches" or op == "contains" or op == "prefix" or op == "suffix":
        return _text_test(condition, where)
    assert_never(op)


def _exists(given: object) -> bool:
    """Null and empty text count as missing: a line's pattern gives either for a part that isn't there."""
    return given is not None and given != ""


def _allowed(condition: Condition, where: str) -> frozenset[str]:
    value, many = condition.value, condition.op in ("in", "not_in")
    if many != isinstance(value, list) or value is None or value == []:
        wanted = "a list that isn't empty" if many else "one value"
        raise SettingsError(f"{where}: needs {wanted}, given {value!r}")
    return frozenset(_canonical(item) for item in (value if isinstance(value, list) else [value]))


def _canonical(value: object) -> str:
    """Values that count as equal have one form: 404, 404.0 and "404" are equal, so are true and "true"."""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    try:
        return json.dumps(value, sort_keys=True, ensure_ascii=False)
    except ValueError:
        return ""  # an integer of over 4,300 digits equals nothing that a rule can name


def _membership(negated: bool, allowed: frozenset[str]) -> Callable[[object], bool]:
    """An absent field equals nothing, so `not_equals` and `not_in` hold for it."""

    def holds(given: object) -> bool:
        if given is None:
            return negated
        return (_canonical(given) in allowed) is not negated

    return holds


def _order(op: str, value: object, where: str) -> Callable[[object], bool]:
    bound = _number(value)
    if bound is None:
        raise SettingsError(f"{where}: needs a number, given {value!r}")

    def holds(given: object) -> bool:
        number = _number(given)
        return number is not None and (number < bound if op == "less" else number > bound)

    return holds


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _text_test(condition: Condition, where: str) -> Callable[[object], bool]:
    op, wanted, fold = condition.op, condition.value, condition.ignore_case
    if op == "matches":
        if not isinstance(wanted, str) or not wanted:
            raise SettingsError(f"{where}: needs a regular expression, given {wanted!r}")
        try:
            search = re.compile(wanted, re.IGNORECASE if fold else 0).search
        except re.error as error:
            raise SettingsError(f"{where}: {wanted!r} is no regular expression ({error})") from None
        return lambda given: given is not None and search(_canonical(given)[:MAX_MATCH_CHARS]) is not None
    listed = wanted if isinstance(wanted, list) else [wanted]
    if not listed or not all(isinstance(item, str) and item for item in listed):
        raise SettingsError(f"{where}: needs text or a list of texts, given {wanted!r}")
    texts = tuple(item.casefold() if fold else item for item in listed if isinstance(item, str))

    def holds(given: object) -> bool:
        if given is None:
            return False
        text = _canonical(given)
        text = text.casefold() if fold else text
        if op == "prefix":
            return text.startswith(texts)
        if op == "suffix":
            return text.endswith(texts)
        return any(item in text for item in texts)

    return holds


class _ByType(Generic[T]):
    """Rules in order, with the conditions on the event type decided once a type: few events need a test at all."""

    def __init__(self, rules: Sequence[tuple[frozenset[str] | None, Test | None, T]]) -> None:
        self._rules = rules
        self._known: dict[str, tuple[tuple[Test | None, T], ...]] = {}

    def first(self, event: Event) -> T | None:
        """The outcome of the first rule that holds, or None."""
        candidates = self._known.get(event.event_type)
        if candidates is None:
            candidates = self._candidates(event.event_type)
        for test, outcome in candidates:
            if test is None or test(event):
                return outcome
        return None

    def _candidates(self, event_type: str) -> tuple[tuple[Test | None, T], ...]:
        found = tuple((test, out) for types, test, out in self._rules if types is None or event_type in types)
        if len(self._known) < MAX_KNOWN_TYPES:
            self._known[event_type] = found
        return found


def _split(conditions: Sequence[Condition], where: str) -> tuple[frozenset[str] | None, Test | None]:
    """The event types that conditions allow (None: any), and a test for the rest (None: nothing is left)."""
    types: frozenset[str] | None = None
    rest = []
    for condition in conditions:
        if condition.field == "event_type" and condition.op in ("equals", "in"):
            allowed = _allowed(condition, f"{where} (event_type {condition.op})")
            types = allowed if types is None else types & allowed
        else:
            rest.append(condition)
    return types, compile_conditions(rest, where) if rest else None


class NoiseRules:
    """The noise rules of each source, in order.

    Raises:
        SettingsError: names the rule and the condition. Not retryable.
    """

    def __init__(self, settings: Settings) -> None:
        compiled = [(rule, *_split(rule.when, f"noise rule {rule.name}")) for rule in settings.noise]
        self._by_source: dict[str, _ByType[str]] = {
            source.name: _ByType(
                [(types, test, rule.name) for rule, types, test in compiled if _takes(rule.sources, source.name)]
            )
            for source in settings.sources
        }

    def of(self, source_name: str) -> Callable[[Event], str | None]:
        """For events of a source: the name of the first rule that holds, or None."""
        return self._by_source[source_name].first

    def match(self, event: Event, source_name: str) -> str | None:
        """The name of the first rule that holds, or None."""
        rules = self._by_source.get(source_name)
        return None if rules is None else rules.first(event)


class TaskRouter:
    """Which task takes an event, and whether a rule of it decides. The first task that takes an event has it.

    Raises:
        SettingsError: names the task, the rule and the condition. Not retryable.
    """

    def __init__(self, settings: Settings) -> None:
        compiled = [(task, _task_rules(task)) for task in settings.tasks if task.input == "events"]
        self._by_source: dict[str, _ByType[RuleAnswer | NeedsModel]] = {
            source.name: _ByType(
                [rule for task, rules in compiled if _takes(task.sources, source.name) for rule in rules]
            )
            for source in settings.sources
        }

        marks = [(mark, compile_conditions(mark.when, f"mark {mark.name}")) for mark in settings.marks]
        self._marks = {
            source.name: [(mark.name, test) for mark, test in marks if _takes(mark.sources, source.name)]
            for source in settings.sources
        }

    def marks(self, event: Event, source_name: str) -> list[str]:
        """The marks of an event: not every provider may see it."""
        return [name for name, test in self._marks.get(source_name, ()) if test(event)]

    def route(self, event: Event, source_name: str) -> Route:
        """What is to be done with the event."""
        rules = self._by_source.get(source_name)
        return (rules.first(event) if rules is not None else None) or UNTASKED


def _task_rules(task: TaskSettings) -> list[tuple[frozenset[str] | None, Test | None, RuleAnswer | NeedsModel]]:
    """A task's rules for the types it takes, and at their end what holds for all the rest of those."""
    taken = frozenset(task.types) if task.types else None
    rules: list[tuple[frozenset[str] | None, Test | None, RuleAnswer | NeedsModel]] = []
    for rule in task.rules:
        types, test = _split(rule.when, f"task {task.name}, rule {rule.name}")
        if types is None or taken is None:
            types = taken if types is None else types
        else:
            types &= taken
        rules.append((types, test, _outcome(task, rule)))
    return [*rules, (taken, None, NeedsModel(task=task.name))]


UNTASKED = Untasked()


def _takes(sources: list[str], name: str) -> bool:
    return not sources or name in sources


def _outcome(task: TaskSettings, rule: TaskRule) -> RuleAnswer | NeedsModel:
    if rule.tier == "deep":
        return NeedsModel(task=task.name, skip_light=True, hint=rule.name)
    return RuleAnswer(task=task.name, category=rule.category, rule=rule.name)
