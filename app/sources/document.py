"""Bytes to JSON values: strict where RFC 8259 is, tolerant where real producers are, safe against hostile nesting.

msgspec reads nearly everything. What it refuses goes to the standard library, which decides: numbers beyond a double
or 64 bits and halves of surrogate pairs are valid JSON (RFC 8259, sections 6 and 7) and pass. Of a repeated key the
last one counts, in both.
"""

import json
import re
from typing import Any

import msgspec

from models.events import Bad

__all__ = ["are_utf8", "brackets", "check_utf8", "clean", "compact", "oversize", "parse", "too_deep"]

BOM = b"\xef\xbb\xbf"
MAX_INT_DIGITS = 4300
"""Python turns no longer literal into an int (a guard against quadratic time); a longer one becomes a float."""

_any = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
_SURROGATE = re.compile("[\ud800-\udfff]")
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON number")


def _int(literal: str) -> int | float:
    return int(literal) if len(literal) <= MAX_INT_DIGITS else float(literal)


_strict = json.JSONDecoder(parse_constant=_refuse_constant, parse_int=_int).decode


def oversize(value: bytes | None, max_bytes: int) -> Bad | None:
    """The outcome of a value that needs no parser: none, empty or too large."""
    if value is None:
        return Bad(reason="null-value", message="the record has no value; a producer sent a tombstone")
    if not value:
        return Bad(reason="empty-value", message="the value has zero bytes")
    if len(value) > max_bytes:
        return Bad(
            reason="too-large",
            message=f"{len(value)} bytes, allowed are {max_bytes} (ingest.max_event_bytes); send a reference instead",
        )
    return None


def check_utf8(value: bytes) -> Bad | None:
    """Bad when any byte isn't UTF-8. msgspec doesn't look into the strings of fields that it skips."""
    if value.isascii():
        return None
    try:
        value.decode()
    except UnicodeDecodeError as error:
        return Bad(reason="not-utf8", message=f"byte {error.start} isn't UTF-8; have the producer encode text as UTF-8")
    return None


def are_utf8(values: list[bytes]) -> bool:
    """Whether all of many values are UTF-8: one long text is checked in half the time of its parts."""
    try:
        b"\n".join(values).decode()  # a line feed ends what one value left open
    except UnicodeDecodeError:
        return False
    return True


def brackets(value: bytes) -> int:
    """At least the nesting depth, for next to nothing: how many arrays and objects could begin."""
    return value.count(b"{") + value.count(b"[")


def too_deep(value: bytes, max_depth: int) -> Bad | None:
    """Bad when arrays and objects are nested deeper than allowed. Exact up to the first error in the JSON."""
    if brackets(value) <= max_depth:
        return None
    # Strings fall out as every second piece between quotes, once escaped backslashes and quotes are gone.
    outside = b"".join(value.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])
    depth = 0
    for byte in outside.translate(None, _NOT_BRACKETS):
        if byte in b"[{":
            depth += 1
            if depth > max_depth:
                return Bad(reason="too-deep", message=f"nested deeper than {max_depth} (ingest.max_depth)")
        else:
            depth -= 1
    return None


def parse(value: bytes, max_depth: int) -> Any | Bad:
    """The JSON value, or Bad. Strings may hold lone surrogates: see `clean`."""
    bad = check_utf8(value) or too_deep(value, max_depth)
    if bad is not None:
        return bad
    try:
        return _any(value)
    except (msgspec.DecodeError, RecursionError) as error:
        # The usual fault, a value cut short, needs no second parser. (Half a surrogate pair near the end looks alike.)
        if str(error) == "Input data was truncated" and b"\\u" not in value:
            return Bad(reason="invalid-json", message=f"the value ends in the middle, after {len(value)} bytes")
        return _parse_strictly(value)


def _parse_strictly(value: bytes) -> Any | Bad:
    if value.startswith(BOM):
        return Bad(reason="invalid-json", message="the value begins with a UTF-8 byte order mark; leave it out")
    try:
        return _strict(value.decode())
    except json.JSONDecodeError as error:
        return Bad(reason="invalid-json", message=f"{error.msg} (character {error.pos})")
    except ValueError as error:
        return Bad(reason="invalid-json", message=str(error))
    except RecursionError:
        return Bad(reason="too-deep", message="nested too deep for the JSON parser")


def clean(text: str) -> str:
    """Text that every UTF-8 encoder takes: each half of a surrogate pair becomes U+FFFD."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def compact(value: object) -> str:
    """JSON without white space, as clean text."""
    try:
        return _encode(value).decode()
    except (UnicodeEncodeError, OverflowError, msgspec.MsgspecError):
        return clean(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
