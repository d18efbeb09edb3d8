"""Settings of what a user declares: sources, noise, marks, and tasks with their categories and rules."""

import re
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from app.settings_base import Condition, Name, Section
from app.settings_extract import check_extract, why_wrong
from app.settings_llm import OverBudget

__all__ = ["CategorySettings", "ExampleSettings", "MarkRule", "NoiseRule", "SourceSettings", "TaskRule", "TaskSettings"]

HOLES = ("instruction", "categories", "examples", "form")
"""What a prompt template may name in braces."""

MOST_EXAMPLES = 50
"""Each is in every call: more is training data, not a prompt."""

_HOLE = re.compile(r"\{([a-z_]+)\}")


class NoiseRule(Section):
    """Events that meet all conditions go to `sink-noise` and no further."""

    name: Name
    when: list[Condition] = Field(min_length=1, description="All must hold.")
    sources: list[Name] = Field(default_factory=list, description="Empty: every source.")


class MarkRule(Section):
    """Marks events that not every provider may see. An event may get several marks."""

    name: Name = Field(description="The mark; providers name those they may see.")
    when: list[Condition] = Field(min_length=1, description="All must hold.")
    sources: list[Name] = Field(default_factory=list, description="Empty: every source.")


class SourceSettings(Section):
    """A topic, and where in its records the event is."""

    name: Name
    topic: str = Field(min_length=1, max_length=249, description="As it is called in Kafka.")
    prefixed: bool = Field(False, description="True: kafka.topic_prefix is put before the topic (the built-in source).")
    format: Literal["envelope", "json", "cloudevents", "text"] = Field(
        "envelope",
        description="envelope: ours (event_id, event_type, event_time, payload ...); json: any JSON, mapped by JMESPath; "
        "cloudevents: structured or binary; text: one line a record, read by `pattern`.",
    )
    event_id: str = Field("", description="JMESPath (json) or group name (text) of the id.")
    fingerprint: list[str] = Field(
        default_factory=list, description="Instead of event_id: paths whose values, hashed, are the id."
    )
    event_type: str = Field("", description="Path of the type; or, with a leading `=`, a constant (`=access`).")
    event_time: str = Field("", description="Path of the time; empty: the record's own timestamp.")
    time_unit: Literal["ms", "s", "us", "ns", "rfc3339", "auto", "strptime"] = Field(
        "auto", description="auto: RFC 3339 text, or a number in ms. Others as named."
    )
    time_format: str = Field("", description="For time_unit strptime, e.g. `%d/%b/%Y:%H:%M:%S %z`.")
    timezone: str = Field("UTC", description="IANA zone of times that carry none.")
    entity: str = Field(
        "", description="Path of the entity, used where the record has no key: the key comes first, but for rekey."
    )
    text: str = Field("", description="Path of the text to classify; or a template with {paths} (`{method} {path}`).")
    source_system: str = Field("", description="Path, or a constant with a leading `=`; empty: the source's name.")
    trace_id: str = Field("", description="Path of a trace id; empty: taken from traceparent if there is one.")
    pattern: str = Field(
        "",
        description="text only: `combined` (Apache/nginx access log), `syslog`, `line`, or a regular expression with "
        "named groups.",
    )
    types: list[str] = Field(default_factory=list, description="Event types let through; empty: all.")
    start: str = Field("earliest", description="Where a new group begins: earliest, latest, or an RFC 3339 time.")
    rekey: bool = Field(
        False,
        description="True when the topic isn't keyed so that copies of an event meet in one partition: events "
        "take a hop by event_id first. Records without a key always do. The mapped entity then comes before the key.",
    )

    @field_validator("start")
    @classmethod
    def _check_start(cls, value: str) -> str:
        if value not in ("earliest", "latest"):
            try:
                at = datetime.fromisoformat(value)
            except ValueError:
                raise ValueError(
                    "allowed: earliest, latest, or an RFC 3339 time such as 2026-11-30T08:00:00Z"
                ) from None
            if at.tzinfo is None:
                raise ValueError("a time needs its zone, such as 2026-11-30T08:00:00Z")
        return value


class CategorySettings(Section):
    """One possible answer of a task."""

    id: Name
    description: str = Field(min_length=1, description="What belongs here, for the models. Any language.")
    examples: list[str] = Field(
        default_factory=list, description="Texts of this category; they sharpen the light tier."
    )


class TaskRule(Section):
    """A rule that decides an event without a model, or sends it to the deep one."""

    name: Name
    when: list[Condition] = Field(min_length=1, description="All must hold.")
    category: str = Field("", description="The answer. Empty with `tier`.")
    tier: Literal["rule", "deep"] = Field("rule", description="deep: skip the light model.")


class ExampleSettings(Section):
    """A text with its right answer, shown to the deep model in every prompt."""

    text: str = Field(min_length=1, description="Of an event. Sent as it is: nothing in it is masked.")
    category: str = Field(description="Its category.")
    fields: dict[str, Any] = Field(default_factory=dict, description="What `extract` would find in it.")


class TaskSettings(Section):
    """What is asked about which events."""

    name: Name
    sources: list[Name] = Field(default_factory=list, description="Empty: every source.")
    types: list[str] = Field(default_factory=list, description="Event types; empty: all.")
    input: Literal["events", "windows"] = Field(
        "events",
        description="windows: closed windows that no intent rule gave a result are asked about, their sequence as text.",
    )
    aggregates: list[Name] = Field(
        default_factory=list, description="With input windows: the aggregates whose windows it takes; empty: all."
    )
    min_events: int = Field(
        1, ge=1, description="With input windows: windows of fewer events are nobody's, so that they cost nothing."
    )
    instruction: str = Field(
        "Classify each message by what it is about.", description="First line of the deep model's prompt."
    )
    template: str = Field(
        "",
        description="System prompt of the deep model; empty: the built-in one. `{instruction}`, `{categories}`, `{examples}` "
        "and `{form}` (how to answer; added at the end where it is missing) are filled in.",
    )
    template_file: Path | None = Field(
        None,
        description="File of `template`, relative to headrace.toml; a change of it is taken while workers run. It may begin "
        "with a line `---`, a line `version: NAME` and a line `---`.",
    )
    prompt_version: str = Field(
        "",
        pattern=r"^[A-Za-z0-9._-]{0,64}$",
        description="Name of the prompt in results. Empty: a hash of everything that is in the prompt.",
    )
    examples: list[ExampleSettings] = Field(
        default_factory=list, max_length=MOST_EXAMPLES, description="Shown in every prompt of the deep model."
    )
    examples_file: Path | None = Field(
        None, description="More examples: JSON lines of text, category and perhaps fields, relative to headrace.toml."
    )
    extract: dict[str, Any] = Field(
        default_factory=dict,
        description="JSON Schema of an object: fields that the deep model finds beside the category. They are checked, asked "
        "again when wrong, and stand in `fields` of the result. The light model isn't asked then.",
    )
    extract_tokens: int = Field(
        100, ge=1, le=4000, description="Tokens that the extracted fields of one event may take at most."
    )
    categories: list[CategorySettings] = Field(min_length=2)
    rules: list[TaskRule] = Field(default_factory=list, description="In order; the first that holds decides.")
    light_threshold: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Light answers below this confidence go to the deep model; unset: light.threshold.",
    )
    light_calibration: tuple[float, float] | None = Field(
        None,
        description="Scale and shift that `headrace eval` fits to labelled texts: with them a confidence of 0.9 is right 9 "
        "times in 10. Unset: the confidence as the encoder gives it.",
    )
    day_usd: float | None = Field(None, gt=0, description="What its deep calls may cost a day; unset: budget.day_usd.")
    over_budget: OverBudget | None = Field(None, description="What happens at that limit; unset: budget.over.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        ids = [c.id for c in self.categories]
        if self.input == "events" and (self.aggregates or self.min_events != 1):
            raise ValueError(f"task {self.name}, aggregates and min_events: only with input windows")
        if len(set(ids)) != len(ids):
            raise ValueError(f"task {self.name}: category ids must differ, given {ids}")
        self._check_prompt(ids)
        for rule in self.rules:
            if self.input == "windows":
                raise ValueError(
                    f"task {self.name}, rules: a task with input windows has none; write [[intents]] with task and category"
                )
            if rule.tier == "rule" and rule.category not in ids:
                raise ValueError(
                    f"task {self.name}, rule {rule.name}: category {rule.category!r} isn't one of {', '.join(ids)}"
                )
        return self

    def _check_prompt(self, ids: list[str]) -> None:
        named = _HOLE.findall(self.template)
        if unknown := [name for name in named if name not in HOLES]:
            raise ValueError(
                f"task {self.name}, template: there is no {{{unknown[0]}}}; it may hold "
                f"{', '.join('{' + name + '}' for name in HOLES)}"
            )
        if self.template and "categories" not in named:
            raise ValueError(f"task {self.name}, template: {{categories}} is missing, so the model wouldn't know them")
        if self.extract:
            check_extract(self.name, self.extract)
        for example in self.examples:
            if example.category not in ids:
                raise ValueError(
                    f"task {self.name}, examples: category {example.category!r} isn't one of {', '.join(ids)}"
                )
            if self.extract and (why := why_wrong(self.extract, example.fields)):
                raise ValueError(f"task {self.name}, examples: fields of {example.text[:40]!r}: {why}")
