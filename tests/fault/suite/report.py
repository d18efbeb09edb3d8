"""Writes the tables of docs/reliability.md from the outcomes of runs.

    python -m tests.fault.suite --seeds 1 2 3 --json build/chaos.jsonl
    python -m tests.fault.suite.report build/chaos.jsonl

The outcomes themselves are kept beside the page, in short: a test sees that both fit.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from tests.fault.suite.faults import FAULTS

__all__ = ["KEPT", "PAGE", "rewritten", "shortened"]

DOCS = Path(__file__).parents[3] / "docs"
PAGE, KEPT = DOCS / "reliability.md", DOCS / "reliability.jsonl"
BEGIN, END = "<!-- generated: begin -->", "<!-- generated: end -->"
HEAD = """| | fault | runs | seeds | right | records checked | moves again after | longest stall |
|---|---|---|---|---|---|---|---|"""


def shortened(outcome: dict[str, Any]) -> dict[str, Any]:
    """What the page needs of an outcome."""
    return {
        "fault": outcome["fault"], "seed": outcome["seed"], "right": outcome["right"], "wrong": outcome["wrong"],
        "records": outcome["counts"].get("records", 0), "kills": outcome["counts"].get("kills", 0),
        "progress_s": outcome["progress_s"], "stall_s": outcome["stall_s"], "notes": outcome["notes"],
    }  # fmt: skip


def rewritten(text: str, outcomes: list[dict[str, Any]]) -> str:
    """The page with the table of these outcomes."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{_table(outcomes)}\n{END}{after}"


def _table(outcomes: list[dict[str, Any]]) -> str:
    by_fault = defaultdict[str, list[dict[str, Any]]](list)
    for outcome in outcomes:
        by_fault[outcome["fault"]].append(outcome)
    lines = [HEAD]
    for number, row in FAULTS.items():
        runs = by_fault.get(number, [])
        if not runs:
            lines.append(f"| {number} | {row.name} | 0 | | | | | |")
            continue
        seeds = ", ".join(str(seed) for seed in sorted({run["seed"] for run in runs}))
        moved = [run["progress_s"] for run in runs if run["progress_s"] is not None]
        kills = sum(run["kills"] for run in runs)
        cells = [
            number, row.name + (f" ({kills:,} kills)" if kills else ""), str(len(runs)), seeds,
            f"{sum(run['right'] for run in runs)} of {len(runs)}", f"{sum(run['records'] for run in runs):,}",
            f"{max(moved):.1f} s" if moved else "stops, as it must", f"{max(run['stall_s'] for run in runs):.1f} s",
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "files", nargs="*", type=Path, help="outcomes to take; none: the page is written from those kept"
    )
    given = parser.parse_args()
    if given.files:
        rows = [shortened(json.loads(line)) for file in given.files for line in file.read_text("utf-8").splitlines()]
        KEPT.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    kept = [json.loads(line) for line in KEPT.read_text(encoding="utf-8").splitlines()]
    PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8"), kept), encoding="utf-8")


if __name__ == "__main__":
    main()
