"""Writes the tables of docs/configuration.md from the settings models, between its two marks.

python docs/generate.py
"""

import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from app.settings import SECRETS, Settings

__all__ = ["FILE", "rewritten", "rows", "sections"]

FILE = Path(__file__).parent / "configuration.md"
BEGIN, END = "<!-- generated: begin -->", "<!-- generated: end -->"

SAID_HERE = {
    "sources[].name": "Names the source in rules, metrics, tables and topics. Unique.",
    "noise[].name": "Counted under this name, and written into the header `headrace.rule`. Unique.",
    "tasks[].name": "Names the task in results and metrics. Unique.",
    "tasks[].rules[].name": "Becomes `why` of the result.",
    "tasks[].categories": "The possible answers, two or more.",
    "tasks[].categories[].id": "The answer as it stands in results. Unique within the task.",
    "aggregates": "Tables of the file only. The built-in ones go when the file has `sources` or `aggregates` of its own.",
    "aggregates[].name": "Names the aggregate in windows, metrics and intent rules. Unique.",
    "aggregates[].features": "Numbers of a window beside its counts.",
    "aggregates[].features[].name": "Its name in `features` of a window. Unique within the aggregate.",
    "intents": "Tables of the file only. The built-in ones go when the file has `sources` or `aggregates` of its own.",
    "intents[].name": "Becomes `why` of a result and `rule` of an incident. Unique.",
    "intents[].aggregate": "The aggregate whose windows it looks at.",
    "sinks": "Tables of the file only. Without any, `headrace sink` copies ai-results into `local.duckdb` in data_dir.",
    "log.level": "What is written to standard error. debug includes Faust's own messages.",
    "sources": "Tables of the file only. A list in the file replaces the built-in one as a whole.",
    "noise": "Tables of the file only. A list in the file replaces the built-in one as a whole.",
    "marks": "Tables of the file only. Events that not every provider may see.",
    "tasks": "Tables of the file only. An empty list: events are validated, deduplicated and filtered, no more.",
}
"""For fields whose model says nothing."""

BUILT_IN_LISTS = ("sources", "noise", "tasks", "aggregates", "intents")
BOUNDS = (("ge", "from {}"), ("gt", "above {}"), ("le", "to {}"), ("lt", "below {}"))


def sections(model: type[BaseModel] = Settings, prefix: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Every part of the tree with its dotted prefix, the whole tree first; `[]` marks elements of a list."""
    yield prefix, model
    for name, field in model.model_fields.items():
        inner, listed = _model_of(field.annotation)
        if inner is not None:
            yield from sections(inner, f"{prefix}{name}{'[]' if listed else ''}.")


def rows(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, str, str, str]]:
    """Dotted name, type, default and description of the fields of one part, without the parts inside it."""
    for name, field in model.model_fields.items():
        inner, listed = _model_of(field.annotation)
        if inner is not None and not listed:
            continue
        dotted = prefix + name
        text = field.description or SAID_HERE.get(dotted, "")
        yield dotted, _type(field), _default(dotted, field), text


def _model_of(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    if get_origin(annotation) is list:
        return _model_of(get_args(annotation)[0])[0], True
    return None, False


def _type(field: FieldInfo) -> str:
    said = _type_name(field.annotation)
    for attribute, form in BOUNDS:
        for limit in field.metadata:
            value = getattr(limit, attribute, None)
            if value is not None:
                said += f", {form.format(_number(value))}"
    return said


def _type_name(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin is Annotated:
        return _type_name(arguments[0])
    if origin is list:
        return f"list of {_type_name(arguments[0])}"
    if origin is tuple:
        return ", ".join(_type_name(each) for each in arguments)
    if origin is dict:
        return "table of texts"
    if origin in (Union, types.UnionType):
        return " or ".join(_type_name(each) for each in arguments if each is not type(None))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "tables"
    names = {str: "text", int: "integer", float: "number", bool: "true or false", Path: "path", SecretStr: "secret"}
    return names[annotation]


def _default(dotted: str, field: FieldInfo) -> str:
    if dotted in BUILT_IN_LISTS:
        return "the demo's"
    if dotted in SECRETS:
        return "empty"
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "required"
    if value is None:
        return "unset"
    if value in ("", [], {}):
        return "empty"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{_number(value)}`"


def _number(value: object) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _variable(dotted: str) -> str:
    return "HEADRACE_" + dotted.upper().replace(".", "__")


def generated() -> str:
    """The marked part."""
    lines = []
    for prefix, model in sections():
        where = prefix.rstrip(".")
        table = list(rows(model, prefix))
        heading = f"`{where}`" if where else "The top of the file"
        lines += [f"### {heading}", ""]
        if where:
            lines += [(model.__doc__ or "How the worker logs.").strip().splitlines()[0], ""]
            toml = f"[[{where.replace('[]', '')}]]" if where.endswith("[]") else f"[{where}]"
            how = f"In the file: `{toml}`."
            if "[]" not in where:
                how += f" In the environment: `{_variable(where)}__FIELD`."
            elif where.endswith(".when[]"):
                how = "In the file: a list of inline tables, `when = [{ field = ..., op = ..., value = ... }]`."
            lines += [how, ""]
        lines += ["| setting | type | default | what |", "|---|---|---|---|"]
        lines += [f"| {' | '.join(_cell(c) for c in (f'`{n}`', t, d, text))} |" for n, t, d, text in table]
        lines.append("")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def rewritten(page: str) -> str:
    """The page with its marked part made anew."""
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n\n{generated()}\n{END}{after}"


if __name__ == "__main__":
    old = FILE.read_text(encoding="utf-8")
    new = rewritten(old)
    FILE.write_text(new, encoding="utf-8")
    sys.stdout.write(f"{FILE.name}: {'no change' if new == old else 'rewritten'}\n")
