"""A worker of the product with something changed from outside: `python -m tests.fault.suite.odd WHAT worker`.

`clock:SECONDS` puts its own clock ahead. Builds with something wrong, for tests of the checker, are in `broken`.
"""

import sys
import time


def main() -> None:
    what, _, value = sys.argv.pop(1).partition(":")
    assert what == "clock", what
    real = time.time
    ahead = float(value)
    time.time = lambda: real() + ahead
    from app.main import main as headrace

    headrace()


if __name__ == "__main__":
    main()
