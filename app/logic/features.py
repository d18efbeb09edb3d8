"""Features of a window: how a value is added to a state, how two states make one, and what is shown. Pure.

States are plain msgpack values; None stands for no value. States of one hop are added to in the order of the
partition, those of a window merged in the order of its hops, so that sums of floats come out the same every time.
"""

import hashlib
from bisect import bisect_left
from collections.abc import Callable
from math import isfinite
from typing import Any, Literal, Protocol, assert_never

from app.settings_windows import FeatureSettings
from app.sources.paths import as_text

__all__ = ["Feature", "as_number", "compile_feature"]

HASHES = 1 << 63
_blake2b = hashlib.blake2b


class Feature(Protocol):
    """One kind of feature."""

    name: str

    def add(self, state: Any, value: object, at_ms: int, offset: int) -> Any:
        """The state with one more value."""

    def merge(self, state: Any, more: Any) -> Any:
        """Two states as one; neither is None."""

    def show(self, state: Any) -> int | float | None:
        """The number."""

    def estimated(self, state: Any) -> bool:
        """Whether it is an estimate."""


def compile_feature(settings: FeatureSettings) -> Feature:
    """The feature of a kind."""
    kind = settings.kind
    if kind == "sum":
        return _Sum(settings.name)
    if kind == "min" or kind == "max":
        return _Extreme(settings.name, kind)
    if kind == "first" or kind == "last":
        return _Place(settings.name, kind == "last")
    if kind == "distinct":
        return _Distinct(settings.name, settings.limit)
    assert_never(kind)


def as_number(value: object) -> int | float | None:
    """A finite number, also when it is written as text; None for anything else."""
    if type(value) is float or type(value) is int:
        return value if -HASHES < value < HASHES else None  # NaN is in no range
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = value if isinstance(value, int | float) else float(value)
        return number if isfinite(number) and abs(number) < HASHES else None
    except (ValueError, OverflowError):
        return None


class _Sum:
    """sum. Beyond 64 bits it goes on as a float."""

    def __init__(self, name: str) -> None:
        self.name = name

    def add(self, state: Any, value: object, at_ms: int, offset: int) -> Any:
        number = value if type(value) is float and -HASHES < value < HASHES else as_number(value)
        if number is None or state is None:
            return state if number is None else number
        total = state + number
        return total if type(total) is float or -HASHES < total < HASHES else float(total)

    def merge(self, state: Any, more: Any) -> Any:
        total = state + more
        return total if type(total) is float or -HASHES < total < HASHES else float(total)

    def show(self, state: Any) -> int | float | None:
        return state if state is None or isfinite(state) else None

    def estimated(self, state: Any) -> bool:
        return False


class _Extreme:
    """min, max."""

    def __init__(self, name: str, kind: Literal["min", "max"]) -> None:
        self.name = name
        self._both: Callable[[Any, Any], Any] = min if kind == "min" else max

    def add(self, state: Any, value: object, at_ms: int, offset: int) -> Any:
        number = as_number(value)
        if number is None:
            return state
        return number if state is None else self._both(state, number)

    def merge(self, state: Any, more: Any) -> Any:
        return self._both(state, more)

    def show(self, state: Any) -> int | float | None:
        return state if state is None or isfinite(state) else None

    def estimated(self, state: Any) -> bool:
        return False


class _Place:
    """first, last: by event time, then offset. The state is [event time, offset, number]."""

    def __init__(self, name: str, last: bool) -> None:
        self.name, self.last = name, last

    def add(self, state: Any, value: object, at_ms: int, offset: int) -> Any:
        number = as_number(value)
        if number is None:
            return state
        return [at_ms, offset, number] if state is None else self.merge(state, [at_ms, offset, number])

    def merge(self, state: Any, more: Any) -> Any:
        return more if (more[:2] > state[:2]) is self.last else state

    def show(self, state: Any) -> int | float | None:
        return None if state is None else state[2]

    def estimated(self, state: Any) -> bool:
        return False


class _Distinct:
    """How many different values: the smallest `limit` + 1 hashes, sorted.

    Exact while there are no more than `limit`; above it the estimate of k minimum values (Bar-Yossef et al. 2002). The
    state is bounded, and the same in whatever order values come.
    """

    def __init__(self, name: str, limit: int) -> None:
        self.name, self.limit = name, limit

    def add(self, state: Any, value: object, at_ms: int, offset: int) -> Any:
        text = value if type(value) is str else as_text(value)
        mark = int.from_bytes(_blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "big") >> 1
        if state is None:
            return [mark]
        size = len(state)
        if size > self.limit and mark >= state[-1]:
            return state
        place = bisect_left(state, mark)
        if place == size or state[place] != mark:
            state.insert(place, mark)
            if size > self.limit:
                del state[self.limit + 1 :]
        return state

    def merge(self, state: Any, more: Any) -> Any:
        return sorted({*state, *more})[: self.limit + 1]

    def show(self, state: Any) -> int | float | None:
        if state is None:
            return 0
        return round(self.limit * HASHES / max(1, state[self.limit])) if self.estimated(state) else len(state)

    def estimated(self, state: Any) -> bool:
        return state is not None and len(state) > self.limit
