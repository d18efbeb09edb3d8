"""The local copies of a State on this machine: which folder each partition has, and what becomes of one that can't be used."""

import logging
import shutil
import threading
import time
from abc import abstractmethod
from pathlib import Path

from app.delivery.database import COPY_OF, Database
from app.errors import StateDamaged, StateError

__all__ = ["LocalCopies"]

log = logging.getLogger("headrace.delivery")

KEPT_ASIDE = 2
"""Folders that were set aside are kept for a look, the newest two of each partition."""

_opening = threading.RLock()
"""Restore opens and closes databases beside the event loop, which may ask for one of them."""


class LocalCopies:
    """The local copies of one State, each opened on first use."""

    def __init__(self) -> None:
        self._open: dict[int, Database] = {}

    @property
    @abstractmethod
    def _place(self) -> tuple[Path, str, str]:
        """The folder they are in, the State's name, and its changelog's."""

    def database(self, partition: int) -> Database:
        """The open database of a partition; opens it on first use. What can't be read is set aside and begun anew."""
        found = self._open.get(partition)
        if found is None:
            with _opening:
                found = self._open.get(partition)
                if found is None:
                    found = self._open[partition] = self._open_or_begin(partition)
        return found

    def _open_or_begin(self, partition: int) -> Database:
        folder = self.folder(partition)
        try:
            found = Database(folder)
        except StateDamaged as error:
            self.set_aside(partition, str(error))
            found = Database(folder)
        if found.changelog_offset is None and found.get(COPY_OF) is None:
            found.note(COPY_OF, self.identity(partition))
        return found

    def identity(self, partition: int) -> bytes:
        """What COPY_OF says in a copy that belongs here."""
        return f"{self._place[2]}/{partition}".encode()

    def folder(self, partition: int) -> Path:
        root, name, _ = self._place
        return root / f"{name}-{partition}.db"

    @property
    def partitions(self) -> list[int]:
        return sorted(self._open)

    def reopen(self, partition: int, *, bulk: bool = False) -> None:
        """Closes a partition's database; the next use opens it afresh. With `bulk` it is opened at once, for a restore."""
        with _opening:
            self._close(partition)
            if bulk:
                self.database(partition)  # sets aside what is damaged
                self._close(partition)
                self._open[partition] = Database(self.folder(partition), bulk=True)

    def _close(self, partition: int) -> None:
        with _opening:
            opened = self._open.pop(partition, None)
            if opened:
                opened.close()

    def set_aside(self, partition: int, why: str) -> None:
        """Moves the local copy of a partition out of the way, and says where to: it is rebuilt from the changelog."""
        folder = self.folder(partition)
        try:
            self._close(partition)
        except StateError as error:
            log.warning("%s didn't close cleanly: %s", folder, error)
        if not folder.exists():
            return
        aside = folder.with_name(f"{folder.name}.aside-{time.time_ns() // 1_000_000}")
        folder.rename(aside)
        log.warning("%s, partition %d: %s; it is set aside as %s", self._place[1], partition, why, aside)
        for old in sorted(folder.parent.glob(f"{folder.name}.aside-*"))[:-KEPT_ASIDE]:
            shutil.rmtree(old, ignore_errors=True)

    def close(self) -> None:
        for partition in list(self._open):
            self._close(partition)
