"""A lock on a data folder: one process at a time, freed by the kernel when that process ends."""

import fcntl
import os
from pathlib import Path
from typing import IO

__all__ = ["FolderInUse", "lock_folder"]


class FolderInUse(Exception):
    """Another process holds the lock; `holder` is its process id as text, or `unknown`."""

    def __init__(self, holder: str) -> None:
        super().__init__(holder)
        self.holder = holder


def lock_folder(path: Path) -> IO[str]:
    """Locks a file, creates it if need be, and writes our process id into it.

    Returns:
        The open file: the lock lasts until it is closed.

    Raises:
        FolderInUse: another process has it.
    """
    file = path.open("a+", encoding="ascii")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read().strip() or "unknown"
        file.close()
        raise FolderInUse(holder) from None
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file
