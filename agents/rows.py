"""State as it will be after the outbox at hand: what a step of the same transaction reads."""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice
from typing import Any

from app.delivery.database import prefix_end
from app.delivery.maps import Map
from app.delivery.outbox import Outbox
from app.delivery.state import View

__all__ = ["Rows"]


class Rows:
    """Reads through an outbox, whether the view holds it or not."""

    def __init__(self, view: View, out: Outbox) -> None:
        self.view, self.out = view, out
        self._sorted: list[bytes] = []
        self._known = 0
        """How many rows the outbox had when they were sorted."""

    def get_raw(self, of: Map[Any], keys: list[bytes]) -> list[bytes | None]:
        """The encoded values of keys, in their order."""
        found = self.view.get_raw(of, keys)
        local = self.out.local
        if local:
            for index, key in enumerate(keys):
                row = of.prefix + key
                if row in local:
                    found[index] = local[row]
        return found

    def scan(self, of: Map[Any], prefix: bytes, start: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Keys that begin with `prefix`, from `start` on, in order, with their encoded values."""
        whole = of.prefix + prefix
        begin = whole if start is None else of.prefix + start
        found = self.view.scan_rows(whole, begin)
        fresh = self._written(whole, begin)
        cut = len(of.prefix)
        for row, raw in self._merged(found, fresh) if fresh else found:
            yield row[cut:], raw

    def page(self, of: Map[Any], prefix: bytes, start: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Up to `limit` rows with this prefix from a key on; whole rows, with the map's own prefix."""
        whole, begin = of.prefix + prefix, of.prefix + start
        found = self.view.scan_rows(whole, begin)
        fresh = self._written(whole, begin)
        return list(islice(self._merged(found, fresh) if fresh else found, limit))

    def _merged(self, found: Iterator[tuple[bytes, bytes]], fresh: list[bytes]) -> Iterator[tuple[bytes, bytes]]:
        local, place = self.out.local, 0
        for row, raw in found:
            while place < len(fresh) and fresh[place] <= row:
                value = local[fresh[place]]
                if value is not None:
                    yield fresh[place], value
                place += 1
            if not place or fresh[place - 1] != row:
                yield row, raw
        for written in fresh[place:]:
            value = local[written]
            if value is not None:
                yield written, value

    def _written(self, prefix: bytes, begin: bytes) -> list[bytes]:
        """Rows of the outbox in a range, in order."""
        if len(self.out.local) != self._known:
            self._known = len(self.out.local)
            self._sorted = sorted(self.out.local)
        rows = self._sorted
        end = prefix_end(prefix)
        return rows[bisect_left(rows, begin) : bisect_left(rows, end) if end else len(rows)]
