"""What the workers' metrics say, over all workers: totals, and how much came since the last look."""

import msgspec
from prometheus_client.parser import text_string_to_metric_families

__all__ = ["Counters", "Growth", "Numbers", "Samples", "merge", "parse", "summed"]

WANTED = (
    "headrace_records_in_total", "headrace_outcomes_total", "headrace_lag_records", "headrace_open_items",
    "headrace_oldest_open_seconds", "headrace_partitions_stopped", "headrace_lane_failures_total",
    "headrace_breaker_open", "headrace_provider_refusals_total", "headrace_day_cost_usd", "headrace_budget_usd",
    "headrace_model_cost_usd_total",
)  # fmt: skip
"""All else is left out before it is parsed: buckets of histograms are most of a page."""

SEEN_BY_MANY = ("headrace_oldest_open_seconds", "headrace_breaker_open")
"""One thing that several workers tell of: not to be added up."""
GONE_S = 3600.0
"""A worker that was silent for so long is forgotten: sums are over an hour at most."""

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
            merged[series] = max(before, value) if series[0] in SEEN_BY_MANY else before + value
    return merged


def summed(parts: list[Samples], divisor: float = 1.0) -> Samples:
    """Series added up, and divided."""
    total: Samples = {}
    for part in parts:
        for series, value in part.items():
            total[series] = total.get(series, 0.0) + value
    return {series: value / divisor for series, value in total.items()}


class Growth(msgspec.Struct, frozen=True):
    """What counters grew by, by series."""

    whole: Samples
    """Since each worker's last answer, for sums."""
    paced: Samples
    """The part of it that came since the last look, for rates: a worker that was silent brings more than a look's worth."""


class Counters:
    """Counters of all workers, and what was added since. A worker that restarts has another id, and begins at zero."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, Samples]] = {}
        """When each worker answered last, and what."""
        self._looked_s = 0.0

    def added(self, pages: dict[str, Samples], now: float) -> Growth | None:
        """What came since the last call; None: nobody answered who had before.

        A worker that is new isn't in it: when its counts came isn't known. One that missed looks counts from its last answer.

        Args:
            pages: of those that answered, by worker.
            now: monotonic, in seconds.
        """
        grown = Growth({}, {})
        span_s, self._looked_s = now - self._looked_s, now
        self._last = {worker: seen for worker, seen in self._last.items() if now - seen[0] < GONE_S}
        again = [(page, self._last[worker]) for worker, page in pages.items() if worker in self._last]
        for page, (at_s, last) in again:
            part = min(1.0, span_s / (now - at_s)) if now > at_s else 1.0
            for series, value in page.items():
                if series[0].endswith("_total"):
                    more = max(0.0, value - last.get(series, 0.0))
                    grown.whole[series] = grown.whole.get(series, 0.0) + more
                    grown.paced[series] = grown.paced.get(series, 0.0) + more * part
        self._last |= {worker: (now, page) for worker, page in pages.items()}
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
    def day_cost_usd(self) -> float | None:
        """What models cost today: of tasks with a budget as the ledger has it, which outlasts workers; of others by metrics."""
        cost = self.by("headrace_day_cost_usd", "task") | self.by("headrace_budget_usd", "task", kind="settled")
        return sum(cost.values()) if cost else None

    @property
    def events_in(self) -> float | None:
        """Records that sources gave, each once: not the second look at rekeyed ones."""
        by = self.by("headrace_records_in_total", "stage")
        found = [n for stage, n in by.items() if stage.startswith("ingest-") and stage != "ingest-rekeyed"]
        return sum(found) if found else None
