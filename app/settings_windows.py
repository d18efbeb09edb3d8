"""Settings of windows: aggregates and the intent rules over them."""

from typing import Literal, Self

from pydantic import Field, model_validator

from app.settings_base import Condition, Name, Section

__all__ = [
    "AggregateSettings",
    "FeatureSettings",
    "IntentRule",
    "SequenceStep",
    "WindowCondition",
    "WindowsSettings",
    "check_windows",
]

MAX_PANES = 100
"""Panes a window: each is a read when the window closes."""


class WindowsSettings(Section):
    """What all aggregates have in common."""

    idle_s: float = Field(
        30.0,
        ge=0,
        description="Once a partition is read to its end and quiet for this long, its event time goes on with the clock, "
        "so that its windows close without another event. 0: never.",
    )
    max_ahead_s: float = Field(
        600.0,
        gt=0,
        description="An event further ahead of its record's append time moves no watermark and enters no window: it goes "
        "to late-events. Covers usual clock errors.",
    )
    early_s: float = Field(
        5.0,
        ge=0,
        description="Rules look at an open window that has the events they need at most this often an entity and pane, "
        "in event time.",
    )
    close_windows: int = Field(
        10_000,
        ge=1,
        le=100_000,
        description="Windows closed in one transaction at most. Fewer where few events come: those don't wait for it. While more "
        "wait than that, no input is taken.",
    )


class FeatureSettings(Section):
    """One number of a window."""

    name: Name
    kind: Literal["sum", "min", "max", "first", "last", "distinct"] = Field(
        description="first and last by event time; distinct: how many different values."
    )
    field: str = Field(min_length=1, description="As in conditions: a built-in field, or a JMESPath into the document.")
    limit: int = Field(
        256,
        ge=16,
        le=10_000,
        description="distinct only: exact up to this many values, above it an estimate (error about 1 / its square root).",
    )


class AggregateSettings(Section):
    """Hopping windows over the events of an entity, in event time."""

    name: Name
    sources: list[Name] = Field(default_factory=list, description="Empty: every source.")
    types: list[str] = Field(default_factory=list, description="Event types; empty: all.")
    when: list[Condition] = Field(default_factory=list, description="All must hold; empty: every event.")
    size_s: float = Field(60.0, gt=0, le=7 * 86_400, description="Length of a window.")
    hop_s: float = Field(30.0, gt=0, description="From one window's start to the next. Must divide size_s.")
    grace_s: float = Field(
        10.0, ge=0, le=7 * 86_400, description="A window closes this long after its end: events may be late by so much."
    )
    label: str = Field("event_type", min_length=1, description="The field that is counted and makes the sequence.")
    note: str = Field(
        "", description="A field kept beside the label in the sequence, cut to 80 characters: for models to read."
    )
    sequence: int = Field(100, ge=0, le=1000, description="Latest events kept in order; older ones are counted as cut.")
    features: list[FeatureSettings] = Field(default_factory=list)

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in ("size_s", "hop_s", "grace_s"):
            value = getattr(self, name)
            if abs(value * 1000 - round(value * 1000)) > 1e-6:
                raise ValueError(f"aggregate {self.name}, {name}: {value} isn't a whole number of milliseconds")
        if self.size_ms % self.hop_ms:
            raise ValueError(
                f"aggregate {self.name}, hop_s: {self.hop_s:g} doesn't divide size_s {self.size_s:g}; a window is a whole "
                "number of hops"
            )
        if self.size_ms // self.hop_ms > MAX_PANES:
            raise ValueError(
                f"aggregate {self.name}, hop_s: {self.size_ms // self.hop_ms} hops a window, at most {MAX_PANES} are allowed"
            )
        names = [feature.name for feature in self.features]
        if len(set(names)) != len(names):
            raise ValueError(f"aggregate {self.name}, features: names must differ, given {', '.join(names)}")
        return self

    @property
    def size_ms(self) -> int:
        return round(self.size_s * 1000)

    @property
    def hop_ms(self) -> int:
        return round(self.hop_s * 1000)

    @property
    def grace_ms(self) -> int:
        return round(self.grace_s * 1000)


class WindowCondition(Section):
    """A bound on one number of a window."""

    count: str = Field("", description="A label, or `*` for all events.")
    feature: str = Field("", description="Or a feature of the aggregate. A feature without a value meets no bound.")
    at_least: float | None = Field(None, description="Lower bound.")
    at_most: float | None = Field(None, description="Upper bound. Holds early as well: use it with `early = false`.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if bool(self.count) == bool(self.feature):
            raise ValueError("give either count or feature")
        if self.at_least is None and self.at_most is None:
            raise ValueError("give at_least, at_most or both")
        return self


class SequenceStep(Section):
    """One step of a sequence: others may come in between."""

    label: str | list[str] = Field(description="The label, or a list of which any will do.")
    times: int = Field(1, ge=1, le=100, description="How often in a row of this step.")


class IntentRule(Section):
    """What a window's counts and sequence tell, and what follows. Fires at most once a window."""

    name: Name
    aggregate: Name
    when: list[WindowCondition] = Field(default_factory=list, description="All must hold.")
    sequence: list[SequenceStep] = Field(default_factory=list, description="In this order, by event time.")
    within_s: float | None = Field(
        None, gt=0, description="From the sequence's first event to its last; unset: the window."
    )
    early: bool = Field(True, description="Look at open windows too. false: only when the window closes.")
    category: str = Field(
        "", description="Outcome: a result on ai-results. The first rule of a window that has one decides."
    )
    task: str = Field("", description="The task (input windows) whose category it is; empty: the rule's own word.")
    incident: str = Field("", max_length=100, description="Outcome: an incident of this kind on agent-trigger.")
    severity: Literal["low", "medium", "high", "critical"] = Field("medium", description="Of the incident.")
    deep_s: float = Field(
        0.0,
        ge=0,
        le=7 * 86_400,
        description="Outcome: for so long, in event time, what no rule decides of this entity skips the light model.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.when and not self.sequence:
            raise ValueError(f"intent {self.name}: needs `when`, `sequence` or both")
        if not self.category and not self.incident and not self.deep_s:
            raise ValueError(f"intent {self.name}: needs an outcome: category, incident or deep_s")
        if self.task and not self.category:
            raise ValueError(f"intent {self.name}, task: goes with a category")
        if self.within_s is not None and not self.sequence:
            raise ValueError(f"intent {self.name}, within_s: goes with a sequence")
        return self


def check_windows(
    aggregates: list[AggregateSettings],
    intents: list[IntentRule],
    categories: dict[str, set[str]],
    asked: dict[str, list[str]],
) -> None:
    """Rules across sections.

    Args:
        aggregates: all of them.
        intents: all of them.
        categories: category ids of each task with input windows.
        asked: aggregates that each such task names.

    Raises:
        ValueError: names what isn't there.
    """
    known = {a.name: a for a in aggregates}
    for task, names in asked.items():
        for name in names:
            if name not in known:
                raise ValueError(f"task {task}, aggregates: {name!r} isn't declared; there are {', '.join(known)}")
    for intent in intents:
        aggregate = known.get(intent.aggregate)
        if aggregate is None:
            raise ValueError(
                f"intent {intent.name}, aggregate: {intent.aggregate!r} isn't declared; there are {', '.join(known)}"
            )
        if intent.task and intent.category not in categories.get(intent.task, set()):
            raise ValueError(
                f"intent {intent.name}, category: {intent.category!r} is no category of a task {intent.task!r} with input "
                "windows"
            )
        if intent.sequence and not aggregate.sequence:
            raise ValueError(f"intent {intent.name}, sequence: aggregate {aggregate.name} keeps none (sequence = 0)")
        features = {f.name for f in aggregate.features}
        for condition in intent.when:
            if condition.feature and condition.feature not in features:
                raise ValueError(
                    f"intent {intent.name}, feature: {condition.feature!r} isn't one of aggregate {aggregate.name} "
                    f"({', '.join(features) or 'it has none'})"
                )
