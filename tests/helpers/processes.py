"""Real processes of the product, started and ended by pid."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from app.waiting import poll

__all__ = ["StubProcess", "Worker", "clean_environment", "free_port", "pause_until_replaced", "rest", "wait_until"]

ROOT = Path(__file__).parents[2]


def clean_environment(more: dict[str, str]) -> dict[str, str]:
    """Ours without settings that happen to be set, and more."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_") or k == "HEADRACE_CACHE_DIR"}
    return {**kept, **more}


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(met: Callable[[], Any], seconds: float, what: str, every_s: float = 0.1) -> Any:
    """Waits for a condition; returns what it gave. One that costs much is looked at less often, by `every_s`.

    Raises:
        AssertionError: it wasn't met in time.
    """
    got = poll(met, seconds, every_s)
    if not got:
        raise AssertionError(f"not within {seconds:.0f} s: {what}")
    return got


def rest(seconds: float) -> None:
    """Lets a time pass that a schedule or a slow client asks for; where something can be seen, `wait_until` it is."""
    time.sleep(seconds)  # the one place for it: faults are to fall anywhere into real work, so nothing is waited for


class Worker:
    """One `headrace worker`, with a data folder and a web port of its own.

    Args:
        folder: for its data and log.
        env: its settings.
        module: a Python module with its arguments, instead of the product's own.
    """

    def __init__(self, folder: Path, env: dict[str, str], module: tuple[str, ...] = ()) -> None:
        self.folder, self.port, self.module = folder, free_port(), module or ("app",)
        folder.mkdir(parents=True, exist_ok=True)
        self.env = clean_environment({**env, "HEADRACE_DATA_DIR": str(folder), "HEADRACE_WEB__PORT": str(self.port)})
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    @property
    def log(self) -> Path:
        return self.folder / "worker.log"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self) -> None:
        self.starts += 1
        self._had_been_ready = self.ready_times()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *self.module, "worker"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=self.env, start_new_session=True,
                cwd=ROOT,
            )  # fmt: skip

    def ready_times(self) -> int:
        return self.log.read_text(errors="replace").count("headrace.delivery: ready;") if self.log.exists() else 0

    def wait_ready(self, seconds: float = 60) -> None:
        """Waits until it has been ready since its last start."""
        had = self._had_been_ready
        wait_until(lambda: self.ready_times() > had or self._ended(), seconds, f"worker ready; see {self.log}")
        assert not self._ended(), self.log.read_text(errors="replace")[-3000:]

    def _ended(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    def kill(self) -> None:
        """SIGKILL."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def stop(self, seconds: float = 20) -> int:
        """SIGTERM; returns the exit status (a worker that doesn't stop in time is killed, and fails the caller)."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.kill()
                raise AssertionError(f"worker {self.pid} did not stop within {seconds} s; see {self.log}") from None
        return self.process.returncode


def pause_until_replaced(victim: Worker, other: Worker, session_s: float) -> None:
    """SIGSTOP past the session timeout and until the other worker has taken over; then SIGCONT, until the zombie is back."""
    taken, back = other.ready_times(), victim.ready_times()
    victim.pause()
    try:
        rest(session_s + 1)
        wait_until(lambda: other.ready_times() > taken, 60, f"another worker takes over; see {other.log}")
        rest(2)  # of its work
    finally:
        victim.resume()
    wait_until(lambda: victim.ready_times() > back, 60, f"the zombie is back in the group; see {victim.log}")


class StubProcess:
    """The model server as a process of its own, on a port that stays."""

    def __init__(self, **options: Any) -> None:
        self.port, self._options = free_port(), options
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        more = [word for name, value in self._options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.helpers.modelserver", "--port", str(self.port), *more],
            cwd=ROOT, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert self._process.stdout is not None
        assert self._process.stdout.readline().startswith(b"ready")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()

    def get(self, path: str) -> Any:
        return httpx.get(f"http://127.0.0.1:{self.port}/{path}", timeout=30).json()
