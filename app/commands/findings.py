"""What `headrace check` prints of each thing that it looks at."""

import click

__all__ = ["Findings"]


class Findings:
    """Prints what was found, and counts what is wrong."""

    def __init__(self) -> None:
        self.wrong = 0

    def ok(self, text: str) -> None:
        click.echo(f"  ok    {text}")

    def warn(self, text: str) -> None:
        click.echo(f"  warn  {text}")

    def fail(self, text: str) -> None:
        self.wrong += 1
        click.echo(f"  FAIL  {text}")
