"""The watch over the event loop: one that hangs ends its worker, with a report of where."""

import faulthandler
import os
import threading
import time

__all__ = ["HangWatch"]

LOOP_HANG_S = 20
"""An event loop that answers nothing for this long is not slow but stuck: the worker ends with a report."""
TELL_S = 2.0
"""The reader of the log may itself be what hangs."""
EXIT_STUCK = 70
"""EX_SOFTWARE of sysexits.h."""
STDERR = 2
"""The file descriptor."""


class HangWatch:
    """Runs in a thread of its own; the event loop calls `beat` about once a second."""

    def __init__(self) -> None:
        self._beat = time.monotonic()

    def start(self) -> None:
        threading.Thread(target=self.watch_loop, name="headrace-hang-watch", daemon=True).start()

    def beat(self) -> None:
        self._beat = time.monotonic()

    def watch_loop(self) -> None:
        """Counts its own ticks, so that a stopped and continued process isn't taken for stuck."""
        silent, beat = 0, self._beat
        while True:
            threading.Event().wait(1.0)
            silent, beat = (0, self._beat) if self._beat != beat else (silent + 1, beat)
            if silent >= LOOP_HANG_S:
                telling = threading.Thread(target=_tell_where, daemon=True)
                telling.start()
                telling.join(TELL_S)
                os._exit(EXIT_STUCK)


def _tell_where() -> None:
    """Not through sys.stderr, which Faust turns into a log without a file behind it; blocks while nobody reads it."""
    os.write(STDERR, f"headrace: the event loop hung for {LOOP_HANG_S} s; where it is:\n".encode())
    faulthandler.dump_traceback(STDERR, all_threads=True)
