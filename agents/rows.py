"""State as it will be after the outbox at hand: what a step of the same transaction reads."""

from collections.abc import Iterator
from typing import Any

from app.delivery.maps import Map
from app.delivery.outbox import Outbox
from app.delivery.state import View

__all__ = ["Rows"]


class Rows:
    """Reads through an outbox that isn't held by the view yet. Made when it is needed: later writes aren't scanned."""

    def __init__(self, view: View, out: Outbox) -> None:
        self.view, self.out = view, out
        self._sorted: dict[bytes, list[bytes]] = {}

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
        fresh = [row for row in self._written(of.prefix) if row >= begin and row.startswith(whole)]
        local, place, cut = self.out.local, 0, len(of.prefix)
        for row, raw in self.view.scan_rows(whole, begin):
            while place < len(fresh) and fresh[place] <= row:
                value = local.get(fresh[place])
                if value is not None:
                    yield fresh[place][cut:], value
                place += 1
            if not place or fresh[place - 1] != row:
                yield row[cut:], raw
        for written in fresh[place:]:
            value = local.get(written)
            if value is not None:
                yield written[cut:], value

    def _written(self, prefix: bytes) -> list[bytes]:
        found = self._sorted.get(prefix)
        if found is None:
            found = self._sorted[prefix] = sorted(row for row in self.out.local if row.startswith(prefix))
        return found
