"""How an event comes back that the deep tier couldn't answer.

ModelError
├── ModelUnavailable
│   ├── RoundUsed       every provider that may be asked was, and failed: hold the event, then again
│   └── NotNow          no provider may be asked now (breakers open, refusals): ask later, no round is used
└── Unanswerable        all providers gave no valid answer: one round more where that may be chance, else for a person
"""

from app.errors import ModelError, ModelUnavailable
from models.events import Exchange

__all__ = ["CHANCE", "NotNow", "OverBudget", "RoundUsed", "Unanswerable"]

CHANCE = ("no-answer", "cut")
"""Causes of `Unanswerable` that may be chance: answers came, and none was valid. A filter, a refusal or a policy says the same
when it is asked again."""


class RoundUsed(ModelUnavailable):
    """The chain is used up. Retryable.

    Args:
        attempts: answers that were asked for in this round.
        tried: `provider: what came of it`, in order.
        exchange: the last that was answered, where that is kept.
    """

    def __init__(self, attempts: int, tried: list[str], exchange: Exchange | None = None) -> None:
        super().__init__(f"no provider answered ({'; '.join(tried)})")
        self.attempts, self.tried, self.exchange = attempts, tried, exchange


class NotNow(ModelUnavailable):
    """Nobody may be asked now; `retry_after_s` says when somebody may. Retryable.

    Args:
        tried: `provider: why not`, in order.
        retry_after_s: seconds until the first provider may be asked again.
    """

    def __init__(self, tried: list[str], retry_after_s: float) -> None:
        super().__init__(f"no provider may be asked now ({'; '.join(tried)})", retry_after_s=retry_after_s)
        self.tried = tried


class OverBudget(ModelUnavailable):
    """The task's budget of the day is used up. Retryable on the next day, or when a lease is given back.

    Args:
        tried: `provider: why not`, in order.
    """

    def __init__(self, tried: list[str]) -> None:
        super().__init__(f"the budget of the day is used up ({'; '.join(tried)})")
        self.tried = tried


class Unanswerable(ModelError):
    """No valid answer for this event. Retryable where `cause` is one of `CHANCE`.

    Args:
        cause: a stable word: no-answer, cut, content-filter, prompt-refused, no-provider-allowed, task-removed.
        attempts: how often it was asked.
        tried: `provider: what came of it`, in order.
        exchange: the last that was answered or refused, where that is kept.
    """

    def __init__(self, cause: str, attempts: int, tried: list[str], exchange: Exchange | None = None) -> None:
        super().__init__(f"no valid answer after {attempts} attempts ({cause})")
        self.cause, self.attempts, self.tried, self.exchange = cause, attempts, tried, exchange
        self.retryable = cause in CHANCE
