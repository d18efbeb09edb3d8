"""The benchmark: the product against a hand-written aiokafka loop and plain faust-streaming, on one embedded Kafka.

python -m tests.bench ingest --contestants ours,raw,faust --events 500000 --rounds 5 --json FILE
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.bench import ingest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["ingest", "path"])
    parser.add_argument("--contestants", default="ours,raw,faust", help="comma-separated, in the order they run")
    parser.add_argument("--events", type=int, default=500_000, help="a slow contestant gets a part of them")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="file for the figures")
    given = parser.parse_args()
    if given.what == "path":
        parser.error("`path` (raw event to result by rule) isn't there yet; `ingest` is")
    names = given.contestants.split(",")
    unknown = set(names) - ingest.CONTESTANTS.keys()
    if unknown or len(set(names)) != len(names):
        parser.error(f"--contestants takes each of {', '.join(ingest.CONTESTANTS)} once")
    if given.events < 2000 or given.rounds < 1:
        parser.error("--events takes 2000 or more, --rounds 1 or more")
    print(f"load before: {os.getloadavg()[0]:.2f}, {os.cpu_count()} cores", flush=True)
    found = ingest.run(names, given.events, given.rounds, lambda text: print(text, flush=True))
    rows = ingest.summary(found, given.events)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    show(rows)
    sys.exit(not all(row["right"] for row in rows))


def show(rows: list[dict[str, Any]]) -> None:
    print(f"\n{'':8}{'events':>9}{'events/s':>10}{'CPU us/event':>14}{'peak MB':>9}{'right':>7}{'ours/it':>9}")
    for row in rows:
        ratio = row.get("ratio_ours", "")
        print(
            f"{row['name']:8}{row['events']:>9}{row['events_per_s']:>10.0f}{row['cpu_us_per_event']:>14.1f}"
            f"{row['peak_rss_mb']:>9.0f}{'yes' if row['right'] else 'NO':>7}{ratio:>9}"
        )
    for row in rows:
        if row["name"] in ingest.SHARE:
            print(f"{row['name']} is slow and gets 1/{ingest.SHARE[row['name']]} of the events")


if __name__ == "__main__":
    main()
