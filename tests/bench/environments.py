"""What the peers need: a virtual environment each, or a Java program built by Maven. Made once, kept in the user's cache."""

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from app.broker.jars import cache_folder

__all__ = ["Unavailable", "java_program", "python_of"]

HERE = Path(__file__).parent
JAVA = HERE / "java"
MIN_JAVA = 17
"""Kafka Streams 4 asks for it."""
READY = "ready"
"""A file that is written last: a folder without it was left by a run that was cut off."""
Say = Callable[[str], None]


class Unavailable(Exception):
    """Raised when a contestant can't run on this machine; says why."""


def python_of(name: str, say: Say) -> Path:
    """The interpreter of a peer's own environment, with the versions of `peers/NAME.txt`.

    Raises:
        Unavailable: its packages can't be installed.
    """
    wanted = HERE / "peers" / f"{name}.txt"
    folder = _folder(name, [wanted])
    with _made_once(folder) as make:
        if make:
            say(f"{name}: making its environment in {folder} (once)")
            _run([sys.executable, "-m", "venv", str(folder)], f"{name}: no environment")
            pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
            _run([*pip, "--requirement", str(wanted)], f"{name}: its packages can't be installed")
    return folder / "bin" / "python"


def java_program(say: Say) -> list[str]:
    """The command that starts the Kafka Streams program, up to its main class.

    Raises:
        Unavailable: there is no JDK, no Maven, or the build fails.
    """
    java, javac, maven = (shutil.which(name) for name in ("java", "javac", "mvn"))
    missing = [what for what, path in (("a JDK (java, javac)", java and javac), ("Maven (mvn)", maven)) if not path]
    if missing or not java or not maven:
        raise Unavailable(f"kstreams needs {' and '.join(missing)}")
    version = _java_version(java)
    if version < MIN_JAVA:
        raise Unavailable(f"kstreams needs Java {MIN_JAVA}, this is {version}")
    folder = _folder("kstreams", [JAVA / "pom.xml", *sorted(JAVA.rglob("*.java"))])
    with _made_once(folder) as make:
        if make:
            say(f"kstreams: building it in {folder} (once)")
            goals = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={folder / 'lib'}"]
            command = [maven, "-B", "-q", "-f", str(JAVA / "pom.xml"), f"-Dbench.target={folder}", *goals, "compile"]
            _run(command, "kstreams: Maven can't build it")
    return [java, "-Xmx1g", "-cp", f"{folder / 'classes'}{os.pathsep}{folder / 'lib'}/*"]


def _java_version(java: str) -> int:
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', said)
    return int(found[1]) if found else 0


def _folder(name: str, sources: list[Path]) -> Path:
    """Named by what it is made from, so that a change makes a new one."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:10]
    return cache_folder() / "bench" / f"{name}-{digest}"


@contextlib.contextmanager
def _made_once(folder: Path) -> Iterator[bool]:
    """Gives True when the folder is to be made; one process at a time."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ready = folder / READY
        make = not ready.is_file()
        if make:
            shutil.rmtree(folder, ignore_errors=True)
        yield make
        if make:
            ready.touch()


def _run(command: list[str], failed: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"{failed}: {(done.stderr or done.stdout).strip()[-500:]}")
