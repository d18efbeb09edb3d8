"""The JSON Schema of fields to extract: what of it is taken, and whether an answer fits it.

Structured output of today's servers wants every property required and no others, so an object of plain properties is
what is taken. A field that may be missing says so with the type `["string", "null"]`.
"""

import functools
import json
from collections.abc import Mapping
from typing import Any

__all__ = ["LABEL_KEYS", "NUMBER_KEYS", "check_extract", "closed", "why_wrong"]

NUMBER_KEYS = ("number", "id", "n", "no", "item", "index")
LABEL_KEYS = ("category", "label", "answer", "class", "c")
"""Names, in any case, by which an item's number and its category are read from answers: no field can have them."""


def check_extract(task: str, schema: Mapping[str, Any]) -> None:
    """Refuses what can't be asked for.

    Raises:
        ValueError: says what is wrong.
    """
    from jsonschema import Draft202012Validator, SchemaError

    properties = schema.get("properties")
    if schema.get("type", "object") != "object" or not isinstance(properties, dict) or not properties:
        raise ValueError(f"task {task}, extract: an object with properties is needed")
    if taken := sorted(name for name in properties if name.casefold() in (*NUMBER_KEYS, *LABEL_KEYS)):
        raise ValueError(f"task {task}, extract: a field can't be called {taken[0]!r}; give it another name")
    if "$ref" in json.dumps(schema):
        raise ValueError(f"task {task}, extract: $ref isn't taken; write the schema out")
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise ValueError(f"task {task}, extract: no JSON Schema: {error.message}") from None


def closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with nothing left open: no other properties, and all required unless it says which are."""
    return {"required": list(schema["properties"]), **schema, "type": "object", "additionalProperties": False}


def why_wrong(schema: Mapping[str, Any], fields: Mapping[str, Any]) -> str:
    """Why fields don't fit the schema; empty where they do. Names the field, never its value."""
    error = next(_validator(json.dumps(closed(schema), sort_keys=True)).iter_errors(dict(fields)), None)
    if error is None:
        return ""
    where = ".".join(str(part) for part in error.absolute_path) or "the object"
    return f"{where} doesn't fit its {error.validator}"


@functools.lru_cache(64)
def _validator(schema: str) -> Any:
    from jsonschema import Draft202012Validator

    return Draft202012Validator(json.loads(schema))
