"""What processes cost: CPU over time, and their peak memory."""

import bisect
import contextlib
import threading
import time
from pathlib import Path

import psutil

__all__ = ["Meter", "at_rest"]

EVERY_S = 0.05
FAMILY_EVERY = 10
"""Samples between two looks for new children: finding them costs more than reading them."""


REST_CPU = 0.15
"""A process that uses less of a core than this has nothing left to do."""
LOOKS = 4
"""One after the other, of a second each: between two batches it rests as well."""


def at_rest(*processes: psutil.Process) -> bool:
    """Whether none of them uses the CPU; looks for up to four seconds."""
    return all(max(process.cpu_percent(interval=1.0) for process in processes) < REST_CPU * 100 for _ in range(LOOKS))


class Meter(threading.Thread):
    """Samples processes and all their children; asked afterwards for the CPU between two moments.

    A child that ended counts on, in what its parent waited for.
    """

    def __init__(self, *pids: int) -> None:
        super().__init__(daemon=True)
        self.roots = [psutil.Process(pid) for pid in pids]
        self.times: list[float] = []
        self.cpu: list[float] = []
        self.peaks: dict[int, dict[int, int]] = {pid: {} for pid in pids}
        """Of each process (by root): the kernel's VmHWM."""
        self._ended = threading.Event()

    def start(self) -> None:
        """Takes the first sample at once."""
        self._sample([[root] for root in self.roots])
        super().start()

    def run(self) -> None:
        ticks, last = 0, False
        families: list[list[psutil.Process]] = [[root] for root in self.roots]
        while not last:
            last = self._ended.wait(EVERY_S)
            if ticks % FAMILY_EVERY == 0 or last:
                families = [self._family(root, was) for root, was in zip(self.roots, families, strict=True)]
                self._note_peaks(families)
            ticks += 1
            self._sample(families)

    def _sample(self, families: list[list[psutil.Process]]) -> None:
        used = sum(_cpu_s(process) for family in families for process in family)
        self.times.append(time.time())
        self.cpu.append(max(used, self.cpu[-1] if self.cpu else 0.0))

    def _family(self, root: psutil.Process, was: list[psutil.Process]) -> list[psutil.Process]:
        try:
            return [root, *root.children(recursive=True)]
        except psutil.Error:
            return was

    def _note_peaks(self, families: list[list[psutil.Process]]) -> None:
        for root, family in zip(self.roots, families, strict=True):
            for process in family:
                with contextlib.suppress(OSError):
                    status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii", errors="replace")
                    for line in status.splitlines():
                        if line.startswith("VmHWM:"):
                            self.peaks[root.pid][process.pid] = int(line.split()[1]) << 10

    def stop(self) -> None:
        self._ended.set()
        self.join()

    @property
    def peak_rss_mb(self) -> float:
        """Of all processes together."""
        return sum(sum(peaks.values()) for peaks in self.peaks.values()) / (1 << 20)

    @property
    def largest_rss_mb(self) -> float:
        """Of the largest of the processes given, its children included."""
        return max(sum(peaks.values()) for peaks in self.peaks.values()) / (1 << 20)

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


def _cpu_s(process: psutil.Process) -> float:
    """Its own time and that of the children it waited for; 0 when it is gone."""
    try:
        spent = process.cpu_times()
    except psutil.Error:
        return 0.0
    return float(spent.user + spent.system + spent.children_user + spent.children_system)
