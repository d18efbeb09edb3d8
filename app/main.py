"""Entry: `headrace COMMAND` is `faust -A app.main COMMAND`."""

import os
import sys

os.environ.setdefault("FAUST_LOOP", "uvloop")  # read when faust is first imported; `-L` would come too late from here

from app.errors import HeadraceError

try:
    from app.core import app
except HeadraceError as error:
    sys.stderr.write(f"headrace: {error}\n")
    raise SystemExit(2) from None

__all__ = ["app", "main"]


def declare() -> None:
    """Adds commands, stages and web pages. `from app.commands import x`: `import app.x` would rebind `app`."""
    import faust.cli.faust  # noqa: F401  # Faust's own commands first: ours of the same name take their place

    from agents import ingest, results
    from app import reload
    from app.commands import (  # noqa: F401
        broker,
        check,
        eval,
        keys,
        llm,
        produce,
        redrive,
        reviews,
        run,
        sink,
        tables,
        tables_repartition,
        tables_state,
        trace,
        users,
        web,
    )
    from app.settings import config_path
    from app.web import worker as worker_web

    if app.settings.role in ("all", "ingest"):
        ingest.declare(app)
    if app.settings.role in ("all", "windows"):
        from agents import aggregate

        aggregate.declare(app, ingest.compiled(app.settings)[0])
    if app.settings.role in ("all", "classify") and app.settings.tasks:
        from agents import classify

        classify.declare(app)
    if app.settings.role in ("all", "review") and app.settings.tasks:
        from agents import review

        review.declare(app)
    if app.settings.role in ("all", "results"):
        results.declare(app)
    worker_web.install(app)
    path = config_path()
    if path is not None:
        app.helpers.append(("settings watch", lambda: reload.watch(app, path)))


try:
    declare()
except HeadraceError as error:
    sys.stderr.write(f"headrace: {error}\n")
    raise SystemExit(2) from None


def main() -> None:
    """The `headrace` program."""
    from faust.cli.faust import cli

    arguments = list(sys.argv[1:])
    if "worker" in arguments and not {"-l", "--loglevel"} & set(arguments):
        # Above info Faust adds a spinner and sets the root logger to DEBUG; what is logged is ours to say (log.level).
        arguments.insert(arguments.index("worker") + 1, "--loglevel=info")
    cli.main(["-A", "app.main", "-L", "uvloop", *arguments], prog_name="headrace")
