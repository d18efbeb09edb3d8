"""The processes of a round: started, measured, ended."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from app.broker.kafka import die_with_parent
from tests.bench.contestants import ROOT, Launch
from tests.bench.meter import Meter
from tests.helpers.processes import clean_environment

__all__ = ["Launched", "launched"]

STOP_S = 20.0
LOG_LINES = 40
COMPLAINTS = ("WARN", "ERROR", "Error", "Exception", "ebalanc", "Traceback")


class Launched:
    """One process of a contestant."""

    def __init__(self, launch: Launch, log: Path) -> None:
        self.launch, self.log = launch, log
        self.load = 0.0
        self.killed = False
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as file:
            return subprocess.Popen(
                self.launch.command,
                stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env=clean_environment(self.launch.env),
                cwd=ROOT, start_new_session=True, preexec_fn=die_with_parent,
            )  # fmt: skip

    def alive(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """SIGTERM, and SIGKILL when that isn't enough."""
        self.process.terminate()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.killed = True
            self.kill()

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def complaints(self) -> str:
        """What its log says went wrong, or its last lines."""
        lines = self.said().splitlines()
        found = [line[:300] for line in lines if any(mark in line for mark in COMPLAINTS)][:LOG_LINES]
        return "\n".join(["its log says:", *(found or lines[-LOG_LINES:])])


@contextlib.contextmanager
def launched(launches: list[tuple[Launch, Path]]) -> Iterator[tuple[list[Launched], Meter]]:
    """Starts processes and a meter on them; ends both, whatever happens."""
    running: list[Launched] = []
    meter: Meter | None = None
    try:
        running = [Launched(launch, log) for launch, log in launches]
        meter = Meter(*(each.process.pid for each in running))
        meter.start()
        yield running, meter
    finally:
        if meter is not None:
            meter.stop()
        for each in running:
            each.load = os.getloadavg()[0]
            each.stop()
