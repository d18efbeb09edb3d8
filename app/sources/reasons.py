"""Why a record is no valid event: stable words for headers, metrics and grouping. A released word keeps its sense."""

from typing import Final

__all__ = ["REASONS"]

REASONS: Final[dict[str, str]] = {
    "null-value": "The record has no value (a tombstone).",
    "empty-value": "The value has zero bytes, or is an empty line.",
    "too-large": "The value has more bytes than ingest.max_event_bytes.",
    "not-utf8": "Somewhere in the value is a byte that isn't UTF-8 (UTF-16 and Latin-1 end here).",
    "invalid-json": "The value isn't JSON as RFC 8259 has it; a byte order mark, NaN and Infinity aren't either.",
    "too-deep": "Arrays and objects are nested deeper than ingest.max_depth.",
    "not-an-object": "The value is valid JSON, but null, a string, a number or (where an object is needed) an array.",
    "missing-field": "A field that the source needs is absent or null.",
    "bad-field": "A field has a wrong type, is empty, or is too long.",
    "bad-time": "A time can't be read, lies before 1970, or too far ahead of the broker's clock.",
    "no-match": "The line doesn't fit the source's pattern.",
    "bad-cloudevent": "The record is no CloudEvent 1.x in structured or binary mode.",
    "bad-request": "A record on model-requests isn't one of ours, or its task isn't declared any more.",
    "output-too-large": "What a stage made of the record is larger than its topic takes; headrace.field names the topic.",
    "stage-failed": "A stage raised an error on this record alone; the worker's log has it.",
}
"""Every reason, with its meaning. `app.sources` gives all but the last three, which come from the stages."""
