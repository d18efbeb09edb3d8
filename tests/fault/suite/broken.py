"""Workers with one thing wrong, for tests of the checker: `python -m tests.fault.suite.broken WHAT worker`.

Each patch takes away one of the things that the product's promise rests on. Nothing of this is in the product.
"""

import os
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["BUILDS", "main"]


def local_first() -> None:
    """The local copy is written before the transaction commits."""
    from app.delivery.transaction import Transaction

    write = Transaction.write

    async def wrong(self: Any, producer: Any, stage: Any, tp: Any, offset: Any, group: Any, behind: Any) -> Any:
        database = stage.state.database(tp.partition)
        reached = database.changelog_offset
        database.write(self.out.local.items(), -1 if reached is None else reached)
        return await write(self, producer, stage, tp, offset, group, behind)

    Transaction.write = wrong  # type: ignore[method-assign]


def offsets_outside() -> None:
    """Input offsets are committed beside the transaction, as a plain consumer does."""
    import aiokafka

    async def wrong(self: Any, offsets: dict[Any, int], group_id: str) -> None:
        from app.core import app

        thread = app.delivery._consumer._thread
        await thread.call_thread(thread._ensure_consumer().commit, offsets)

    aiokafka.AIOKafkaProducer.send_offsets_to_transaction = wrong


def no_fence() -> None:
    """Each process has transactional ids of its own: nobody fences a former owner."""
    from app.delivery import lane

    real = lane.new_producer

    async def wrong(settings: Any, transactional_id: str) -> Any:
        return await real(settings, f"{transactional_id}-{os.getpid()}")

    lane.new_producer = wrong


def no_trim() -> None:
    """A lane begins at the group's committed offset, as a plain consumer does, and takes whatever a fetch brings."""
    from app.delivery import lane
    from app.delivery.lane import Lane
    from app.delivery.positions import Position

    lane.locate = lambda applied, log: Position(next=log.initial if log.committed is None else log.committed)

    def wrong(self: Any, fetched: Any) -> None:
        if self._closing or self.stopped or not fetched.records:
            return
        self.inbox.expected = fetched.start
        self.inbox.add(fetched)
        self._wake.set()

    Lane.accept = wrong  # type: ignore[method-assign]


def read_uncommitted() -> None:
    """Inputs are read with what was aborted."""
    import aiokafka

    init = aiokafka.AIOKafkaConsumer.__init__

    def wrong(self: Any, *topics: str, **settings: Any) -> None:
        init(self, *topics, **{**settings, "isolation_level": "read_uncommitted"})

    aiokafka.AIOKafkaConsumer.__init__ = wrong


def by_place() -> None:
    """A model's labels are taken in their order, whatever numbers they carry."""
    import json

    from app.llm import asking

    def wrong(text: str, n: int, categories: Any, finish_reason: str = "") -> dict[int, str]:
        try:
            said = json.loads(text)
        except ValueError:
            return {}
        labels = [label for label in said.values() if label in categories] if isinstance(said, dict) else []
        return dict(enumerate(labels[:n], start=1))

    asking.parse_answers = wrong


BUILDS: dict[str, Callable[[], None]] = {
    "local-first": local_first,
    "offsets-outside": offsets_outside,
    "no-fence": no_fence,
    "no-trim": no_trim,
    "read-uncommitted": read_uncommitted,
    "by-place": by_place,
}


def main() -> None:
    BUILDS[sys.argv.pop(1)]()
    from app.main import main as headrace

    headrace()


if __name__ == "__main__":
    main()
