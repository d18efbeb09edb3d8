"""Paths and templates of a source's mapping, compiled once.

A path is a JMESPath. Plain dotted names, nearly all there are, skip the JMESPath interpreter (10 times the cost).
"""

import re
from collections.abc import Callable
from typing import Any, cast

import jmespath
from jmespath.exceptions import JMESPathError

from app.errors import SettingsError
from app.sources.document import clean, compact

__all__ = ["Getter", "Texter", "as_text", "compile_path", "compile_text", "names_of"]

Getter = Callable[[Any], object]
Texter = Callable[[Any], str]

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")
_HOLE = re.compile(r"\{([^{}]+)\}")


def compile_path(path: str, where: str) -> Getter:
    """A function that takes a document and gives the value at the path, or None.

    Args:
        path: a JMESPath.
        where: the setting it comes from, for the error.

    Raises:
        SettingsError: it is no JMESPath. Not retryable.
    """
    if _PLAIN.fullmatch(path):
        return _plain(path.split("."))
    try:
        expression = jmespath.compile(path)
    except JMESPathError as error:
        message = str(error).splitlines()[0]
        raise SettingsError(f"{where}: {path!r} is no JMESPath ({message}); see jmespath.org") from None

    def search(document: Any) -> object:
        try:
            return cast(object, expression.search(document))
        except Exception:  # noqa: BLE001 - its functions raise whatever Python does on a value of the wrong type
            return None

    return search


def _plain(keys: list[str]) -> Getter:
    if len(keys) == 1:
        only = keys[0]
        return lambda document: document.get(only) if type(document) is dict else None

    def walk(document: Any) -> object:
        for key in keys:
            if type(document) is not dict:
                return None
            document = document.get(key)
        return cast(object, document)

    return walk


def as_text(value: object) -> str:
    """A value as a person would write it: text as it is, nothing for null, compact JSON for the rest."""
    if isinstance(value, str):
        return clean(value)
    return "" if value is None else compact(value)


def compile_text(template: str, where: str) -> Texter:
    """A function that takes a document and gives text: of a path, or of a template with `{paths}`.

    Anything in braces makes it a template; a text is never a JMESPath multi-select hash.

    Raises:
        SettingsError: a path in it is no JMESPath. Not retryable.
    """
    if not _HOLE.search(template):
        get = compile_path(template, where)
        return lambda document: as_text(get(document))
    parts = _HOLE.split(template)
    literals, getters = parts[::2], [compile_path(path.strip(), where) for path in parts[1::2]]

    def fill(document: Any) -> str:
        out = [literals[0]]
        for getter, literal in zip(getters, literals[1:], strict=True):
            out += (as_text(getter(document)), literal)
        return "".join(out)

    return fill


def names_of(template: str) -> list[str]:
    """The first names of a plain path or of the paths in a template: what a pattern must have as groups."""
    paths = _HOLE.findall(template) or [template]
    return [path.strip().split(".")[0] for path in paths if _PLAIN.fullmatch(path.strip())]
