"""Removes what is older than its horizon from a packed map, a little at a time, beside the input."""

import itertools
from typing import Any

from app.delivery.lane import Lane
from app.delivery.maps import PackedMap
from app.delivery.outbox import Outbox
from app.delivery.state import View

__all__ = ["Expiry"]

EVERY_MS = 10_000
RECORDS_A_TIME = 2000
"""Packed records a transaction removes at most. Under a light load they hold a few rows each, and a lane makes up to 200 a
second: expiry has to remove more than that."""
ROWS_A_TIME = 40_000
"""Their rows likewise: two tenths of a second in which the worker does nothing else. A record of a full batch has 8,000."""
BYTES_A_TIME = 16 << 20
"""Their bytes likewise: they are in memory together."""


class Expiry:
    """Posts the removal as work without input; each lane has its own pace.

    Args:
        of: the map.
        horizon_ms: older rows go.
        most: packed records a partition may keep; above it the oldest go. 0: any number.
    """

    def __init__(self, of: PackedMap[Any], horizon_ms: int, most: int = 0) -> None:
        self.of, self.horizon_ms, self.most = of, horizon_ms, most
        self._next_ms: dict[Lane, int] = {}

    def tick(self, lane: Lane, now_ms: int) -> None:
        """Called about once a second for every lane that works."""
        if now_ms < self._next_ms.get(lane, 0):
            return
        self._next_ms = {k: v for k, v in self._next_ms.items() if k.ready}
        self._next_ms[lane] = now_ms + EVERY_MS
        records, more = self._old(lane.view, now_ms)
        if records:
            if more:
                self._next_ms[lane] = now_ms  # go on at the next tick
            lane.post(self._remove)

    def _old(self, view: View, now_ms: int) -> tuple[list[tuple[bytes, bytes]], bool]:
        """What is to go now; and whether a bound was reached, so that there may be more."""
        limit = self.of.age_limit(now_ms - self.horizon_ms)
        over = self._over(view)
        found: list[tuple[bytes, bytes]] = []
        rows = size = 0
        for record, packed in view.scan_rows(self.of.records, self.of.records):
            if record >= limit and len(found) >= over:
                break
            found.append((record, packed))
            rows, size = rows + self.of.count(packed), size + len(packed)
            if len(found) >= RECORDS_A_TIME or rows >= ROWS_A_TIME or size >= BYTES_A_TIME:
                return found, True
        return found, False

    def _over(self, view: View) -> int:
        """How many records there are too many; counts no further than it has to."""
        if not self.most:
            return 0
        rows = view.scan_rows(self.of.records, self.of.records)
        return sum(1 for _ in itertools.islice(rows, self.most + RECORDS_A_TIME)) - self.most

    def _remove(self, view: View, out: Outbox) -> None:
        for record, packed in self._old(view, out.now_ms)[0]:
            rows = self.of.unpack(packed)
            now = view.get_raw(self.of, [key for key, _ in rows])
            out.expire_packed(self.of, record, packed, now)
