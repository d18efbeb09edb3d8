"""Named places at which a test may have this process killed, as a power failure would. Off unless the environment asks.

    HEADRACE_TEST_CRASH=committed:20        SIGKILL at the 20th passage of that point
    HEADRACE_TEST_CRASH=random:7:400        by chance, one passage in 400 of any point, drawn by seed 7

Off, a point costs one call that does nothing: a few tens of nanoseconds a transaction.
"""

import os
import random
import signal
from collections import Counter
from collections.abc import Callable

from app.errors import SettingsError

__all__ = ["POINTS", "VARIABLE", "armed", "at"]

VARIABLE = "HEADRACE_TEST_CRASH"
POINTS = {
    "fenced": "A lane's producer has started; State isn't restored yet.",
    "computed": "A batch is decided; its transaction isn't begun.",
    "sent": "Outputs and changelog records of a transaction are on their way; the offset isn't in it yet.",
    "uncommitted": "All of a transaction is acknowledged; it isn't committed.",
    "committed": "A transaction is committed; the local copy doesn't have it yet.",
    "written": "The local copy has it; the logic hasn't been told.",
    "asked": "A model call is sent; its answer isn't read.",
    "answered": "A model's answer is there; nothing of it is written.",
}
"""Every point, and what has happened there."""


def armed(spec: str, die: Callable[[], None]) -> Callable[[str], None]:
    """What `at` does under a value of the variable.

    Raises:
        SettingsError: it can't be read. Not retryable.
    """
    if not spec:
        return lambda point: None
    name, _, rest = spec.partition(":")
    try:
        if name == "random":
            seed, one_in = (int(part) for part in rest.split(":"))
            rnd = random.Random(seed)  # noqa: S311  # a schedule of tests, not a secret
            return lambda point: die() if rnd.randrange(one_in) == 0 else None
        count = int(rest or 1)
    except ValueError:
        count = 0
    if name not in POINTS or count < 1:
        raise SettingsError(
            f"{VARIABLE}={spec}: allowed are POINT:COUNT and random:SEED:ONE_IN, points {', '.join(POINTS)}"
        )
    passed: Counter[str] = Counter()

    def counted(point: str) -> None:
        passed[point] += 1
        if point == name and passed[point] == count:
            die()

    return counted


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


at = armed(os.environ.get(VARIABLE, ""), _die)
"""Passes a point of POINTS."""
