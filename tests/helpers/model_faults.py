"""What a model server does wrong on purpose: one fault a wire call, by script or by chance."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["Fault", "Rates", "answer", "drip", "error_object", "hang", "raw", "reset", "status", "stream"]


@dataclass
class Fault:
    """What one wire call does instead of answering right. Build it with the functions below."""

    kind: str = "answer"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: str = ""
    seconds: float = 3600.0
    missing: list[int] = field(default_factory=list)
    extra: dict[str, str] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)
    twice: dict[str, str] = field(default_factory=dict)
    cut_at: int = 0
    prefix: str = ""
    suffix: str = ""
    finish_reason: str = ""
    usage: bool = True


def status(
    code: int, *, retry_after: str | None = None, error_code: str = "", headers: dict[str, str] | None = None
) -> Fault:
    """An HTTP error with OpenAI's error object."""
    extra = {"Retry-After": retry_after} if retry_after is not None else {}
    body = json.dumps({"error": {"message": "the stub says no", "code": error_code or None, "type": error_code or "x"}})
    return Fault(kind="raw", status=code, headers={**(headers or {}), **extra}, body=body)


def hang(seconds: float = 3600.0) -> Fault:
    """Reads the request and says nothing for so long; then answers right."""
    return Fault(kind="hang", seconds=seconds)


def drip(seconds: float = 3600.0) -> Fault:
    """Sends headers at once and then a space every 0.1 s for so long; then the right answer."""
    return Fault(kind="drip", seconds=seconds)


def reset() -> Fault:
    """Reads the request and cuts the connection with no answer."""
    return Fault(kind="reset")


def raw(body: str, code: int = 200, content_type: str = "application/json") -> Fault:
    """Exactly this body."""
    return Fault(kind="raw", status=code, body=body, headers={"Content-Type": content_type})


def error_object(code: int = 429, message: str = "slow down") -> Fault:
    """An error in a 200."""
    return raw(json.dumps({"error": {"code": code, "message": message}}))


def stream() -> Fault:
    """The right answer as `data:` chunks that nobody asked for."""
    return Fault(kind="stream")


def answer(
    *,
    missing: Sequence[int] = (),
    extra: dict[int, str] | None = None,
    wrong: dict[int, str] | None = None,
    twice: dict[int, str] | None = None,
    cut_at: int = 0,
    prefix: str = "",
    suffix: str = "",
    finish_reason: str = "",
    usage: bool = True,
) -> Fault:
    """An answer with something off.

    Args:
        missing: numbers left out.
        extra: numbers nobody asked for, with a label.
        wrong: another label for a number (also one that is no category).
        twice: numbers that come a second time, with this label.
        cut_at: finish_reason length, inside the label of this number.
        prefix: put before the JSON (a thought, a fence).
        suffix: put behind it.
        finish_reason: other than stop.
        usage: False leaves token counts out.
    """

    def keyed(labels: dict[int, str] | None) -> dict[str, str]:
        return {str(number): label for number, label in (labels or {}).items()}

    return Fault(
        missing=list(missing), extra=keyed(extra), wrong=keyed(wrong), twice=keyed(twice), cut_at=cut_at,
        prefix=prefix, suffix=suffix, finish_reason=finish_reason, usage=usage,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Shares of calls that go wrong, by chance; the defaults are a bad day of a cloud provider."""

    too_many: float = 0.05
    """429 with Retry-After."""
    error: float = 0.02
    hang: float = 0.01
    drip: float = 0.01
    reset: float = 0.01
    bad_item: float = 0.05
    """One item missing, twice with another label, or of no known category."""
    broken: float = 0.02
    """JSON that ends in the middle."""
    retry_after_s: float = 1.0

    def draw(self, rnd: random.Random, numbers: Sequence[int]) -> Fault:
        """What a call of these items does."""
        number = rnd.choice(numbers) if numbers else 1
        bad = rnd.choice(
            [answer(missing=[number]), answer(twice={number: "nothing"}), answer(wrong={number: "paymnt"})]
        )
        bad.kind = "bad-item"
        faults = [
            (self.too_many, status(429, retry_after=f"{self.retry_after_s:g}")), (self.error, status(500)),
            (self.hang, hang()), (self.drip, drip()), (self.reset, reset()), (self.bad_item, bad),
            (self.broken, Fault(kind="broken")), (1.0, Fault()),
        ]  # fmt: skip
        at = rnd.random()
        for share, fault in faults:
            at -= share
            if at < 0:
                return fault
        return faults[-1][1]
