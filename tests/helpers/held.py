"""State as a dictionary: applies outboxes, and is read as a View is."""

from itertools import islice
from typing import Any

from app.delivery.maps import Map
from app.delivery.outbox import Outbox

__all__ = ["Held"]


class Held:
    """The State of one partition."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}
        self.partition = 0

    def apply(self, out: Outbox) -> None:
        for key, value in out.local.items():
            if value is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = value

    def get(self, of: Any, key: bytes) -> Any:
        raw = self.rows.get(of.prefix + key)
        return None if raw is None else of.decode(raw)

    def get_raw(self, of: Any, keys: list[bytes]) -> list[bytes | None]:
        return [self.rows.get(of.prefix + key) for key in keys]

    def scan_rows(self, prefix: bytes, start: bytes) -> Any:
        return iter(sorted((k, v) for k, v in self.rows.items() if k.startswith(prefix) and k >= start))

    def scan(self, of: Map[Any], start: bytes = b"", limit: int | None = None) -> Any:
        rows = self.scan_rows(of.prefix, of.prefix + start)
        return ((key[len(of.prefix) :], of.decode(raw)) for key, raw in islice(rows, limit))

    def keys_of(self, of: Map[Any]) -> list[bytes]:
        """The keys of a map, in order."""
        return [key[len(of.prefix) :] for key in sorted(self.rows) if key.startswith(of.prefix)]
