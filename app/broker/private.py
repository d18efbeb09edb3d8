"""Files that only their owner may read, and the names of those that a secured broker and its clients share."""

import os
from pathlib import Path

__all__ = ["BROKER", "CA", "SUBJECT", "write_private"]

CA, BROKER = "ca.pem", "broker.pem"
SUBJECT = "headrace-broker"
"""Whom the broker's certificate names."""


def write_private(path: Path, text: str) -> None:
    """Writes a file with mode 0600, whole or not at all."""
    half = path.with_name(f"{path.name}.new")
    half.unlink(missing_ok=True)
    with os.fdopen(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as out:
        out.write(text)
    half.replace(path)
