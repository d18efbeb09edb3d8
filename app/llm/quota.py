"""A provider's minute, of the whole deployment: what a call may use is set aside right before it is sent."""

from app.llm.budget import minute_account
from app.llm.purse import Purse, Reservation
from app.settings import ProviderSettings

__all__ = ["Quota", "Taken"]

LEAST_WAIT_S = 0.05


class Taken:
    """Room for one call; settle it once."""

    __slots__ = ("_calls", "_purse", "_tokens", "most_calls", "most_tokens")

    def __init__(
        self, purse: Purse | None, calls: Reservation | None, tokens: Reservation | None, most: tuple[float, float]
    ) -> None:
        self._purse, self._calls, self._tokens = purse, calls, tokens
        self.most_calls, self.most_tokens = most

    def settle(self, calls: float, tokens: float) -> None:
        """Tells what the call used; the rest is free again."""
        if self._purse is not None:
            for reservation, used in ((self._calls, calls), (self._tokens, tokens)):
                if reservation is not None:
                    self._purse.settle(reservation, used)


class Quota:
    """Of one provider, for one worker. Without limits it takes nothing and asks nobody.

    Args:
        settings: the provider.
        purse: leases; None: no limits.
    """

    def __init__(self, settings: ProviderSettings, purse: Purse | None) -> None:
        limited = settings.requests_per_minute is not None or settings.tokens_per_minute is not None
        self._purse = purse if limited else None
        self._calls, self._tokens = (minute_account(settings.name, kind) for kind in ("requests", "tokens"))

    async def take(self, calls: int, tokens: int) -> Taken | float:
        """Room for a call; or the seconds after which it is worth asking again.

        Args:
            calls: wire calls that it may make.
            tokens: the most that it can use.

        Raises:
            TimeoutError: the budget's stage didn't answer. Retryable.
        """
        purse = self._purse
        if purse is None:
            return Taken(None, None, None, (calls, tokens))
        first = await purse.reserve(self._calls, calls)
        if first is None:
            return max(purse.wait_s(self._calls), LEAST_WAIT_S)
        try:
            second = await purse.reserve(self._tokens, tokens)
        except BaseException:
            purse.settle(first, 0.0)
            raise
        if second is None:
            purse.settle(first, 0.0)
            return max(purse.wait_s(self._tokens), LEAST_WAIT_S)
        return Taken(purse, first, second, (calls, tokens))
