"""Where each setting that is in force came from: the environment, the file, or the built-in default. Secrets are hidden."""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, SecretStr

from app.settings import Settings, config_path, load
from app.settings_files import read_file

__all__ = ["Setting", "changed_since", "in_force"]

HIDDEN = "••••••••"

_ADDRESS = re.compile(r"(?<=://)(\S*@)?([^\s?#]*)([?#]\S*)?")
"""An address after its scheme: name and password (a password may hold any sign, so up to the last @), place, query."""
_VARIABLE = re.compile(r"\$[A-Za-z_][A-Za-z0-9_]*")

Origin = Literal["environment", "file", "default"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting."""

    name: str
    """Dotted, as in docs/configuration.md."""
    value: str
    """As JSON writes it; a secret's is hidden, or says that it is empty."""
    origin: Origin
    where: str
    """The variable's name, or the file's."""
    description: str


def in_force(settings: Settings) -> list[Setting]:
    """All settings, by name. Reads the file anew, so it is called when the settings were loaded."""
    path = config_path()
    given = read_file(path) if path else {}
    return list(_walk(settings, given, "", str(path or "")))


def changed_since(settings: Settings) -> list[str]:
    """Sections that a restart would change.

    Raises:
        SettingsError: the file can't be taken as it is now.
    """
    now = load()
    return [name for name in type(now).model_fields if getattr(now, name) != getattr(settings, name)]


def _walk(part: BaseModel, given: Any, prefix: str, path: str) -> Iterator[Setting]:
    for name, field in type(part).model_fields.items():
        value, dotted = getattr(part, name), prefix + name
        inside = given.get(name) if isinstance(given, dict) else None
        if isinstance(value, BaseModel):
            yield from _walk(value, inside, f"{dotted}.", path)
            continue
        variable = _variable(dotted)
        origin: Origin = "environment" if variable else "default" if inside is None else "file"
        yield Setting(
            name=dotted, value=_shown(value), origin=origin, where=variable or (path if inside is not None else ""),
            description=field.description or "",
        )  # fmt: skip


def _variable(dotted: str) -> str:
    """The variable that sets it, or a section that it is in; empty: none does. Names are taken in any case."""
    set_here = {name.upper(): name for name in os.environ}
    parts = dotted.upper().split(".")
    names = ("HEADRACE_" + "__".join(parts[:n]) for n in range(len(parts), 0, -1))
    return next((set_here[name] for name in names if name in set_here), "")


def _shown(value: Any) -> str:
    if isinstance(value, SecretStr):
        return HIDDEN if value.get_secret_value() else ""
    return json.dumps(_plain(value), ensure_ascii=False, default=str)


def _plain(value: Any, name: str = "") -> Any:
    """A value without its secrets; `name`: of the setting that it is in."""
    match value:
        case BaseModel():
            return {field: _plain(each, field) for field, each in value if each not in (None, "", [], {})}
        case dict():
            return {key: _header(each) if name == "headers" else _plain(each, name) for key, each in value.items()}
        case list() | tuple():
            return [_plain(each, name) for each in value]
        case SecretStr():
            return _shown(value)
        case str():
            return _ADDRESS.sub(_address, value)
    return value


def _header(value: str) -> str:
    """Any header may be a secret, whatever its name: only a variable's name is shown."""
    return value if _VARIABLE.fullmatch(value) else HIDDEN


def _address(found: re.Match[str]) -> str:
    user, place, query = found.groups()
    return (f"{HIDDEN}@" if user else "") + place + (query[0] + HIDDEN if query else "")
