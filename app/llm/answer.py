"""What a model server's HTTP answer means: a completion, or the typed error.

Kept apart from the wire so that every odd answer seen in practice can be tested as bytes: an error object under 200,
stream chunks nobody asked for, a Retry-After by a clock that is wrong.
"""

import email.utils
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from app.errors import ModelError, ModelRefused, ModelUnavailable

__all__ = [
    "Completion",
    "PromptRefused",
    "SchemaRefused",
    "completion_of",
    "error_of",
    "is_retryable",
    "parse_retry_after",
]

RETRYABLE = frozenset({408, 409, 425, 429})
"""Beside 5xx. 409 and 425: the server asks to come again; all other 4xx say that the request itself is wrong."""

QUOTA_WORDS = frozenset({"insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "access_terminated"})
"""Codes of an account that is used up. They come with 429, yet waiting doesn't help."""

_CODE = re.compile(r"[^A-Za-z0-9_.-]")
_NUMBERS = re.compile(r"[0-9eE.,+\s-]+")
_SCHEMA = re.compile(r"response_?format|json_?\s?schema|structured|grammar|guided|schema", re.IGNORECASE)
_CONTENT = re.compile(
    r"context[_ ](?:length|size|window)|exceed_context|maximum context|too (?:long|large|many tokens)"
    r"|content[_ ](?:filter|policy|management)|ResponsibleAI",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One answer of the server. Token counts are the server's own; 0 where it reports none."""

    text: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    finish_reason: str = ""
    model: str = ""
    latency_ms: int = 0


class SchemaRefused(ModelRefused):
    """The server can't do structured output; the same call without it may work."""


class PromptRefused(ModelRefused):
    """The server refuses this prompt (too long, content filter), not our set-up: another prompt may pass."""


def parse_retry_after(values: Sequence[str], date: str | None, cap_s: float) -> float | None:
    """The longest valid wait in seconds, at most `cap_s`; None when the server names none.

    Args:
        values: every Retry-After header; each holds seconds (also `0.5`), several of them, or an HTTP date.
        date: the answer's Date header: dates are relative to it, so that a wrong clock on either side does no harm.
        cap_s: absurd waits (year 9999) are cut to this.
    """
    waits: list[float] = []
    for value in values:
        text = value.strip()
        if _NUMBERS.fullmatch(text):
            waits.extend(_seconds(part) for part in text.split(","))
        elif (then := _http_date(text)) is not None:
            now = _http_date(date or "") or datetime.now(UTC)
            waits.append(max((then - now).total_seconds(), 0.0))
    valid = [wait for wait in waits if math.isfinite(wait) and wait >= 0]
    return min(max(valid), cap_s) if valid else None


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _http_date(text: str) -> datetime | None:
    try:
        found = email.utils.parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found


def is_retryable(status: int) -> bool:
    """Whether the same call may pass later."""
    return status in RETRYABLE or status >= 500


def error_of(status: int, body: bytes, retry_after_s: float | None = None) -> ModelError:
    """The typed error of an answer that isn't 200.

    Its message holds the status and the server's code, never its text: servers repeat prompts and keys in there.
    """
    try:
        tree = json.loads(body)
    except (ValueError, RecursionError):
        tree = None
    error = tree.get("error", tree) if isinstance(tree, dict) else None
    return _error(status, error, body.decode("utf-8", "replace")[:2000], retry_after_s)


def _error(status: int, error: object, text: str, retry_after_s: float | None) -> ModelError:
    codes = [error[k] for k in ("code", "type") if isinstance(error.get(k), str)] if isinstance(error, dict) else []
    shown = ", ".join(_CODE.sub("", code)[:60] for code in codes if code)
    message = f"model server answered {status}" + (f" ({shown})" if shown else "")
    if QUOTA_WORDS & set(codes):
        return ModelRefused(f"{message}: the account is used up", status=status, retry_after_s=retry_after_s)
    if is_retryable(status):
        return ModelUnavailable(message, status=status, retry_after_s=retry_after_s)
    if status in (400, 413, 422):
        if _CONTENT.search(text) or status == 413:
            return PromptRefused(f"{message}: it refuses this prompt (too long, or its content)", status=status)
        if _SCHEMA.search(text):
            return SchemaRefused(f"{message}: it can't do structured output", status=status)
    return ModelRefused(f"{message}: {_advice(status)}", status=status)


def _advice(status: int) -> str:
    if status in (401, 403):
        return "check the provider's key (HEADRACE_LLM__API_KEY for the first one)"
    if status == 404:
        return "check its base_url (up to and with /v1) and model"
    if 300 <= status < 400:
        return "it redirects; set base_url to where it points"
    return "it doesn't accept the request; check its model and the server's log"


def completion_of(body: bytes, latency_ms: int, retry_after_s: float | None = None) -> Completion:
    """Reads a 200.

    Raises:
        ModelUnavailable: it isn't JSON, has no choices, or is an error in disguise. Retryable.
        ModelRefused: an error in disguise that won't go away. Not retryable.
    """
    text = body.decode("utf-8", "replace").strip()
    tree = _joined(text) if text.startswith(("data:", "event:", ":")) else _tree(text)
    if tree.get("error"):
        error = tree["error"]
        code = error.get("code", error.get("status")) if isinstance(error, dict) else None
        status = int(code) if isinstance(code, (int, str)) and str(code) in _STATUSES else 503
        raise _error(status, error, str(error)[:2000], retry_after_s)
    choices = tree.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise ModelUnavailable("model server answered 200 without a choice", status=200, retry_after_s=retry_after_s)
    usage = tree.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    return Completion(
        text=_content(choices[0]),
        prompt_tokens=_count(usage, "prompt_tokens"),
        completion_tokens=_count(usage, "completion_tokens"),
        finish_reason=str(choices[0].get("finish_reason") or ""),
        model=tree["model"] if isinstance(tree.get("model"), str) else "",
        latency_ms=latency_ms,
    )


_STATUSES = frozenset(str(status) for status in range(400, 600))


def _tree(text: str) -> dict[str, Any]:
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelUnavailable(
            f"model server answered 200 with no JSON ({len(text)} characters)", status=200
        ) from error
    if not isinstance(tree, dict):
        raise ModelUnavailable("model server answered 200 with JSON that is no object", status=200)
    return tree


def _joined(text: str) -> dict[str, Any]:
    """One answer of stream chunks: some gateways stream whether asked or not."""
    whole: dict[str, Any] = {}
    parts: list[str] = []
    finish, done = "", False
    for line in text.splitlines():
        payload = line.removeprefix("data:").strip()
        done = done or payload == "[DONE]"
        if not line.startswith("data:") or payload in ("", "[DONE]"):
            continue
        chunk = _tree(payload)
        if chunk.get("error"):
            return chunk
        whole.update({k: v for k, v in chunk.items() if v and k in ("model", "usage")})
        choices = chunk.get("choices")
        if isinstance(choices, list) and choices and isinstance(choices[0], dict):
            parts.append(_content({"message": choices[0].get("delta") or choices[0].get("message") or {}}))
            finish = str(choices[0].get("finish_reason") or finish)
    if not (finish or done):
        raise ModelUnavailable("model server's stream ended in the middle", status=200)
    return {**whole, "choices": [{"message": {"content": "".join(parts)}, "finish_reason": finish}]}


def _content(choice: Mapping[str, Any]) -> str:
    """The text; empty when the model gave none (a refusal, or thoughts that used up all tokens)."""
    message = choice.get("message")
    content = message.get("content") if isinstance(message, dict) else choice.get("text")
    if isinstance(content, list):
        return "".join(p["text"] for p in content if isinstance(p, dict) and isinstance(p.get("text"), str))
    return content if isinstance(content, str) else ""


def _count(usage: Mapping[str, Any], name: str) -> int:
    value = usage.get(name)
    return value if isinstance(value, int) and value > 0 else 0
