"""A real Apache Kafka in the background of this machine, without Docker or a system Java.

One node in KRaft mode, on a folder that is locked while it runs. Jars and Java come from `app.broker.jars`.
"""

import asyncio
import base64
import contextlib
import ctypes
import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import IO

from app.broker.jars import VERSION, archive_file, jars, java
from app.broker.private import write_private
from app.broker.secure import Secured
from app.errors import BrokerError
from app.folder_lock import FolderInUse, lock_folder
from app.waiting import poll

__all__ = ["EmbeddedKafka", "die_with_parent", "free_port", "port_is_free"]

INDEX_BYTES = 10 << 20
"""Kafka preallocates index files of this size for every partition."""
MIN_FREE_BYTES = 20 * INDEX_BYTES
"""Below this it dies half-started."""
READY_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 20.0
PR_SET_PDEATHSIG = 1
TRAINING_STOP_TIMEOUT_S = 60.0
"""Writing the class archive takes 7 s on two cores."""
JVM = ("-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", "-Djava.awt.headless=true")
LOOPBACK = ("127.0.0.1", "localhost", "::1")

LOG4J = """Configuration:
  status: warn
  shutdownHook: disable
  Appenders:
    RollingFile:
      name: file
      fileName: "%(file)s"
      filePattern: "%(file)s.%%i"
      PatternLayout: {pattern: "%%d %%p %%m (%%c)%%n"}
      Policies:
        SizeBasedTriggeringPolicy: {size: 10 MB}
      DefaultRolloverStrategy: {max: "4"}
  Loggers:
    Root: {level: INFO, AppenderRef: {ref: file}}
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def port_is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server can listen at this port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def new_cluster_id() -> str:
    """22 characters of base64url, as Kafka makes them itself; never with a `-` in front, which would read as an option."""
    while (made := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return made


class EmbeddedKafka:
    """One broker process of ours on a data folder.

    Args:
        data_dir: its folder; locked while it runs.
        port: 0 is any free one.
        advertised_host: what clients are told. With a name of this machine the broker listens on all interfaces, without
            it on 127.0.0.1 only.
        properties: more server properties, or others. Clients use the listener CLIENTS; the broker itself, and
            `internal`, use INTERNAL.
        secured: certificates and users; without it there is no password on any listener.
        say: told what takes long.
    """

    def __init__(
        self,
        data_dir: Path,
        port: int = 0,
        *,
        advertised_host: str = "127.0.0.1",
        properties: dict[str, str] | None = None,
        secured: Secured | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.data_dir, self.port = data_dir.absolute(), port
        self.advertised_host, self.properties, self.say = advertised_host, properties or {}, say
        self.secured = secured
        self.process: subprocess.Popen[bytes] | None = None
        self.bind_host = "127.0.0.1" if advertised_host in LOOPBACK else "0.0.0.0"  # noqa: S104  # asked for by name
        self._internal_port = 0
        self._training: Path | None = None
        self._lock: IO[str] | None = None

    @property
    def bootstrap(self) -> str:
        return f"{self.advertised_host}:{self.port}"

    @property
    def internal(self) -> str:
        """The broker's own listener, on 127.0.0.1 only: open, or with `secured` for the broker's own certificate alone."""
        return f"127.0.0.1:{self._internal_port}"

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
            self._train(libs)
            self._configure()
            self._format(libs)
            self._launch(libs)
            self._await_ready()
            if self.secured is not None:
                asyncio.run(self.secured.grant(f"127.0.0.1:{self.port}"))
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
        try:
            self._lock = lock_folder(self.data_dir / "broker.lock")
        except FolderInUse as error:
            raise BrokerError(
                f"data folder {self.data_dir} is in use by the broker with process id {error.holder}; stop that one, or "
                "give this one a folder of its own with --data-dir"
            ) from None
        os.set_inheritable(self._lock.fileno(), True)  # Kafka keeps the lock as long as it lives, even without us

    def _check_port(self) -> None:
        if not self.port:
            return
        if not port_is_free(self.port, self.bind_host):
            raise BrokerError(
                f"port {self.port} on {self.bind_host} is taken; another broker may run there. Choose another with --port, and "
                "set HEADRACE_KAFKA__BOOTSTRAP_SERVERS to it"
            )

    def _train(self, libs: Path) -> None:
        """Once per cache: keeps Kafka's classes ready to map, which halves every later start (4.5 to 2.1 s, 2 cores)."""
        archive = archive_file(libs)
        if archive is None or archive.exists() or self._training is not None:
            return
        self.say("preparing quicker starts (once, about 15 s)")
        # A cache that can't be written, or a start that fails here, costs only the gain.
        with (
            contextlib.suppress(OSError, BrokerError),
            tempfile.TemporaryDirectory(prefix="fetching-", dir=archive.parent) as folder,
        ):
            trial = EmbeddedKafka(Path(folder) / "data")
            trial._training = Path(folder) / "classes.aot"
            try:
                trial.start()
                trial.stop(TRAINING_STOP_TIMEOUT_S)
            finally:
                trial.kill()
            trial._training.touch()  # a runtime that can't leaves none: an empty file says so, and isn't used
            trial._training.replace(archive)

    def _archive_flags(self, libs: Path) -> list[str]:
        if self._training is not None:
            return [f"-XX:AOTCacheOutput={self._training}"]
        archive = archive_file(libs)
        if archive is None or not archive.is_file() or not archive.stat().st_size:
            return []
        return [f"-XX:AOTCache={archive}"]  # one that doesn't fit is passed over by the JVM

    def _configure(self) -> None:
        controller, self._internal_port = free_port(), free_port()
        config = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            # The broker talks to itself on a listener of its own: it may not reach the name that clients are told.
            "listeners": f"CLIENTS://{self.bind_host}:{self.port},INTERNAL://{self.internal},"
            f"CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"CLIENTS://{self.bootstrap},INTERNAL://{self.internal}",
            "listener.security.protocol.map": "CLIENTS:PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "INTERNAL",
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
        }
        if self.secured is not None:
            config |= self.secured.prepare(self.bootstrap)
        text = "".join(f"{name}={value}\n" for name, value in (config | self.properties).items())
        write_private(self.data_dir / "server.properties", text)  # it may hold passwords
        (self.data_dir / "log4j2.yaml").write_text(LOG4J % {"file": self.log_file}, encoding="utf-8")

    def _format(self, libs: Path) -> None:
        if (self.data_dir / "logs" / "meta.properties").is_file():
            return
        cluster = new_cluster_id()
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
        with contextlib.suppress(FileNotFoundError):  # kept for whoever asks why the last one ended
            self.log_file.replace(self.data_dir / "server.log.previous")
        command = [
            str(java()), *JVM, *self._archive_flags(libs), "-cp", f"{libs}/*",
            f"-Dlog4j2.configurationFile={self.data_dir / 'log4j2.yaml'}",
            "kafka.Kafka", str(self.data_dir / "server.properties"),
        ]  # fmt: skip
        assert self._lock is not None
        with (self.data_dir / "stdout.log").open("wb") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C goes to us, and we stop it in order
                pass_fds=(self._lock.fileno(),),
                preexec_fn=die_with_parent,
            )

    def _await_ready(self) -> None:
        def answers() -> bool:
            if self.process is not None and self.process.poll() is not None:
                raise BrokerError(f"Kafka ended while starting: {self.last_error()}")
            return self._answers()

        if not poll(answers, READY_TIMEOUT_S, 0.05):
            raise BrokerError(
                f"Kafka isn't ready after {READY_TIMEOUT_S:.0f} s: {self.last_error()}; see {self.log_file}"
            )

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
        for word, why in (
            ("No space left", "the disk is full"),
            ("Read-only file system", "the disk is read-only"),
            ("UnsupportedVersionException", f"a newer Kafka than {VERSION} wrote this folder; remove it to begin anew"),
        ):
            if any(word in line for line in lines):
                return f"{why} ({self.data_dir})"
        with contextlib.suppress(OSError):  # on a full disk Kafka can't even log that it is
            if shutil.disk_usage(self.data_dir).free < INDEX_BYTES:
                return f"the disk is full ({self.data_dir})"
        return (worst or lines or ["no output"])[-1][:300]

    def wait(self) -> int:
        """Waits for its end; returns the exit status."""
        assert self.process is not None
        return self.process.wait()

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Stops it in order, killing it after the time limit; a clean stop makes the next start quick."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout_s)
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
