"""What a map's values look like, written beside them: rows of another layout are refused instead of misread.

Every State keeps, under `KINDS`, a description of each map's type. msgspec reads rows by position or by field name and
knows nothing of the type they were written with; a field that changed its place would be taken for another.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from app.delivery.maps import Map

__all__ = ["KINDS", "Description", "describe", "misfit", "noted"]

KINDS = b"\x00kinds"
"""Key of the descriptions, in the changelog and in the local copy."""

Description = Any
"""Plain lists, texts and numbers, so that it is stored as msgpack and compared as it is."""


def noted(maps: Iterable[Map[Any]]) -> bytes:
    """The descriptions of a State's maps, as they are stored."""
    return msgspec.msgpack.encode({m.name: [m.prefix, describe(m.kind)] for m in maps})


def describe(kind: Any) -> Description:
    """A type as plain data: what decides how its values are laid out, and nothing else."""
    return _of(msgspec.inspect.type_info(kind), ())


def _of(info: Any, outer: tuple[type, ...]) -> Description:
    name = type(info).__name__.removesuffix("Type").lower()
    if isinstance(info, msgspec.inspect.StructType):
        if info.cls in outer:
            return ["again", len(outer) - outer.index(info.cls)]
        inner = (*outer, info.cls)
        fields = [[f.encode_name, int(f.required), _of(f.type, inner)] for f in info.fields]
        return ["array" if info.array_like else "object", info.tag, fields]
    if isinstance(info, msgspec.inspect.UnionType):
        return ["union", sorted((_of(t, outer) for t in info.types), key=repr)]
    if isinstance(info, msgspec.inspect.LiteralType):
        return ["literal", sorted(map(str, info.values))]
    if isinstance(info, msgspec.inspect.DictType):
        return ["map", _of(info.key_type, outer), _of(info.value_type, outer)]
    if isinstance(info, msgspec.inspect.TupleType):
        return ["tuple", *[_of(t, outer) for t in info.item_types]]
    item = getattr(info, "item_type", None)
    return [name] if item is None else ["list", _of(item, outer)]


def misfit(stored: bytes, maps: Iterable[Map[Any]]) -> str:
    """Why rows that were written with the stored descriptions can't be read with these maps; empty when they can.

    A new map is fine, and so is a new field with a default at the end of a struct: old rows are read with the default.
    """
    was = msgspec.msgpack.decode(stored)
    for each in maps:
        before = was.get(each.name)
        if before is None:
            taken = next((name for name, (prefix, _) in was.items() if prefix == each.prefix), None)
            if taken is not None and not any(m.name == taken for m in maps):
                return f"map {each.name} would read the rows of {taken}, which had its prefix before"
            continue
        if before[0] != each.prefix:
            return f"map {each.name} has another prefix than its rows"
        why = _differs(before[1], describe(each.kind))
        if why:
            return f"map {each.name}: {why}"
    return ""


def _differs(old: Description, new: Description) -> str:
    if old == new:
        return ""
    if old[0] != new[0]:
        return f"its values were {old[0]}, now {new[0]}"
    if old[0] not in ("array", "object"):
        return f"its values changed from {old} to {new}"
    if old[1] != new[1]:
        return f"its tag was {old[1]!r}, now {new[1]!r}"
    return _fields_differ(old[0], old[2], new[2])


def _fields_differ(layout: str, old: list[Any], new: list[Any]) -> str:
    if layout == "array":
        if [f[0] for f in new[: len(old)]] != [f[0] for f in old]:
            return f"its fields were {', '.join(f[0] for f in old)}, now {', '.join(f[0] for f in new)}"
        pairs = list(zip(old, new, strict=False))
    else:
        names = {f[0]: f for f in new}
        pairs = [(f, names[f[0]]) for f in old if f[0] in names]
    known = {f[0] for f in old}
    for name, required, _ in new:
        if name not in known and required:
            return f"field {name} is new and has no default"
    for before, now in pairs:
        why = _differs(before[2], now[2])
        if why or (now[1] and not before[1]):
            return f"field {now[0]}: {why or 'it lost its default'}"
    return ""
