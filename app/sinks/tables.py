"""What sinks keep: one table a topic, its columns read off the models, and records as rows of it.

Scalars have a column each, also those of a part (`source_topic`, `tokens_prompt`); lists and objects stay JSON, as they were
written: no digit of a number is lost. Behind them stands the record's place, by which an older write is told from a newer one.
"""

import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal, Union, get_args, get_origin

import msgspec

from models.results import Result, Review
from models.windows import Incident, Window

__all__ = ["OFFSET", "PARTITION", "TABLES", "TIMESTAMP", "Column", "Kind", "Table", "Unreadable"]

Kind = Literal["text", "integer", "small", "number", "boolean", "json", "bytes"]
SCALARS: Mapping[Any, Kind] = {str: "text", int: "integer", float: "number", bool: "boolean"}
PLAIN: Mapping[Kind | None, Any] = {kind: plain for plain, kind in SCALARS.items()}

PARTITION, OFFSET, TIMESTAMP = "kafka_partition", "kafka_offset", "kafka_timestamp_ms"


class Unreadable(Exception):
    """A record that isn't what its topic holds. The message has no word of the payload."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column."""

    name: str
    kind: Kind
    nullable: bool = False


PLACE = (Column(PARTITION, "small"), Column(OFFSET, "integer"), Column(TIMESTAMP, "integer"))


class Table:
    """The table of a topic.

    Args:
        topic: short name.
        model: of its values.
        key: the column that is upserted by.
        keyed: the record's key is this key too, so that a tombstone says which row goes.
    """

    def __init__(self, topic: str, model: type[msgspec.Struct], key: str, *, keyed: bool) -> None:
        self.topic, self.name, self.key, self.keyed = topic, topic.replace("-", "_"), key, keyed
        found = list(_flat(model))
        self.columns = (*(column for column, _ in found), *PLACE)
        self._key = [column.name for column in self.columns].index(key)
        self._json = [index for index, (column, _) in enumerate(found) if column.kind == "json"]
        self._values = attrgetter(*(path for _, path in found))
        self._decode = msgspec.json.Decoder(_loose(model)).decode

    def row(self, value: bytes) -> tuple[Any, ...]:
        """The values of all columns but the record's place, in order.

        Raises:
            Unreadable: it isn't JSON of this form.
        """
        try:
            values = list(self._values(self._decode(value)))
            for index in self._json:
                text = bytes(values[index]).decode()
                values[index] = None if text == "null" else text
        except (msgspec.ValidationError, RecursionError) as error:
            raise Unreadable(f"not a record of {self.topic}: {str(error)[:200]}") from None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Unreadable(f"not JSON ({type(error).__name__})") from None
        return tuple(values)

    def key_of(self, values: tuple[Any, ...]) -> str:
        found: str = values[self._key]
        return found


def _flat(model: type[msgspec.Struct], prefix: str = "", dotted: str = "") -> Any:
    """Columns of a model, each with the path of its value."""
    for field in msgspec.structs.fields(model):
        name, path = prefix + field.name, dotted + field.name
        if _is_model(field.type):
            yield from _flat(field.type, f"{name}_", f"{path}.")
            continue
        kind = _scalar(field.type)
        nullable = kind is None and type(None) in get_args(field.type)
        yield Column(name, kind or "json", nullable), path


def _loose(model: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """The model with lists and objects left as they stand, and any text where the model has a closed set."""
    fields: list[Any] = []
    for field in msgspec.structs.fields(model):
        kind: Any = field.type
        if not _is_model(kind):
            kind = PLAIN.get(_scalar(kind), msgspec.Raw)
        if field.required:
            fields.append((field.name, kind))
            continue
        factory = field.default_factory
        default = field.default if factory is msgspec.NODEFAULT else factory()
        if kind is msgspec.Raw:
            default = msgspec.Raw(msgspec.json.encode(default))
        fields.append((field.name, kind, msgspec.field(default_factory=_always(default))))
    return msgspec.defstruct(model.__name__, fields, kw_only=True, gc=False)


def _always(value: Any) -> Callable[[], Any]:
    return lambda: value


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _scalar(kind: Any) -> Kind | None:
    if get_origin(kind) is Literal:
        return SCALARS.get(type(get_args(kind)[0]))
    if get_origin(kind) in (Union, types.UnionType):
        return None
    return SCALARS.get(kind)


TABLES = {
    table.topic: table
    for table in (
        Table("ai-results", Result, "event_id", keyed=True),
        Table("manual-review", Review, "event_id", keyed=True),
        Table("agg-events", Window, "id", keyed=False),
        Table("agent-trigger", Incident, "id", keyed=False),
    )
}
"""By the topic's short name."""
