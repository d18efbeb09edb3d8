"""Source files, for tests that look at what they say."""

import ast
import gc
from pathlib import Path

__all__ = ["syntax_tree"]


def syntax_tree(path: Path) -> ast.Module:
    """Parsed, with the garbage collector off: Python 3.11 fails where a finalizer parses something meanwhile (gh-106905)."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    finally:
        if collecting:
            gc.enable()
