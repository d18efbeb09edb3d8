"""`headrace broker` as a process of its own, with what it says."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from tests.helpers.processes import wait_until

__all__ = ["BrokerProcess", "clean_env"]

ROOT = Path(__file__).parents[2]
START_S = 90.0
"""The very first start of a machine also fetches the jars and prepares the class archive."""
STOP_S = 30.0
"""1 s on an idle machine; tests share theirs."""


def clean_env(**env: str) -> dict[str, str]:
    """This environment without settings of ours, plus those given."""
    return {k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_") or k == "HEADRACE_CACHE_DIR"} | env


class BrokerProcess:
    """One `headrace broker`.

    Args:
        folder: for its output, and its data unless `data_dir` says otherwise.
        arguments: more of its command line.
        before: a command line that is put before it, such as one that enters a namespace.
        data_dir: its data folder.
    """

    def __init__(
        self, folder: Path, *arguments: str, before: tuple[str, ...] = (), data_dir: Path | None = None, **env: str
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.data_dir = data_dir or folder / "kafka"
        self.out, self.err = folder / "broker.out", folder / "broker.err"
        command = [sys.executable, "-m", "app", "broker", "--data-dir", str(self.data_dir), *arguments]
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [*before, *command], stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                env=clean_env(HEADRACE_DATA_DIR=str(folder), **env), cwd=ROOT, start_new_session=True,
            )  # fmt: skip

    def ready(self) -> str:
        """Waits until it says so; returns its address."""
        wait_until(lambda: b"\n" in self.out.read_bytes() or self.process.poll() is not None, START_S, "broker ready")
        assert self.process.poll() is None, self.said
        word, address = self.out.read_text().split()
        assert word == "ready"
        return address

    @property
    def said(self) -> str:
        """What it wrote to standard error."""
        return self.err.read_text(errors="replace")

    def java(self) -> psutil.Process:
        """Kafka itself."""
        return next(p for p in psutil.Process(self.process.pid).children(recursive=True) if p.name() == "java")

    def ended(self, seconds: float = START_S) -> int:
        """Waits for its end; returns the exit status."""
        return self.process.wait(seconds)

    def stop(self, number: int = signal.SIGTERM, seconds: float = STOP_S) -> int:
        """Asks it to stop; returns the exit status."""
        self.process.send_signal(number)
        return self.process.wait(seconds)

    def end(self) -> None:
        """Whatever happened: nothing of it stays."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
