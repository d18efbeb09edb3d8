"""What the workers' metrics say, over all workers: totals, and how much came since the last look."""

import msgspec
from prometheus_client.parser import text_string_to_metric_families

__all__ = ["Counters", "Numbers", "Samples", "merge", "parse", "summed"]

WANTED = (
    "headrace_records_in_total", "headrace_outcomes_total", "headrace_lag_records", "headrace_open_items",
    "headrace_oldest_open_seconds", "headrace_partitions_stopped", "headrace_lane_failures_total",
    "headrace_records_lost_total", "headrace_breaker_open", "headrace_provider_refusals_total", "headrace_day_cost_usd",
    "headrace_day_tokens", "headrace_budget_usd", "headrace_model_cost_usd_total", "headrace_model_calls_total",
    "headrace_restore_remaining_records", "headrace_state_bytes",
)  # fmt: skip
"""All else is left out before it is parsed: buckets of histograms are most of a page."""

Series = tuple[str, tuple[tuple[str, str], ...]]
"""Name and sorted labels."""
Samples = dict[Series, float]


def parse(page: str) -> Samples:
    """The wanted samples of a metrics page."""
    lines = [line for line in page.splitlines() if line.startswith(WANTED)]
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families("\n".join(lines) + "\n")
        for sample in family.samples
    }


def merge(pages: list[Samples]) -> Samples:
    """Sums over workers; of what is one thing seen by many, the largest."""
    merged: Samples = {}
    for page in pages:
        for series, value in page.items():
            before = merged.get(series, 0.0)
            together = max if series[0] in ("headrace_oldest_open_seconds", "headrace_breaker_open") else float.__add__
            merged[series] = together(before, value)
    return merged


def summed(parts: list[Samples], divisor: float = 1.0) -> Samples:
    """Series added up, and divided."""
    total: Samples = {}
    for part in parts:
        for series, value in part.items():
            total[series] = total.get(series, 0.0) + value
    return {series: value / divisor for series, value in total.items()}


class Counters:
    """Counters of all workers, and what was added since. A worker that restarts has another id, and begins at zero."""

    def __init__(self) -> None:
        self._last: dict[str, Samples] = {}

    def added(self, pages: dict[str, Samples]) -> Samples | None:
        """What came since the last call, by series; None: nobody answered twice.

        A worker that is new isn't in it: when its counts came isn't known.
        """
        again = [(page, last) for worker, page in pages.items() if (last := self._last.get(worker)) is not None]
        self._last = dict(pages)
        grown: Samples = {}
        for page, last in again:
            for series, value in page.items():
                if series[0].endswith("_total"):
                    grown[series] = grown.get(series, 0.0) + max(0.0, value - last.get(series, 0.0))
        return grown if again else None


class Numbers(msgspec.Struct, frozen=True):
    """Samples with look-ups by name and labels."""

    samples: Samples

    def total(self, name: str, **labels: str) -> float | None:
        """The sum over all series of a name with these labels; None: there are none, which isn't zero."""
        found = [value for given, value in self._of(name) if labels.items() <= given.items()]
        return sum(found) if found else None

    def by(self, name: str, label: str, **labels: str) -> dict[str, float]:
        """Sums by one label."""
        found: dict[str, float] = {}
        for given, value in self._of(name):
            if label in given and labels.items() <= given.items():
                found[given[label]] = found.get(given[label], 0.0) + value
        return found

    def _of(self, name: str) -> list[tuple[dict[str, str], float]]:
        return [(dict(labels), value) for (each, labels), value in self.samples.items() if each == name]

    @property
    def events_in(self) -> float | None:
        """Records that sources gave, each once: not the second look at rekeyed ones."""
        by = self.by("headrace_records_in_total", "stage")
        found = [n for stage, n in by.items() if stage.startswith("ingest-") and stage != "ingest-rekeyed"]
        return sum(found) if found else None
