"""What every part of the settings tree is made of."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

__all__ = ["Condition", "Name", "Section"]

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
"""Letters, digits, `.`, `_` and `-`: it becomes part of topic names, metrics labels and file names."""


class Section(BaseModel):
    """A part of the tree: frozen, and an unknown field is a mistake, not a wish."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Condition(Section):
    """A test on one field of an event; used by noise rules and task rules."""

    field: str = Field(
        "text",
        min_length=1,
        description="event_type, event_id, source_system, entity, text, or a JMESPath into the document "
        "(`payload.level`; for text sources the names of the pattern).",
    )
    op: Literal[
        "equals",
        "not_equals",
        "in",
        "not_in",
        "matches",
        "contains",
        "prefix",
        "suffix",
        "less",
        "greater",
        "exists",
        "missing",
    ] = Field("equals", description="matches: a regular expression, searched.")
    value: str | int | float | bool | list[str | int | float] | None = Field(None, description="What is compared with.")
    ignore_case: bool = Field(True, description="For matches, contains, prefix and suffix.")
