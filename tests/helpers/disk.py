"""Small disks, to be filled. A tmpfs that root mounts; elsewhere there is none, and the reason is said."""

import os
import subprocess
from pathlib import Path

__all__ = ["NoDisk", "fill", "mount", "unmount"]

BLOCK = b"x" * (1 << 16)


class NoDisk(Exception):
    """This machine lets us mount nothing."""


def mount(folder: Path, mib: int) -> None:
    """Mounts a disk of so many MiB on a folder.

    Raises:
        NoDisk: it isn't allowed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if os.geteuid():
        raise NoDisk("only root may mount a disk")
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "none", str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise NoDisk(f"no disk can be mounted: {done.stderr.strip()}")


def unmount(folder: Path) -> None:
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Leaves not a byte free; returns the file to remove."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as out:
        for size in (len(BLOCK), 512, 1):
            try:
                while out.write(BLOCK[:size]):
                    pass
            except OSError:
                continue
    return filler
