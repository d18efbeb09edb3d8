"""Programs of Debian's packages that tests need: installed where that is possible, and never left out in CI."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

__all__ = ["needed", "on_path"]

INSTALL_S = 300
LOCK = Path(tempfile.gettempdir()) / "headrace-tests-apt.lock"
"""Test processes that run side by side install one after the other."""

T = TypeVar("T")


def on_path(*programs: str) -> str | None:
    """The first program's path if all are there."""
    found = [shutil.which(program) for program in programs]
    return found[0] if all(found) else None


def needed(look: Callable[[], T | None], *packages: str) -> T:
    """What `look` finds, after an installation if need be; skips the test where there is none, fails it in CI."""
    found = look()
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        with LOCK.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if look() is None:
                for command in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
                    subprocess.run(
                        ["apt-get", "-qq", *command], check=False, timeout=INSTALL_S, stdin=subprocess.DEVNULL
                    )
        found = look()
    if found is None:
        why = f"{', '.join(packages)} (Debian's packages) aren't installed"
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)
    return found
