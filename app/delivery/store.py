"""What Faust's table machinery asks of a store; reads and writes go through `app.delivery.database`."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from faust.stores.base import Store as FaustStore
from faust.types import TP

from app.delivery.local_copies import LocalCopies

__all__ = ["Store"]


class Store(LocalCopies, FaustStore[bytes, bytes]):
    """What Faust's table machinery asks of a store. Reads and writes go through `Database`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        FaustStore.__init__(self, *args, **kwargs)
        LocalCopies.__init__(self)

    @property
    def _place(self) -> tuple[Path, str, str]:
        return Path(self.app.conf.tabledir), self.table_name, self.table.changelog_topic.get_topic_name()

    def persisted_offset(self, tp: TP) -> int | None:
        return None  # Faust's own recovery, which would ask, is replaced (see app.delivery.restore)

    def set_persisted_offset(self, tp: TP, offset: int) -> None:
        """Nothing to do: `Database.write` notes the offset with the changes."""

    async def need_active_standby_for(self, tp: TP) -> bool:
        return True

    async def on_rebalance(
        self, assigned: set[TP], revoked: set[TP], newly_assigned: set[TP], generation_id: int = 0
    ) -> None:
        mine = set(self.table.changelog_topic.topics)
        for tp in revoked:
            if tp.topic in mine and tp not in assigned:
                self._close(tp.partition)

    async def stop(self) -> None:
        self.close()
        await super().stop()

    # Parts of Faust's store interface that nothing of ours calls: a caller learns what serves instead.
    async def backup_partition(self, tp: TP | int, flush: bool = True, purge: bool = False, keep: int = 1) -> None:
        raise TypeError("the changelog is the backup")

    def restore_backup(self, tp: TP | int, latest: bool = True, backup_id: int = 0) -> None:
        raise TypeError("the changelog is the backup")

    def reset_state(self) -> None:
        for partition in list(self._open):
            self.set_aside(partition, "reset")

    def apply_changelog_batch(self, batch: Iterable[Any], to_key: Any, to_value: Any) -> None:
        raise TypeError("State applies changelog batches itself")

    # Faust's tables are mappings; State isn't read that way, and says so rather than answering half-truths.
    def __getitem__(self, key: bytes) -> bytes:
        raise KeyError(key)

    def __setitem__(self, key: bytes, value: bytes) -> None:
        raise TypeError("write through an Outbox")

    def __delitem__(self, key: bytes) -> None:
        raise TypeError("write through an Outbox")

    def __iter__(self) -> Iterator[bytes]:
        return iter(())

    def __len__(self) -> int:
        return 0
