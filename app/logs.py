"""Log lines as JSON objects, for collectors; and no floods of equal ones."""

import json
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime

from app.errors import HeadraceError

__all__ = ["FLOODS_S", "JsonFormatter", "NoFloods", "NoTraces"]

FLOODS_S = 10.0
"""Often enough to see that it goes on; aiokafka says thousands of times a second that it can't connect while no broker is
there, for each lane's producer tries again after 10 ms."""


class NoFloods(logging.Filter):
    """Lets a message of aiokafka through once in a while, with how many were left out; whatever its arguments are.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._last: dict[tuple[str, str], tuple[float | None, int]] = {}
        """When a message of a logger was let through, and how many weren't since. As many as there are messages."""

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.name.startswith("aiokafka"):
            return True
        key, now = (record.name, str(record.msg)), self._clock()
        at, left_out = self._last.get(key, (None, 0))
        if at is not None and now - at < FLOODS_S:
            self._last[key] = (at, left_out + 1)
            return False
        self._last[key] = (now, 0)
        if left_out:
            record.msg, record.args = f"{record.getMessage()} (and {left_out:,} more like it)", None
        return True


class NoTraces(logging.Filter):
    """Leaves the traceback out where Faust reports an error of ours: its message says what happened and what to do."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name.startswith(("faust", "mode")) and record.exc_info:
            error = record.exc_info[1]
            if isinstance(error, HeadraceError):
                record.msg, record.args, record.exc_info = f"{type(error).__name__}: {error}", None, None
        return True


class JsonFormatter(logging.Formatter):
    """One object a line: time, level, logger, message, and the error's traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)
