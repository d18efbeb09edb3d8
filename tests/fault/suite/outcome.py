"""What a fault run showed, and what is printed meanwhile."""

import re
import time
from dataclasses import dataclass, field

from tests.helpers.processes import Worker

__all__ = ["Outcome", "last_words", "say"]


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}   {text}", flush=True)


@dataclass
class Outcome:
    """What a run showed. Goes into the JSON."""

    fault: str
    seed: int
    seconds: float = 0.0
    right: bool = False
    wrong: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    progress_s: float | None = None
    """From healing until every partition had moved."""
    stall_s: float = 0.0
    """The longest that a partition with input didn't move."""
    restarts: int = 0
    ended_by_themselves: list[str] = field(default_factory=list)
    """Last words of workers that nobody ended."""
    notes: list[str] = field(default_factory=list)


def last_words(worker: Worker) -> str:
    """Why a worker says that it ended."""
    lines = worker.log.read_text(errors="replace")[-20_000:].splitlines()
    told = [line for line in lines if re.search(r" CRITICAL | ERROR headrace|^headrace: |Error: ", line)]
    return (told or lines or ["nothing"])[-1]
