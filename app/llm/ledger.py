"""What model calls used, and what the same events would have used with every one of them deep, one by one.

The second is an estimate. A prompt's tokens grow in a line with the length of its messages: the line is fitted to what
the servers report for the batches that are sent, and read at the length of one event. So the system prompt, which a
batch shares, counts once an event.
"""

import time
from collections.abc import Callable
from typing import NamedTuple
from zoneinfo import ZoneInfo

from app import metrics
from app.llm.answer import Completion
from app.llm.budget import day_of
from app.llm.prices import Price, price_of
from app.llm.prompts import Prompt, PromptBuilder
from app.settings import Settings, TaskSettings

__all__ = ["Ledger", "Line"]

TOKENS_A_CHAR = 0.25
"""Before the first calls: about that of English; Chinese has two to three times as many."""
ANSWER_TOKENS = 8.0
"""Before the first calls: `{"1":"payment"}` in the vocabularies of SmolLM2, Qwen and GPT."""
LEAST_CALLS = 5
"""Fewer give no line."""
KEPT = 0.98
"""Weight of what was known, at each call: about the last 50 count."""


class Line:
    """Tokens over characters, fitted by least squares; recent calls count more.

    Args:
        base_chars: characters that every prompt has, for as long as nothing is known.
    """

    def __init__(self, base_chars: int) -> None:
        self._base_chars = base_chars
        self._n = self._x = self._y = self._xx = self._xy = 0.0

    def add(self, chars: int, tokens: int) -> None:
        """One call: the length of its messages, and the prompt tokens that the server reports."""
        x, y = float(chars), float(tokens)
        sums = (self._n, self._x, self._y, self._xx, self._xy)
        new = (1.0, x, y, x * x, x * y)
        self._n, self._x, self._y, self._xx, self._xy = (KEPT * a + b for a, b in zip(sums, new, strict=True))

    def sum(self, events: int, chars: int) -> float:
        """Prompt tokens of so many calls with so many characters in all, one event each."""
        base, slope = self._fitted()
        return events * base + slope * chars

    def _fitted(self) -> tuple[float, float]:
        spread = self._n * self._xx - self._x**2
        if self._n > LEAST_CALLS and spread > 1e-6 * self._n * self._xx:
            slope = (self._n * self._xy - self._x * self._y) / spread
            base = (self._y - slope * self._x) / self._n
            if slope >= 0 and base >= 0:
                return base, slope
        # All calls alike: their mean says how many tokens a character has.
        mean = self._y / (self._x + self._n * self._base_chars) if self._y else TOKENS_A_CHAR
        return self._base_chars * mean, mean


class Ledger:
    """One a worker: counts into the metrics. All of it is this worker's share, since its start.

    Args:
        settings: tasks, prices, the day's zone.
        now: seconds since the epoch.
    """

    def __init__(self, settings: Settings, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._tiers: dict[str, int] = {}
        self._day = ""
        self._use(settings)

    def _use(self, settings: Settings) -> None:
        self._zone, self._period_s = ZoneInfo(settings.budget.timezone), settings.budget.period_s
        self._settings = settings
        self._alone: dict[str, Alone | None] = {}
        self._lines: dict[str, Line] = {}
        self._answers: dict[str, float] = {}

    def prepare(self, settings: Settings) -> Callable[[], None]:
        """Gets ready for other tasks and prices; what was learnt of the old prompts is forgotten."""
        return lambda: self._use(settings)

    def spent(self, provider: str, task: str, prompt: Prompt, completion: Completion, cost_usd: float) -> None:
        """A call that was answered."""
        tokens = completion.prompt_tokens + completion.completion_tokens
        metrics.MODEL_CALL_TOKENS.labels(provider, task).observe(tokens)
        metrics.MODEL_CALL_COST_USD.labels(provider, task).observe(cost_usd)
        self.turn()
        metrics.DAY_TOKENS.labels(provider, task, "prompt").inc(completion.prompt_tokens)
        metrics.DAY_TOKENS.labels(provider, task, "completion").inc(completion.completion_tokens)
        metrics.DAY_COST_USD.labels(provider, task).inc(cost_usd)
        metrics.SAVED_TOKENS.labels(task).dec(tokens)
        metrics.SAVED_USD.labels(task).dec(cost_usd)
        if completion.prompt_tokens:
            self._line(task).add(prompt.user_chars, completion.prompt_tokens)
            answer = completion.completion_tokens / prompt.items
            self._answers[task] = KEPT * self._answers.get(task, answer) + (1 - KEPT) * answer

    def decided(self, task: str, tier: str, events: int, chars: int) -> None:
        """Events that have their outcome, committed.

        Args:
            task: theirs.
            tier: what decided them.
            events: how many.
            chars: of their texts together, each cut as a prompt would.
        """
        metrics.RESULTS.labels(task, tier).inc(events)
        self._tiers[tier] = self._tiers.get(tier, 0) + events
        total = sum(self._tiers.values())
        for name, count in self._tiers.items():
            metrics.TIER_SHARE.labels(name).set(count / total)
        alone = self._asked_alone(task)
        if alone is None:
            return
        prompt = self._line(task).sum(events, events * alone.prompt.user_chars + chars)
        answer = events * self._answers.get(task, ANSWER_TOKENS)
        cost_usd = alone.price.cost(prompt, answer)
        metrics.ALL_DEEP_TOKENS.labels(task).inc(prompt + answer)
        metrics.ALL_DEEP_COST_USD.labels(task).inc(cost_usd)
        metrics.SAVED_TOKENS.labels(task).inc(prompt + answer)
        metrics.SAVED_USD.labels(task).inc(cost_usd)

    def turn(self) -> None:
        """Begins another day, when it is one. Called before each count, and about once a second."""
        day = day_of(self._now(), self._zone, self._period_s)
        if day != self._day:
            self._day = day
            metrics.DAY_TOKENS.clear()
            metrics.DAY_COST_USD.clear()

    def _line(self, task: str) -> Line:
        line = self._lines.get(task)
        if line is None:
            alone = self._asked_alone(task)
            line = self._lines[task] = Line(0 if alone is None else alone.prompt.system_chars)
        return line

    def _asked_alone(self, task: str) -> "Alone | None":
        """Made when it is needed first: looking up prices takes a while."""
        if task not in self._alone:
            found = next((each for each in self._settings.tasks if each.name == task), None)
            if found is None:
                return self._alone.setdefault(task, None)
            prompt = PromptBuilder(found, self._settings.llm).build([""], masked=False)
            self._alone[task] = Alone(prompt, _price(self._settings, found))
        return self._alone[task]


class Alone(NamedTuple):
    """A call about one event."""

    prompt: Prompt
    """With an empty text."""
    price: Price


def _price(settings: Settings, task: TaskSettings) -> Price:
    """Of the provider that would be asked first."""
    allowed = [p for p in settings.llm.chain() if not p.tasks or task.name in p.tasks]
    return price_of(allowed[0] if allowed else settings.llm)
