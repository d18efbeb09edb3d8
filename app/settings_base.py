"""What every part of the settings tree is made of."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, StringConstraints

__all__ = ["Name", "Section"]

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
"""Letters, digits, `.`, `_` and `-`: it becomes part of topic names, metrics labels and file names."""


class Section(BaseModel):
    """A part of the tree: frozen, and an unknown field is a mistake, not a wish."""

    model_config = ConfigDict(frozen=True, extra="forbid")
