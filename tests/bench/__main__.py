"""The benchmark: the product beside others in the same job, on one embedded Kafka.

python -m tests.bench ingest --contestants ours,raw,kstreams --events 1000000 --rounds 3 --json FILE
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.bench import deep, ids, ingest, large, packed, path, restore, steady
from tests.bench.contestants import CONTESTANTS
from tests.bench.data import PARTITIONS

KEYS = ("name", "events", "events_per_s", "cpu_us_per_event", "peak_rss_mb", "right")
"""What the file given with --json holds of each contestant."""
INTERRUPTED = 130


def say(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    given = arguments().parse_args()
    say(f"load before: {os.getloadavg()[0]:.2f}, {os.cpu_count()} cores")
    try:
        rows = given.run(given)
    except KeyboardInterrupt:
        say("stopped")
        sys.exit(INTERRUPTED)
    sys.exit(not all(row["right"] for row in rows))


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    modes = parser.add_subparsers(required=True, metavar="MODE")
    mode = modes.add_parser("ingest", help="validate, deduplicate, drop noise: ours beside others")
    mode.set_defaults(run=run_ingest)
    mode.add_argument(
        "--contestants", type=contestants, default=list(CONTESTANTS), help="comma-separated, in the order they run"
    )
    mode.add_argument("--events", type=at_least(2000), default=500_000, help="a slow contestant gets a part of them")
    mode.add_argument("--same", action="store_true", help="give slow contestants all events as well")
    common(mode, rounds=3)
    mode = modes.add_parser("path", help="raw event to result by rule, exactly once: throughput, then latency")
    mode.set_defaults(run=run_path)
    mode.add_argument(
        "--contestants", type=contestants, default=["ours"], help="comma-separated; peers have no windows"
    )
    mode.add_argument("--events", type=at_least(2000), default=300_000)
    mode.add_argument("--same", action="store_true", help="give slow contestants all events as well")
    mode.add_argument("--workers", type=at_least(1), default=1, help="worker processes of ours")
    mode.add_argument("--partitions", type=at_least(1), default=PARTITIONS)
    mode.add_argument(
        "--rate", type=at_least(10), default=0, help="load of the latency run; half the throughput if unset"
    )
    mode.add_argument("--seconds", type=at_least(10), default=30, help="length of the latency run")
    mode.add_argument("--no-windows", action="store_true", help="leave the windows out")
    common(mode, rounds=3)
    mode = modes.add_parser("latency", help="the whole path at steady loads: from append to visible result")
    mode.set_defaults(run=run_latency)
    mode.add_argument("--rates", type=sizes, default=[1000, 5000, 10_000], help="events/s, comma-separated")
    mode.add_argument("--workers", type=at_least(1), default=2)
    mode.add_argument("--partitions", type=at_least(1), default=PARTITIONS)
    mode.add_argument("--seconds", type=at_least(10), default=30, help="of each load; the first 5 don't count")
    mode.add_argument("--no-windows", action="store_true", help="leave the windows out")
    files(mode)
    add_all(modes)
    mode = modes.add_parser("deep", help="the deep tier with batches beside one event a call, at a stub model server")
    mode.set_defaults(run=run_deep)
    mode.add_argument("--items", type=batch_sizes, default=[1, 20], help="items a call, comma-separated")
    mode.add_argument("--events", type=at_least(20), default=2000)
    mode.add_argument("--local", action="store_true", help="the local model instead of the stub; some events/s")
    model(mode)
    mode = modes.add_parser("shop", help="the demo stream with all tiers beside each event deep, one by one")
    mode.set_defaults(run=run_shop)
    mode.add_argument("--rate", type=at_least(1), default=50, help="events/s")
    mode.add_argument("--seconds", type=at_least(10), default=60)
    model(mode)
    mode = modes.add_parser("ids", help="CPU per event, memory and disk with few and many ids in the table (long)")
    mode.set_defaults(run=run_ids)
    mode.add_argument("--ids", type=sizes, default=[100_000, 10_000_000], help="table sizes, comma-separated")
    mode.add_argument("--probe", type=at_least(2000), default=ids.PROBE, help="events that are measured at each size")
    mode.add_argument(
        "--packed",
        action="store_true",
        help="write the table to the changelog, as a worker would, instead of feeding it",
    )
    mode.add_argument("--rounds", type=at_least(1), default=3, help="probes at each size, sizes in turn (--packed)")
    mode.add_argument("--partitions", type=at_least(1), default=PARTITIONS, help="with --packed")
    mode.add_argument("--whole", action="store_true", help="a worker with all stages, windows on (--packed)")
    mode.add_argument(
        "--set", action="append", default=[], metavar="SECTION__FIELD=VALUE", help="a setting of the worker (--packed)"
    )
    mode.add_argument("--batch", type=at_least(1), default=packed.BATCH, help="ids in a packed record (--packed)")
    files(mode)
    mode = modes.add_parser("restore", help="restart with and without state on disk, takeover by a standby (long)")
    mode.set_defaults(run=run_restore)
    mode.add_argument("--ids", type=at_least(1000), default=5_000_000, help="entries in the state")
    files(mode)
    mode = modes.add_parser("steady", help="the same load for long: memory, state, lag and file handles (long)")
    mode.set_defaults(run=run_steady)
    mode.add_argument("--rate", type=at_least(10), default=8000, help="events/s; a third of the top rate is meant")
    mode.add_argument("--minutes", type=float, default=60.0)
    mode.add_argument("--every", type=float, default=10.0, help="seconds between samples")
    mode.add_argument("--horizon", type=float, default=600.0, help="ingest.dedup_horizon_s: state is level after it")
    mode.add_argument("--workers", type=at_least(1), default=1)
    files(mode)
    return parser


def add_all(modes: Any) -> None:
    mode = modes.add_parser("all", help="ingest with all contestants, then the whole path, in one table")
    mode.set_defaults(run=run_all, contestants=list(CONTESTANTS), same=False, partitions=PARTITIONS)
    mode.set_defaults(workers=2, rate=0, seconds=30, no_windows=False)
    mode.add_argument("--events", type=at_least(2000), default=500_000, help="a slow contestant gets a part of them")
    common(mode, rounds=3)


def model(mode: argparse.ArgumentParser) -> None:
    mode.add_argument("--latency-ms", type=float, default=150.0, help="of every call")
    mode.add_argument("--token-ms", type=float, default=8.0, help="more of it for each token of an answer")
    mode.add_argument("--concurrency", type=at_least(1), default=10, help="calls at a time")
    files(mode)


def common(mode: argparse.ArgumentParser, rounds: int) -> None:
    mode.add_argument("--rounds", type=at_least(1), default=rounds, help="figures are the medians over them")
    files(mode)


def files(mode: argparse.ArgumentParser) -> None:
    mode.add_argument("--json", type=Path, help=f"file for the figures: a list of {', '.join(KEYS)}")
    mode.add_argument("--details", type=Path, help="file for what every round showed")


def contestants(text: str) -> list[str]:
    names = text.split(",")
    unknown = set(names) - CONTESTANTS.keys()
    if unknown or len(set(names)) != len(names):
        raise argparse.ArgumentTypeError(f"takes each of {', '.join(CONTESTANTS)} at most once")
    return names


def sizes(text: str) -> list[int]:
    return [at_least(1000)(part) for part in text.split(",")]


def batch_sizes(text: str) -> list[int]:
    return [at_least(1)(part) for part in text.split(",")]


def at_least(least: int) -> Any:
    def number(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"takes {least} or more")
        return value

    return number


def run_ingest(given: argparse.Namespace) -> list[dict[str, Any]]:
    rows = measure_ingest(given)
    write(given, rows)
    show(rows)
    return rows


def run_path(given: argparse.Namespace) -> list[dict[str, Any]]:
    rows = measure_path(given)
    write(given, rows, more=path.MORE)
    show(rows)
    show_latency(rows)
    return rows


def run_all(given: argparse.Namespace) -> list[dict[str, Any]]:
    whole = [{**row, "name": f"{row['name']} path"} for row in measure_path(given)]
    rows = [*measure_ingest(given), *whole]
    write(given, rows)
    show(rows)
    show_latency(whole)
    return rows


def measure_ingest(given: argparse.Namespace) -> list[dict[str, Any]]:
    names = ingest.available(given.contestants, say)
    return ingest.summary(ingest.run(names, given.events, given.rounds, say, given.same), given.events, given.same)


def measure_path(given: argparse.Namespace) -> list[dict[str, Any]]:
    setup = path.Setup(
        workers=given.workers, partitions=given.partitions, windows=not given.no_windows, seconds=given.seconds,
        rate=given.rate,
    )  # fmt: skip
    names = ingest.available(given.contestants, say)
    if setup.partitions != PARTITIONS and names != ["ours"]:
        raise SystemExit(
            f"the peers' programs are written for {PARTITIONS} partitions; --partitions goes with ours alone"
        )
    return path.run(names, given.events, given.rounds, setup, say, given.same)


def show_latency(rows: list[dict[str, Any]]) -> None:
    for row in (row for row in rows if row["rate"]):
        say(
            f"whole path, {row['workers']} workers, at {row['rate']} events/s: from the raw event's append until its result "
            f"is visible (read committed) p50 {row['p50_ms']} ms, p99 {row['p99_ms']} ms; until the result's append p50 "
            f"{row['append_p50_ms']} ms, p99 {row['append_p99_ms']} ms"
        )


def run_latency(given: argparse.Namespace) -> list[dict[str, Any]]:
    setup = path.Setup(
        workers=given.workers, partitions=given.partitions, windows=not given.no_windows, seconds=given.seconds
    )
    rows = path.latencies(given.rates, setup, say)
    write(given, rows, more=path.LATENCY)
    show_latency(rows)
    return rows


def run_ids(given: argparse.Namespace) -> list[dict[str, Any]]:
    if given.packed:
        return run_large(given)
    rows = ids.run(given.ids, say, given.probe)
    write(given, rows, more=ids.MORE)
    show_ids(rows, ids.MORE)
    return rows


def run_large(given: argparse.Namespace) -> list[dict[str, Any]]:
    setup = large.Setup(
        probe=given.probe, rounds=given.rounds, partitions=given.partitions, whole=given.whole, batch=given.batch,
        settings=tuple(given.set),
    )  # fmt: skip
    rows = large.run(given.ids, setup, say)
    write(given, rows, more=large.MORE)
    show_ids(rows, large.MORE)
    return rows


def show_ids(rows: list[dict[str, Any]], more: tuple[str, ...]) -> None:
    say(f"\n{'ids':>12}{'events/s':>10}{'CPU us/event':>14}{'to first':>10}{'peak MB':>9}{'disk MB':>9}{'right':>7}")
    for row in rows:
        say(
            f"{row['ids']:>12}{row['events_per_s']:>10.0f}{row['cpu_us_per_event']:>14.1f}{row['cpu_ratio']:>10}"
            f"{row['peak_rss_mb']:>9.0f}{row['disk_mb']:>9.0f}{'yes' if row['right'] else 'NO':>7}"
        )
        say(f"{'':>12}{', '.join(f'{what} {row[what]}' for what in more)}")
        if row["wrong"]:
            say(f"wrong: {'; '.join(row['wrong'])}")


def run_deep(given: argparse.Namespace) -> list[dict[str, Any]]:
    return show_deep(given, deep.batches(given.items, given.events, model_of(given), say))


def run_shop(given: argparse.Namespace) -> list[dict[str, Any]]:
    return show_deep(given, deep.shop(given.seconds, given.rate, model_of(given), say))


def model_of(given: argparse.Namespace) -> deep.Model:
    local = getattr(given, "local", False)
    return deep.Model(latency_ms=given.latency_ms, token_ms=given.token_ms, concurrency=given.concurrency, local=local)


def show_deep(given: argparse.Namespace, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    write(given, rows, more=deep.MORE)
    say(
        f"\n{'':14}{'events':>8}{'events/s':>10}{'calls':>8}{'tokens/event':>14}{'x events/s':>12}{'tokens /':>10}{'right':>7}"
    )
    for row in rows:
        say(
            f"{row['name']:14}{row['events']:>8}{row['events_per_s']:>10}{row['calls']:>8}{row['tokens_per_event']:>14}"
            f"{row['ratio']:>12}{row['tokens_ratio']:>10}{'yes' if row['right'] else 'NO':>7}"
        )
        say(f"{'':14}tiers {row['shares']}" + (f"; wrong: {'; '.join(row['wrong'])}" if row["wrong"] else ""))
    return rows


def run_restore(given: argparse.Namespace) -> list[dict[str, Any]]:
    rows = restore.run(given.ids, say)
    write(given, rows, more=restore.MORE)
    for row in rows:
        say(f"restore: {', '.join(f'{what} {row[what]}' for what in restore.MORE)}")
        if row["wrong"]:
            say(f"wrong: {'; '.join(row['wrong'])}")
    return rows


def run_steady(given: argparse.Namespace) -> list[dict[str, Any]]:
    setup = path.Setup(workers=given.workers)
    rows = steady.run(given.rate, given.minutes, given.every, given.horizon, setup, say)
    write(given, rows, more=steady.MORE)
    for row in rows:
        say(f"\n{row['events']} events, {row['events_per_s']}/s, {'right' if row['right'] else 'WRONG'}")
        say(f"{'':14}{'first':>10}{'last':>10}{'max':>10}{'an hour':>10}")
        for what, found in row["trends"].items():
            say(f"{what:14}" + "".join(f"{found.get(key, ''):>10}" for key in ("first", "last", "max", "slope_per_h")))
        if row["wrong"]:
            say(f"wrong: {'; '.join(row['wrong'])}")
    return rows


def write(given: argparse.Namespace, rows: list[dict[str, Any]], more: tuple[str, ...] = ()) -> None:
    if given.json:
        exact = [{key: row[key] for key in (*KEYS, *more)} for row in rows]
        given.json.write_text(json.dumps(exact, indent=2) + "\n", encoding="utf-8")
    if given.details:
        given.details.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


def show(rows: list[dict[str, Any]]) -> None:
    say(
        f"\n{'':17}{'events':>9}{'events/s':>10}{'CPU us/event':>14}{'peak MB':>9}{'right':>7}"
        f"{'ours/it':>9}{'its CPU/ours':>14}"
    )
    for row in rows:
        say(
            f"{row['name']:17}{row['events']:>9}{row['events_per_s']:>10.0f}{row['cpu_us_per_event']:>14.1f}"
            f"{row['peak_rss_mb']:>9.0f}{'yes' if row['right'] else 'NO':>7}{row.get('ratio', ''):>9}"
            f"{row.get('cpu_ratio', ''):>14}"
        )
    for row in rows:
        wrong = [f"round {n}: {'; '.join(r['wrong'])}" for n, r in enumerate(row["rounds"], 1) if r["wrong"]]
        if wrong:
            say(f"{row['name']} is wrong: {'; '.join(wrong)}")
    most = max((row["events"] for row in rows), default=0)
    fewer = [row["name"] for row in rows if row["events"] < most]
    if fewer:
        say(f"{', '.join(fewer)}: slow, and get a part of the events (--same gives them all)")


if __name__ == "__main__":
    main()
