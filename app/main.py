"""Entry: `headrace COMMAND` is `faust -A app.main COMMAND`."""

import sys

from app.errors import HeadraceError

try:
    from app.core import app
except HeadraceError as error:
    sys.stderr.write(f"headrace: {error}\n")
    raise SystemExit(2) from None

import app.commands.broker
import app.commands.check
import app.commands.llm
import app.commands.produce
import app.commands.run
import app.commands.tables
import app.commands.trace
import app.commands.worker
import app.web.worker  # noqa: F401
