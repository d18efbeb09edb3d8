"""Settings of `headrace web`: the gateway, what it listens on and takes; and the console, who gets in."""

from typing import Literal

from pydantic import Field, SecretStr, field_validator

from app.settings_base import Section

__all__ = ["LOOPBACK", "ConsoleSettings", "GatewaySettings", "ResultsSettings", "ReviewsSettings", "Scope"]

LOOPBACK = ("127.0.0.1", "::1", "localhost")

Scope = Literal["produce", "read", "review", "admin"]
"""What an API key may do. admin may do all."""


class ResultsSettings(Section):
    """Results that can be asked for by event_id."""

    keep_s: float = Field(
        86_400.0, ge=0, description="How long a result is kept in State. 0: not at all, and the stage isn't there."
    )
    partition_bytes: int = Field(
        256 << 20,
        ge=1 << 20,
        description="Results a partition keeps; above it the oldest go. About half a million usual ones; twice this on disk.",
    )


class ReviewsSettings(Section):
    """Events that a person decides."""

    keep_s: float = Field(
        30 * 86_400.0,
        ge=0,
        description="How long a review stays in State: it can be decided so long after it came, and decided anew or exported "
        "so long after its decision. 0: the stage isn't there.",
    )


class GatewaySettings(Section):
    """HTTP and WebSocket: events in, results out (`headrace web`). Host, port and connections hold for the console too."""

    host: str = Field("127.0.0.1", description="Loopback. It is plain HTTP: put TLS in front of anything else.")
    port: int = Field(8080, ge=0, le=65535, description="0: any free one, which the log names.")
    trusted_proxies: list[str] = Field(
        default_factory=list,
        description="Addresses or networks whose X-Forwarded-For and X-Forwarded-Proto are believed; empty: nobody's.",
    )
    source: str = Field("", description="The source that events belong to without `?source=`; empty: the first one.")
    max_body_bytes: int = Field(
        8 << 20, ge=1024, description="Of a request, unpacked. A list of 1,000 usual events has a tenth of it."
    )
    max_items: int = Field(10_000, ge=1, description="Events a request: more would hold up others for a second.")
    max_header_bytes: int = Field(64 << 10, ge=4096, description="Request line and headers together.")
    header_timeout_s: float = Field(
        10.0, gt=0, description="Headers must be there within this time, or the connection is closed."
    )
    body_timeout_s: float = Field(30.0, gt=0, description="A body must be there within this time, or 408.")
    ack_timeout_s: float = Field(
        10.0, gt=0, le=300, description="Kafka must have acked within this time, or 503 with Retry-After."
    )
    max_in_flight_bytes: int = Field(
        64 << 20, ge=1 << 20, description="Bodies taken and not yet acked, all requests; above it 429 with Retry-After."
    )
    rate_per_s: float = Field(
        0.0, ge=0, description="Events a second a key may send to one gateway, over a minute. 0: any number."
    )
    burst_s: float = Field(10.0, ge=1, description="A key that was silent may send this many seconds' worth at once.")
    max_connections: int = Field(4096, ge=1, description="Connections at once, idle ones included; above it 503.")
    cors_origins: list[str] = Field(
        default_factory=list, description="Origins of web pages that may call it; empty: none (CORS is off)."
    )
    idempotency_s: float = Field(
        86_400.0,
        gt=0,
        description="How long a reply is kept for a repeated Idempotency-Key. As long as the dedup horizon.",
    )
    idempotency_keys: int = Field(
        10_000, ge=1, description="Replies kept in memory; above it the oldest go. A few kB each at most."
    )
    drain_s: float = Field(
        0.5, ge=0, le=60, description="After SIGTERM /readyz says 503 this long before connections are refused."
    )
    close_timeout_s: float = Field(10.0, gt=0, description="Then requests that still run have this long.")
    max_wait_s: float = Field(60.0, ge=0, le=600, description="The longest that a request may wait for a result.")
    max_waiting: int = Field(1000, ge=1, description="Requests that wait for a result; above it 429.")
    max_streams: int = Field(
        2000, ge=1, description="Live streams of results (SSE and WebSocket) at once; above it 429, or close code 1013."
    )
    stream_items: int = Field(
        1000, ge=1, description="Results that wait for a slow reader; above it the stream is closed with a code."
    )
    send_timeout_s: float = Field(15.0, gt=0, description="A reader that takes nothing for so long is dropped.")
    keep_alive_s: float = Field(
        15.0, gt=0, description="A stream without results says so this often: proxies cut idle ones after 30 s or more."
    )


class ConsoleSettings(Section):
    """Pages for people (`headrace web`): who gets in, and for how long."""

    secret: SecretStr = Field(
        SecretStr(""),
        description="Signs session cookies; 32 characters or more, from the environment only. Empty: a random one for each "
        "start, on loopback alone.",
    )
    token: SecretStr = Field(
        SecretStr(""),
        description="Of the link with which the first person gets in, on loopback and while there are no users. "
        "`headrace run` sets it; empty: a random one. From the environment only.",
    )
    session_s: float = Field(
        43_200.0, ge=60, le=7 * 86_400, description="A login ends after this time, whatever is done: a working day."
    )
    secure_cookies: Literal["auto", "on", "off"] = Field(
        "auto", description="Cookies only over HTTPS. auto: where HTTPS is seen, and unless gateway.host is loopback."
    )
    origins: list[str] = Field(
        default_factory=list,
        description="Origins (`https://console.example.org`) that the console is reached by where a proxy changes the header "
        "Host; empty: the host that was asked for.",
    )
    login_failures: int = Field(
        5, ge=1, le=100, description="Failed logins from an address, or of a user, after which it has to wait."
    )
    login_wait_s: float = Field(
        30.0,
        ge=1,
        description="The first such wait; each further failure doubles it, up to a quarter of an hour; half a minute for a "
        "user's failures from several addresses.",
    )

    @field_validator("secret")
    @classmethod
    def _long_enough(cls, secret: SecretStr) -> SecretStr:
        if 0 < len(secret.get_secret_value()) < 32:
            raise ValueError("32 characters or more; `openssl rand -hex 32` makes one")
        return secret
