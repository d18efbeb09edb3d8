"""Settings of `headrace web`: the gateway, what it listens on and takes; and the console, who gets in."""

from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from app.settings_base import Section

__all__ = [
    "LOOPBACK",
    "ConsoleRole",
    "ConsoleSettings",
    "GatewaySettings",
    "OidcSettings",
    "ResultsSettings",
    "ReviewsSettings",
    "Scope",
    "safe_address",
]

LOOPBACK = ("127.0.0.1", "::1", "localhost")

Scope = Literal["produce", "read", "review", "admin"]
"""What an API key may do. admin may do all."""

ConsoleRole = Literal["viewer", "operator", "reviewer", "admin"]
"""viewer sees; operator also redrives and discards; reviewer also decides reviews; admin may do all."""


def safe_address(address: str) -> bool:
    """Whether nobody can listen in on the way to an address: https, or http to this machine; without user or fragment."""
    try:
        parts = urlsplit(address)
        host, user, _ = parts.hostname, parts.username, parts.port
    except ValueError:
        return False
    plain = address.isascii() and address.isprintable() and " " not in address and "\\" not in address
    secure = parts.scheme == "https" or (parts.scheme == "http" and host in LOOPBACK)
    return plain and secure and bool(host) and user is None and not parts.fragment


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


class OidcSettings(Section):
    """Login to the console by an identity provider (OpenID Connect), beside local users. Needs the extra `oidc`."""

    issuer: str = Field(
        "",
        description="The provider, exactly as its tokens name it (`https://id.example.org/realms/main`); http on loopback "
        "alone. Empty: there is no such login.",
    )
    client_id: str = Field("", description="What the provider calls this console.")
    client_secret: SecretStr = Field(
        SecretStr(""), description="What the console shows the provider. From the environment only."
    )
    public_url: str = Field(
        "",
        description="Where browsers reach the console (`https://console.example.org`, with its path behind a proxy); http on "
        "loopback alone. `/oidc/callback` under it is the redirect URI; the header Host counts for nothing.",
    )
    scopes: list[str] = Field(
        ["openid", "profile", "email"],
        description="What is asked for; `openid` must be among it. Some providers give groups for one more (`groups`).",
    )
    role_claim: str = Field(
        "groups",
        min_length=1,
        description="The claim of the id token that holds groups or roles, a text or a list; dots lead inwards where no claim "
        "has the whole name (`realm_access.roles`). `email` counts if it is verified.",
    )
    roles: dict[str, ConsoleRole] = Field(
        default_factory=dict,
        description="The role that a value of the claim gives. Of several values the one that stands first here counts.",
    )
    default_role: Literal["none", "viewer", "operator", "reviewer", "admin"] = Field(
        "none", description="The role of who has none of these values. none: refused, as the provider may know anybody."
    )
    session_s: float = Field(
        3600.0,
        ge=60,
        le=43_200,
        description="Such a login ends after this time, or console.session_s if that is less: a role taken away at the "
        "provider is gone here by then.",
    )
    timeout_s: float = Field(
        10.0,
        gt=0,
        le=60,
        description="The provider must have answered within this time at each of the two steps of a login.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.issuer:
            if self.client_id or self.public_url or self.roles:
                raise ValueError("issuer is missing: the address of the identity provider")
            return self
        for name, address in (("issuer", self.issuer), ("public_url", self.public_url)):
            if not safe_address(address) or "?" in address:
                raise ValueError(
                    f"{name} {address!r}: https://HOST/PATH is needed (http for 127.0.0.1 and localhost alone)"
                )
        if not self.client_id:
            raise ValueError("client_id is missing: the provider gives it when the console is registered")
        if "openid" not in self.scopes or any(not scope or " " in scope for scope in self.scopes):
            raise ValueError("scopes: a list of names without spaces, `openid` among them")
        if not self.roles and self.default_role == "none":
            raise ValueError("roles is empty and default_role is none: nobody could log in")
        return self

    @property
    def callback(self) -> str:
        """The redirect URI, as it is registered at the provider."""
        return self.public_url.rstrip("/") + "/oidc/callback"

    @property
    def host(self) -> str:
        """What people know the provider by."""
        return urlsplit(self.issuer).netloc


class ConsoleSettings(Section):
    """Pages for people (`headrace web`): who gets in, and for how long."""

    secret: SecretStr = Field(
        SecretStr(""),
        description="Signs session cookies; 32 characters or more, from the environment only. Empty: a random one for each "
        "start, on loopback alone.",
    )
    token: SecretStr = Field(
        SecretStr(""),
        description="Of the link with which the first person gets in, on loopback, while there are no users and no console.oidc. "
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
    oidc: OidcSettings = OidcSettings()

    @field_validator("secret")
    @classmethod
    def _long_enough(cls, secret: SecretStr) -> SecretStr:
        if 0 < len(secret.get_secret_value()) < 32:
            raise ValueError("32 characters or more; `openssl rand -hex 32` makes one")
        return secret
