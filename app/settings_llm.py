"""Settings of the deep tier: its providers, when each is asked, and what a call may cost."""

import os
from pathlib import Path
from typing import Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field, SecretStr, field_validator, model_validator

from app.settings_base import Name, Section

__all__ = ["BreakerSettings", "BudgetSettings", "LlmSettings", "OverBudget", "ProviderSettings"]


OverBudget = Literal["wait", "light", "review"]


class BudgetSettings(Section):
    """What the deep tier may cost. One stage keeps the sums and grants leases to all workers."""

    day_usd: float | None = Field(
        None, gt=0, description="US dollars a day for each task that has no `day_usd` of its own; unset: no limit."
    )
    over: OverBudget = Field(
        "wait",
        description="At the limit, for events that no free provider may see: wait (until the next day), light (the light "
        "model's answer stands, however sure it is), or review.",
    )
    timezone: str = Field("UTC", description="IANA zone in which a day begins.")
    period_s: float = Field(86_400.0, ge=1, description="Length of a day. Anything else is for tests.")
    minute_s: float = Field(
        60.0,
        ge=1,
        description="Length of the minute of requests_per_minute and tokens_per_minute. Anything else is for tests.",
    )
    lease_share: float = Field(
        0.01, gt=0, le=1, description="Share of the limit that a worker takes at once: more costs fewer messages, less "
        "leaves less unused in others' hands near the limit."
    )  # fmt: skip
    alert_share: float = Field(
        0.8, gt=0, le=1, description="Spent share of the limit from which the log and a metric warn."
    )

    @field_validator("timezone")
    @classmethod
    def _check_zone(cls, value: str) -> str:
        try:
            ZoneInfo(value)
        except (ZoneInfoNotFoundError, ValueError):
            raise ValueError("allowed: an IANA zone such as Europe/Berlin or UTC") from None
        return value


class ProviderSettings(Section):
    """A server that speaks the OpenAI API, and what it may be shown."""

    name: Name = Field("main", description="Names the provider in metrics, logs and reviews. Unique.")
    base_url: str = Field(
        "http://127.0.0.1:8090/v1",
        pattern=r"^https?://",
        description="Up to and with /v1. The default is `headrace llm`.",
    )
    model: str = Field("smollm2-135m-instruct", min_length=1, description="As the server names it.")
    api_key_env: str = Field(
        "",
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$|^$",
        description="Name of the environment variable that holds the key. Keys are never in the file.",
    )
    headers: dict[str, str] = Field(
        default_factory=dict,
        description="Sent with each call. A value `$NAME` is taken from the environment variable of that name.",
    )
    ca_file: Path | None = Field(None, description="PEM of the CA that signed the server; unset: the usual ones.")
    proxy: str = Field(
        "", pattern=r"^(https?|socks5h?)://|^$", description="Proxy for this provider; empty: none set here."
    )
    concurrency: int = Field(10, ge=1, le=1000, description="Calls in flight a worker.")
    requests_per_minute: int | None = Field(
        None, ge=1, description="Calls in any minute, of all workers together; unset: no limit. Shared out by leases."
    )
    tokens_per_minute: int | None = Field(
        None,
        ge=1,
        description="Tokens in any minute, likewise. A call counts as its upper bound (bytes of the prompt, longest answer) "
        "until it is answered.",
    )
    connect_timeout_s: float = Field(5.0, gt=0, description="To open a connection.")
    read_timeout_s: float = Field(60.0, gt=0, le=600, description="Between two pieces of an answer.")
    timeout_s: float = Field(60.0, gt=0, le=600, description="A whole call, slow drips included.")
    json_schema: bool = Field(
        True,
        description="Ask for structured output; a server that refuses it is asked without, and that is remembered.",
    )
    temperature: float = Field(
        0.0, ge=0, le=2, description="0: the same text gets the same answer, as far as the server can."
    )
    price_prompt_usd: float | None = Field(
        None, ge=0, description="US dollars per million prompt tokens. Unset: as `genai-prices` knows it, else 0."
    )
    price_completion_usd: float | None = Field(None, ge=0, description="The same for completion tokens.")
    mask: Literal["auto", "on", "off"] = Field(
        "auto",
        description="Mask personal data and secrets before a text leaves. auto: unless the server is on loopback.",
    )
    sources: list[Name] = Field(default_factory=list, description="Sources whose events it may see; empty: all.")
    tasks: list[Name] = Field(default_factory=list, description="Tasks it may be asked; empty: all.")
    marks: list[Name] = Field(
        default_factory=list,
        description="Marks it may see: a marked event is shown only where all its marks are named.",
    )

    @field_validator("headers")
    @classmethod
    def _check_headers(cls, value: dict[str, str]) -> dict[str, str]:
        for name, text in value.items():
            if name.lower() in ("authorization", "api-key", "x-api-key") and not text.startswith("$"):
                raise ValueError(f"header {name} is a secret: write `$NAME` and set the environment variable NAME")
        return value

    def key(self) -> str:
        """The API key, from the environment; empty without."""
        return os.environ.get(self.api_key_env, "").strip() if self.api_key_env else ""


class BreakerSettings(Section):
    """When a provider that fails is left alone. One breaker a provider and worker, shared by all its calls."""

    window_s: float = Field(30.0, gt=0, le=3600, description="Calls of this long count.")
    min_calls: int = Field(10, ge=1, description="It doesn't open on fewer: two failures of three say little.")
    error_share: float = Field(0.5, gt=0, le=1, description="Share of failed calls from which it opens.")
    open_s: float = Field(15.0, gt=0, description="Then one call tries; until it succeeds, one each such time.")
    refused_s: float = Field(
        60.0,
        gt=0,
        description="How long a provider that refuses us (400, 401, 403, 404) is skipped before one call tries.",
    )


class LlmSettings(ProviderSettings):
    """The deep tier. Its own fields are the first provider of the chain; `providers` are asked after it, in order."""

    api_key: SecretStr = Field(SecretStr(""), description="From the environment only (HEADRACE_LLM__API_KEY).")
    providers: list[ProviderSettings] = Field(
        default_factory=list, description="Asked in order when those before can't answer."
    )
    batch_items: int = Field(
        20,
        ge=1,
        le=100,
        description="Most events a call: 20 cut prompt tokens about 8 times. Fewer while answers go missing.",
    )
    batch_wait_ms: int = Field(500, ge=0, le=60_000, description="An event waits at most this long for company.")
    batch_tokens: int = Field(
        6000, ge=200, description="Estimated tokens of the events in a call; a lone longer event goes alone."
    )
    mask_regions: list[str] = Field(
        default_factory=lambda: ["CN", "US", "GB", "DE", "FR"],
        description="Countries (ISO codes) in which phone numbers without a country code are read, where texts are masked.",
    )
    max_item_tokens: int = Field(
        1000,
        ge=16,
        description="A longer text is cut, never inside a character: 1,000 Chinese characters or 3,000 Latin letters. "
        "Estimated, on the high side, so that 20 of them fit most context windows.",
    )
    max_retries: int = Field(2, ge=0, le=10, description="After the first call to a provider, on retryable failures.")
    retry_backoff_s: float = Field(0.5, gt=0, description="First wait between retries; doubles, with jitter.")
    max_retry_after_s: float = Field(300.0, gt=0, description="A longer Retry-After is cut to this.")
    breaker: BreakerSettings = BreakerSettings()

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [p.name for p in self.chain()]
        if len(set(names)) != len(names):
            raise ValueError(f"llm.providers: names must differ (the first provider is {self.name!r}), given {names}")
        return self

    def key(self) -> str:
        """The API key of the first provider."""
        return self.api_key.get_secret_value().strip() or super().key()

    def chain(self) -> list[ProviderSettings]:
        """All providers in the order in which they are asked."""
        return [self, *self.providers]
