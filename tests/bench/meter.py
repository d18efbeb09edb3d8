"""What a process costs: CPU over time, and its peak memory."""

import bisect
import contextlib
import threading
import time
from pathlib import Path

import psutil

__all__ = ["Meter"]

EVERY_S = 0.05


class Meter(threading.Thread):
    """Samples a process and its children; asked afterwards for the CPU between two moments."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.process = psutil.Process(pid)
        self.times: list[float] = []
        self.cpu: list[float] = []
        self.peaks: dict[int, int] = {}
        self._ended = threading.Event()

    def run(self) -> None:
        ticks = 0
        family = [self.process]
        while not self._ended.wait(EVERY_S):
            if ticks % 20 == 0:
                with contextlib.suppress(psutil.Error):
                    family = [self.process, *self.process.children(recursive=True)]
                self._note_peaks(family)
            ticks += 1
            used = 0.0
            for process in family:
                with contextlib.suppress(psutil.Error):
                    spent = process.cpu_times()
                    used += spent.user + spent.system
            self.times.append(time.time())
            self.cpu.append(used)
        self._note_peaks(family)

    def _note_peaks(self, family: list[psutil.Process]) -> None:
        for process in family:
            with contextlib.suppress(OSError), Path(f"/proc/{process.pid}/status").open(encoding="ascii") as file:
                for line in file:
                    if line.startswith("VmHWM:"):
                        self.peaks[process.pid] = int(line.split()[1]) << 10

    def stop(self) -> None:
        self._ended.set()
        self.join()

    @property
    def peak_rss_mb(self) -> float:
        return sum(self.peaks.values()) / (1 << 20)

    def cpu_between(self, begin: float, end: float) -> float:
        """Seconds of CPU between two wall-clock moments."""
        return self._cpu_at(end) - self._cpu_at(begin)

    def _cpu_at(self, moment: float) -> float:
        after = bisect.bisect_left(self.times, moment)
        if after == 0:
            return self.cpu[0]
        if after == len(self.times):
            return self.cpu[-1]
        t0, t1 = self.times[after - 1], self.times[after]
        c0, c1 = self.cpu[after - 1], self.cpu[after]
        return c0 + (c1 - c0) * (moment - t0) / (t1 - t0)
