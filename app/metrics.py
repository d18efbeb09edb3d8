"""Every metric: name, unit, labels. Served by each worker on its web port under /metrics.

Labels never hold ids. Counters count committed work only, unless the help says otherwise.
"""

from bisect import bisect_left
from collections import Counter as Counts
from collections.abc import Sequence

from prometheus_client import Counter, Gauge, Histogram

__all__ = [
    "ALL",
    "ALL_DEEP_COST_USD",
    "ALL_DEEP_TOKENS",
    "APPEND_TO_RESULT_SECONDS",
    "BATCH_RECORDS",
    "BREAKER_OPEN",
    "BUDGET_ALERTS",
    "BUDGET_USD",
    "CACHE",
    "CUT_CHARS",
    "CUT_TEXTS",
    "DAY_COST_USD",
    "DAY_TOKENS",
    "GATEWAY_EVENTS",
    "GATEWAY_REQUESTS",
    "LAG_RECORDS",
    "LANE_FAILURES",
    "MINUTE_SHARE",
    "MODEL_BATCH_ITEMS",
    "MODEL_CALLS",
    "MODEL_CALL_COST_USD",
    "MODEL_CALL_TOKENS",
    "MODEL_COST_USD",
    "MODEL_SECONDS",
    "MODEL_TOKENS",
    "OLDEST_OPEN_SECONDS",
    "OPEN_ITEMS",
    "OPEN_PANES",
    "OUTCOMES",
    "PARTITIONS_STOPPED",
    "PROVIDER_REFUSALS",
    "QUOTA_WAITS",
    "RECORDS_IN",
    "RECORDS_LOST",
    "RECORDS_OUT",
    "RELOADS",
    "RESTORED_ROWS",
    "RESTORE_REMAINING",
    "RESULTS",
    "SAVED_TOKENS",
    "SAVED_USD",
    "SINK_ERRORS",
    "SINK_LAG",
    "SINK_ROWS",
    "SINK_WRITE_SECONDS",
    "STANDBY_LAG",
    "STANDBY_ROWS",
    "STATE_BYTES",
    "TIER_SHARE",
    "TRANSACTION_SECONDS",
    "UNREADABLE_RECORDS",
    "observe_many",
]

FINE = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
WIDE = (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300, 1800, 7200)

RECORDS_IN = Counter("headrace_records_in", "Input records of committed batches.", ["stage"])
RECORDS_OUT = Counter("headrace_records_out", "Records written by committed batches.", ["stage", "topic"])
OUTCOMES = Counter(
    "headrace_outcomes",
    "What became of events: accepted, asked (a model decides later), rekeyed, duplicate, conflict (a duplicate with other "
    "content), noise, filtered, dead, "
    "rule, light, deep, review, untasked. Of reviews: reviewed (decided), review-undone, review-overtaken, review-expired. "
    "Of windows: window (closed), late, ahead, cut (events left out of a sequence), "
    "intent (a rule fired), purged (panes of an aggregate that was changed), unkeyed (in no window, without an entity). "
    "`detail` is the rule, reason, cause, source or aggregate.",
    ["stage", "outcome", "detail"],
)
RECORDS_LOST = Counter(
    "headrace_records_lost", "Records that the topic's retention removed before they were read.", ["stage", "partition"]
)
LANE_FAILURES = Counter(
    "headrace_lane_failures", "Transactions that failed; the lane went back and tried again.", ["stage", "partition"]
)
PARTITIONS_STOPPED = Gauge(
    "headrace_partitions_stopped", "Partitions that wait for somebody to act; the log says why.", ["stage"]
)
BATCH_RECORDS = Histogram(
    "headrace_batch_records",
    "Input records in a transaction.",
    ["stage"],
    buckets=(1, 5, 20, 100, 500, 1000, 2000, 5000),
)
TRANSACTION_SECONDS = Histogram(
    "headrace_transaction_seconds", "From a transaction's begin to its local write.", ["stage"], buckets=FINE
)
LAG_RECORDS = Gauge("headrace_lag_records", "Offsets between what was taken and the log's end.", ["stage", "partition"])
OPEN_ITEMS = Gauge("headrace_open_items", "Events that wait in State for a model, or for a person (review).", ["stage"])
OLDEST_OPEN_SECONDS = Gauge("headrace_oldest_open_seconds", "Age of the oldest of them.", ["stage"])
OPEN_PANES = Gauge("headrace_open_panes", "Panes in State, of windows that aren't closed.", ["aggregate", "partition"])
APPEND_TO_RESULT_SECONDS = Histogram(
    "headrace_append_to_result_seconds", "From the raw record's append to its result.", ["tier"], buckets=WIDE
)
RESTORE_REMAINING = Gauge("headrace_restore_remaining_records", "Changelog offsets that a restore has still to read.")
RESTORED_ROWS = Counter("headrace_restored_rows", "Rows of State that were read back from changelogs.")
STANDBY_LAG = Gauge("headrace_standby_lag_records", "Changelog offsets that standby copies are behind.")
STANDBY_ROWS = Counter("headrace_standby_rows", "Rows written into standby copies.")
STATE_BYTES = Gauge("headrace_state_bytes", "Local state, on disk and in memory tables.", ["state"])
MODEL_CALLS = Counter("headrace_model_calls", "Wire calls to a provider.", ["provider", "model", "outcome"])
MODEL_TOKENS = Counter(
    "headrace_model_tokens", "Tokens as the server reports them.", ["provider", "model", "task", "kind"]
)
MODEL_COST_USD = Counter("headrace_model_cost_usd", "What those tokens cost.", ["provider", "model", "task"])
MODEL_CALL_TOKENS = Histogram(
    "headrace_model_call_tokens", "Tokens of an answered call, prompt and completion.", ["provider", "task"],
    buckets=(50, 100, 200, 500, 1000, 2000, 5000, 10_000, 50_000),
)  # fmt: skip
MODEL_CALL_COST_USD = Histogram(
    "headrace_model_call_cost_usd", "What an answered call cost.", ["provider", "task"],
    buckets=(1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 1),
)  # fmt: skip
CUT_TEXTS = Counter("headrace_cut_texts", "Texts that a call showed only the begin of (llm.max_item_tokens).", ["task"])
CUT_CHARS = Counter("headrace_cut_chars", "Characters that were left out of them.", ["task"])
DAY_TOKENS = Gauge(
    "headrace_day_tokens", "Tokens since the day began (budget.timezone) or this worker started.",
    ["provider", "task", "kind"],
)  # fmt: skip
DAY_COST_USD = Gauge("headrace_day_cost_usd", "What those tokens cost.", ["provider", "task"])
MODEL_SECONDS = Histogram("headrace_model_seconds", "Time of a model call.", ["provider", "model"], buckets=WIDE)
MODEL_BATCH_ITEMS = Histogram(
    "headrace_model_batch_items", "Events in a model call.", ["provider"], buckets=(1, 2, 5, 10, 15, 20, 50, 100)
)
BREAKER_OPEN = Gauge(
    "headrace_breaker_open", "0: the provider is called; 1: it is left alone after failures.", ["provider"]
)
PROVIDER_REFUSALS = Counter(
    "headrace_provider_refusals", "Calls that a provider refused for good: somebody must act.", ["provider", "status"]
)

CACHE = Counter(
    "headrace_cache",
    "Events for the deep tier: hit (answered before), joined (waits for the same text's call), miss (asked).",
    ["task", "outcome"],
)

RESULTS = Counter(
    "headrace_results", "Outcomes of events that a task took: rule, light, deep, review.", ["task", "tier"]
)
TIER_SHARE = Gauge("headrace_tier_share", "Share of a tier in this worker's outcomes since its start.", ["tier"])
ALL_DEEP_TOKENS = Counter(
    "headrace_all_deep_tokens",
    "Estimate: tokens of the same events with each asked alone of the first provider.",
    ["task"],
)
ALL_DEEP_COST_USD = Counter("headrace_all_deep_cost_usd", "What those tokens would cost there.", ["task"])
SAVED_TOKENS = Gauge("headrace_saved_tokens", "That estimate less what was used, since this worker's start.", ["task"])
SAVED_USD = Gauge("headrace_saved_usd", "The same in US dollars.", ["task"])

BUDGET_USD = Gauge(
    "headrace_budget_usd",
    "The day's money of a task, on the worker that has its account: limit, settled, leased.",
    ["task", "kind"],
)
BUDGET_ALERTS = Counter("headrace_budget_alerts", "Days on which a task passed budget.alert_share.", ["task"])

MINUTE_SHARE = Gauge(
    "headrace_minute_share",
    "Used and leased share of a provider's requests_per_minute or tokens_per_minute, on the worker that has the account.",
    ["provider", "kind"],
)
QUOTA_WAITS = Counter("headrace_quota_waits", "Calls that waited for room in a provider's minute.", ["provider"])

RELOADS = Counter(
    "headrace_reloads", "Changes of headrace.toml: taken, or refused (the settings from before stay).", ["outcome"]
)

GATEWAY_REQUESTS = Counter("headrace_gateway_requests", "Requests that a gateway answered.", ["method", "status"])
GATEWAY_EVENTS = Counter(
    "headrace_gateway_events",
    "Events that came to a gateway: accepted (Kafka has acked), or the reason why one was refused.",
    ["outcome"],
)

UNREADABLE_RECORDS = Counter(
    "headrace_unreadable_records",
    "Records of API keys, users, workers or kept replies that a web process couldn't read and left out.",
    ["topic"],
)

SINK_ROWS = Counter(
    "headrace_sink_rows",
    "What sinks did: rows written (inserted or replaced), deleted, records rejected (kept in headrace_rejected).",
    ["sink", "outcome"],
)
SINK_LAG = Gauge(
    "headrace_sink_lag_records",
    "Offsets between the position in the database and the topic's end; markers of transactions count.",
    ["sink", "topic", "partition"],
)
SINK_ERRORS = Counter(
    "headrace_sink_errors",
    "Attempts that failed and are made again: database, kafka, fenced (another process was quicker).",
    ["sink", "kind"],
)
SINK_WRITE_SECONDS = Histogram(
    "headrace_sink_write_seconds", "From a full batch to its commit, outages included.", ["sink"], buckets=WIDE
)

ALL = (
    SINK_ROWS, SINK_LAG, SINK_ERRORS, SINK_WRITE_SECONDS,
    GATEWAY_REQUESTS, GATEWAY_EVENTS, UNREADABLE_RECORDS, RECORDS_IN, RECORDS_OUT, OUTCOMES, RECORDS_LOST, LANE_FAILURES,
    PARTITIONS_STOPPED, BATCH_RECORDS, TRANSACTION_SECONDS, LAG_RECORDS, OPEN_ITEMS, OLDEST_OPEN_SECONDS,
    APPEND_TO_RESULT_SECONDS, RESTORE_REMAINING, RESTORED_ROWS, STANDBY_LAG, STANDBY_ROWS, STATE_BYTES, MINUTE_SHARE,
    QUOTA_WAITS, CUT_TEXTS, CUT_CHARS, MODEL_CALL_TOKENS, MODEL_CALL_COST_USD, DAY_TOKENS, DAY_COST_USD, RESULTS,
    TIER_SHARE, ALL_DEEP_TOKENS, ALL_DEEP_COST_USD, SAVED_TOKENS, SAVED_USD, RELOADS, BUDGET_USD, BUDGET_ALERTS,
    CACHE, OPEN_PANES, MODEL_CALLS, MODEL_TOKENS, MODEL_COST_USD, MODEL_SECONDS, MODEL_BATCH_ITEMS, BREAKER_OPEN,
    PROVIDER_REFUSALS,
)  # fmt: skip
"""For the test that compares with docs/operations.md."""


def observe_many(histogram: Histogram, seconds: Sequence[float]) -> None:
    """Observes the values of a whole batch: one update a bucket, where `observe` takes two locks a value."""
    for bucket, n in Counts([bisect_left(histogram._upper_bounds, value) for value in seconds]).items():
        histogram._buckets[bucket].inc(n)
    histogram._sum.inc(sum(seconds))
