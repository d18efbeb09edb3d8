"""The inbox of a lane: records that were fetched and are in no batch yet, in order and without a gap."""

from collections import deque

from aiokafka.errors import KafkaError

from app.delivery.transport import Fetched, fetched_of
from app.errors import StateError
from models.events import Received

__all__ = ["Inbox"]


class Inbox:
    """Filled by whole fetches, emptied by batches. Its length is a count of records."""

    __slots__ = ("_fetched", "_records", "expected", "size_bytes", "unreadable")

    def __init__(self) -> None:
        self._fetched: deque[Fetched] = deque()
        self._records = 0
        self.size_bytes = 0
        self.expected = 0
        """The next offset that a fetch must start at, or before."""
        self.unreadable: KafkaError | StateError | None = None
        """Why no more input can be taken: the lane begins again from its position."""

    def __len__(self) -> int:
        return self._records

    def begin(self, offset: int) -> None:
        """Takes records from this offset on."""
        self.expected, self.unreadable = offset, None

    def clear(self) -> None:
        """Drops what waits; it is read again after the next `begin`."""
        self._fetched.clear()
        self._records = self.size_bytes = 0

    def add(self, fetched: Fetched) -> None:
        """Takes what a fetch brought, without the records that came before. A gap makes the input unreadable."""
        if fetched.start > self.expected:
            self.unreadable = StateError("the fetch left a gap (a seek by somebody else, or a cut log)")
        elif fetched.next > self.expected:
            if fetched.start < self.expected:
                records = [r for r in fetched.records if r.offset >= self.expected]
                fetched = fetched_of(records, fetched.start, fetched.next)
            self.expected = fetched.next
            if fetched.records:
                self._fetched.append(fetched)
                self._count(fetched, 1)

    def take(self, limit: int) -> list[Received]:
        """Up to so many records, in order."""
        records: list[Received] = []
        while self._fetched and len(records) < limit:
            fetched = self._fetched.popleft()
            self._count(fetched, -1)
            want = limit - len(records)
            records.extend(fetched.records[:want])
            if len(fetched.records) > want:
                rest = fetched_of(fetched.records[want:], fetched.start, fetched.next)
                self._fetched.appendleft(rest)
                self._count(rest, 1)
        return records

    def _count(self, fetched: Fetched, sign: int) -> None:
        self._records += sign * len(fetched.records)
        self.size_bytes += sign * fetched.size_bytes
