"""The identity provider: discovery, the authorization code flow with PKCE, and what an id token says. By Authlib.

Authlib sends people there and takes them back, fetches metadata and keys, and verifies signature and claims. Added here is what
it leaves to its user: the issuer is the one that is configured, all addresses are safe, only asymmetric signatures count (a
secret that both know would let this side forge, too), and each step has a deadline.
"""

import asyncio
import contextlib
import functools
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.requests import Request

from app.errors import HeadraceError, SettingsError
from app.settings_web import OidcSettings, safe_address
from app.web.users import Role

__all__ = ["IdentityProvider", "OidcError", "ProviderRefused", "ProviderUnavailable", "name_of", "role_of"]

SIGNED_BY = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519")
"""Signatures that only the provider can make."""
ADDRESSES = ("authorization_endpoint", "token_endpoint", "jwks_uri")
FRESH_S = 3600.0
"""Metadata and keys are asked for anew after this time: a key that was taken back is trusted no longer."""
LEEWAY_S = 60
"""The two clocks may differ by so much."""
LONGEST_NAME = 64


class OidcError(HeadraceError):
    """A login by the identity provider can't go on."""


class ProviderUnavailable(OidcError):
    """It isn't reachable, or doesn't answer in time. Retryable."""

    retryable = True


class ProviderRefused(OidcError):
    """It refuses this console or this login, or what it says can't be trusted."""


class IdentityProvider:
    """One provider, as the settings name it.

    Raises:
        SettingsError: Authlib isn't installed.
    """

    def __init__(self, settings: OidcSettings) -> None:
        try:
            from authlib.integrations.starlette_client import OAuth
        except ImportError as error:
            raise SettingsError("console.oidc needs Authlib: pip install 'headrace[oidc]'") from error
        self._settings, self._registry = settings, OAuth
        self._tls = _tls()
        self._client: Any = None
        self._made_s = 0.0

    async def begin(self, request: Request, state: str, nonce: str) -> tuple[str, dict[str, Any]]:
        """Where to send a browser, and what Authlib has to have again when it comes back.

        Raises:
            ProviderUnavailable: no answer in time. Retryable.
            ProviderRefused: what it says can't be trusted.
        """
        kept: dict[str, Any] = {}
        request.scope["session"] = kept
        async with self._asking("discovery"):
            client = await self._ready()
            reply = await client.authorize_redirect(request, self._settings.callback, state=state, nonce=nonce)
        return reply.headers["location"], kept

    async def claims(self, request: Request, kept: dict[str, Any], nonce: str) -> dict[str, Any]:
        """What the id token says that the code of this request is good for; all of it verified.

        Raises:
            ProviderUnavailable: no answer in time. Retryable.
            ProviderRefused: the code isn't taken, or the token can't be trusted.
        """
        request.scope["session"] = kept
        wanted = {
            "iss": {"essential": True, "value": self._settings.issuer},
            "aud": {"essential": True, "value": self._settings.client_id},
            "sub": {"essential": True},
            "exp": {"essential": True},
        }
        async with self._asking("the code"):
            client = await self._ready()
            token = await client.authorize_access_token(request, claims_options=wanted, leeway=LEEWAY_S)
        said = dict(token["userinfo"]) if token.get("id_token") else {}
        if not said:
            raise ProviderRefused("no id token came for the code")
        if said.get("nonce") != nonce:  # versions of Authlib let a provider say that it knows no nonces
            raise ProviderRefused("the id token is of another login (nonce)")
        if not isinstance(said.get("sub"), str) or not said["sub"]:
            raise ProviderRefused("the id token names nobody (sub)")
        return said

    async def metadata(self) -> Mapping[str, Any]:
        """What the provider says of itself, with its keys (`jwks`).

        Raises:
            ProviderUnavailable: no answer in time. Retryable.
            ProviderRefused: what it says can't be trusted.
        """
        async with self._asking("discovery"):
            client = await self._ready()
            keys = await client.fetch_jwk_set()
        return {**client.server_metadata, "jwks": keys}

    async def _ready(self) -> Any:
        """Authlib's client with the provider's metadata, checked."""
        now = time.monotonic()
        if self._client is None or now - self._made_s > FRESH_S:
            client = self._new()
            self._accept(await client.load_server_metadata(), client)
            self._client, self._made_s = client, now
        return self._client

    def _new(self) -> Any:
        settings = self._settings
        return self._registry().register(
            "provider",
            client_id=settings.client_id,
            client_secret=settings.client_secret.get_secret_value(),
            server_metadata_url=settings.issuer.rstrip("/") + "/.well-known/openid-configuration",
            client_kwargs={
                "scope": " ".join(settings.scopes), "code_challenge_method": "S256", "timeout": settings.timeout_s,
                "verify": self._tls,
            },
        )  # fmt: skip

    def _accept(self, metadata: dict[str, Any], client: Any) -> None:
        """Checks what the provider says of itself, and takes from it what Authlib should go by."""
        named = metadata.get("issuer")
        if named != self._settings.issuer:  # OpenID Connect Discovery 1.0, 4.3
            raise ProviderRefused(
                f"it calls itself {str(named)[:200]!r}, and console.oidc.issuer is {self._settings.issuer!r}"
            )
        for name in ADDRESSES:
            if not isinstance(metadata.get(name), str) or not safe_address(metadata[name]):
                raise ProviderRefused(f"its {name} isn't an https address")
        offered = metadata.get("id_token_signing_alg_values_supported") or ["RS256"]
        metadata["id_token_signing_alg_values_supported"] = [each for each in SIGNED_BY if each in offered]
        if not metadata["id_token_signing_alg_values_supported"]:
            raise ProviderRefused(f"it signs id tokens in none of the ways that are taken here: {', '.join(SIGNED_BY)}")
        methods = metadata.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
        basic = "client_secret_basic" in methods
        client.client_kwargs["token_endpoint_auth_method"] = "client_secret_basic" if basic else "client_secret_post"

    @contextlib.asynccontextmanager
    async def _asking(self, what: str) -> AsyncIterator[None]:
        """Gives what runs inside a deadline, and makes errors of Authlib and below into ours."""
        import httpx2

        try:
            async with asyncio.timeout(self._settings.timeout_s):
                yield
        except OidcError:
            raise
        except (httpx2.TransportError, TimeoutError) as error:
            raise ProviderUnavailable(f"{what}: {type(error).__name__}") from error
        except httpx2.HTTPStatusError as error:
            status = error.response.status_code
            kind = ProviderUnavailable if status >= 500 else ProviderRefused
            raise kind(f"{what}: HTTP {status}") from error
        except Exception as error:  # whatever an answer does to the library: nobody is let in by it
            raise ProviderRefused(f"{what}: {type(error).__name__}: {str(error)[:200]}") from error


@functools.cache
def _tls() -> ssl.SSLContext:
    """Made once: Authlib makes a client for each request, and reading all certificates takes as long as all else."""
    import httpx2

    return httpx2.create_ssl_context()


def name_of(claims: Mapping[str, Any]) -> str:
    """How somebody is shown: what they chose to be called, else a verified address, else what the provider calls them."""
    email = claims.get("email") if _verified(claims) else None
    for given in (claims.get("preferred_username"), email, claims.get("sub")):
        shown = "".join(c for c in given if c.isprintable()).strip()[:LONGEST_NAME] if isinstance(given, str) else ""
        if shown:
            return shown
    return "?"


def role_of(claims: Mapping[str, Any], settings: OidcSettings) -> Role | None:
    """The role that somebody has here; None: they may not in."""
    given = _values(claims, settings.role_claim)
    for value, role in settings.roles.items():
        if value in given:
            return role
    return None if settings.default_role == "none" else settings.default_role


def _values(claims: Mapping[str, Any], name: str) -> list[Any]:
    if name == "email" and not _verified(claims):
        return []  # anybody may write anybody's
    found: Any = claims.get(name)
    if found is None:
        found = claims
        for part in name.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
    return found if isinstance(found, list) else [found]


def _verified(claims: Mapping[str, Any]) -> bool:
    return claims.get("email_verified") in (True, "true")
