"""Noise rules and task rules: data in settings, compiled once, evaluated on events.

A rule sees what its conditions name and nothing else, so text in an event can't change its tier or its categories
except where a condition looks at that text. A regular expression runs on one value, cut to a bound.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import assert_never

from app.errors import SettingsError
from app.settings import Condition, Settings, TaskRule, TaskSettings
from app.sources.paths import compile_path
from models.events import Event

__all__ = [
    "NeedsModel",
    "NoiseRules",
    "Route",
    "RuleAnswer",
    "TaskRouter",
    "Untasked",
    "compile_conditions",
    "condition_fields",
]

Test = Callable[[Event], bool]

BUILT_IN = ("event_type", "event_id", "source_system", "entity", "text")
"""Fields that every event has; all others are paths into its document."""

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
    conditions += [condition for task in settings.tasks for rule in task.rules for condition in rule.when]
    return tuple(dict.fromkeys(c.field for c in conditions if c.field not in BUILT_IN))


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


class NoiseRules:
    """The noise rules of each source, in order.

    Raises:
        SettingsError: names the rule and the condition. Not retryable.
    """

    def __init__(self, settings: Settings) -> None:
        compiled = [(rule, compile_conditions(rule.when, f"noise rule {rule.name}")) for rule in settings.noise]
        self._by_source: dict[str, list[tuple[str, Test]]] = {
            source.name: [(rule.name, test) for rule, test in compiled if _takes(rule.sources, source.name)]
            for source in settings.sources
        }

    def match(self, event: Event, source_name: str) -> str | None:
        """The name of the first rule that holds, or None."""
        for name, test in self._by_source.get(source_name, ()):
            if test(event):
                return name
        return None


class TaskRouter:
    """Which task takes an event, and whether a rule of it decides. The first task that takes an event has it.

    Raises:
        SettingsError: names the task, the rule and the condition. Not retryable.
    """

    def __init__(self, settings: Settings) -> None:
        compiled = [(task, [_outcome(task, rule) for rule in task.rules]) for task in settings.tasks]
        self._by_source = {
            source.name: [
                (frozenset(task.types), rules, NeedsModel(task=task.name))
                for task, rules in compiled
                if _takes(task.sources, source.name)
            ]
            for source in settings.sources
        }

    def route(self, event: Event, source_name: str) -> Route:
        """What is to be done with the event."""
        for types, rules, otherwise in self._by_source.get(source_name, ()):
            if types and event.event_type not in types:
                continue
            for test, outcome in rules:
                if test(event):
                    return outcome
            return otherwise
        return UNTASKED


UNTASKED = Untasked()


def _takes(sources: list[str], name: str) -> bool:
    return not sources or name in sources


def _outcome(task: TaskSettings, rule: TaskRule) -> tuple[Test, RuleAnswer | NeedsModel]:
    test = compile_conditions(rule.when, f"task {task.name}, rule {rule.name}")
    if rule.tier == "deep":
        return test, NeedsModel(task=task.name, skip_light=True, hint=rule.name)
    return test, RuleAnswer(task=task.name, category=rule.category, rule=rule.name)
