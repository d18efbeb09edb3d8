"""A real `headrace sink` process, started and ended by pid."""

import signal
import subprocess
import sys
from pathlib import Path

from tests.helpers.processes import clean_environment, free_port, wait_until

__all__ = ["SinkProcess"]

ROOT = Path(__file__).parents[2]


class SinkProcess:
    """One `headrace sink`.

    Args:
        folder: for its log.
        env: its settings.
        names: of the sinks that it runs; none: all.
    """

    def __init__(self, folder: Path, env: dict[str, str], *names: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.log, self.metrics_port, self.names = folder / f"sink-{'-'.join(names)}.log", free_port(), names
        self.env = clean_environment({"HEADRACE_DATA_DIR": str(folder), **env})
        self._before = 0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> "SinkProcess":
        self._before = len(self.said)
        command = [sys.executable, "-m", "app", "sink", *self.names, "--metrics-port", str(self.metrics_port)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=self.env, cwd=ROOT,
                start_new_session=True,
            )  # fmt: skip
        return self

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def wait_ready(self, seconds: float = 60) -> None:
        """Waits until it has its partitions, since its last start."""
        wait_until(lambda: ": has " in self.said[self._before :], seconds, f"the sink is ready; see {self.log}")

    def kill(self) -> None:
        """SIGKILL."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self, seconds: float = 20) -> int:
        """SIGTERM; returns the exit status."""
        self.signal(signal.SIGTERM)
        assert self.process is not None
        return self.process.wait(seconds)

    def ended(self, seconds: float = 60) -> int:
        """Waits until it ends by itself; returns the exit status."""
        assert self.process is not None
        return self.process.wait(seconds)
