"""What of an identity provider's answers isn't taken: tokens, signatures, keys, and what it says of itself."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.helpers.oidc import CLIENT, Provider, hmac_by_client_secret, hmac_by_public_key, signed_by, unsigned
from tests.helpers.oidc_login import PUBLIC, at, audited, console_of, gone_there, log_in, session_of


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    async with Provider() as running:
        running.callback = f"{PUBLIC}/oidc/callback"
        yield running


@pytest.mark.parametrize(
    "lies",
    [
        {"nonce": "of-another-login"},
        {"nonce": None},
        {"nonce": None, "nonce_supported": False},
        {"aud": "another-client"},
        {"aud": "another-client", "azp": CLIENT},
        {"aud": ["another-client", "a-third"], "azp": CLIENT},
        {"aud": [CLIENT, "another-client"], "azp": "another-client"},
        {"aud": None},
        {"iss": "https://another.example"},
        {"iss": None},
        {"exp": 1_700_000_000},
        {"exp": None},
        {"exp": "never"},
        {"iat": None},
        {"nbf": 9_999_999_999},
        {"sub": None},
        {"sub": ""},
        {"sub": ["a", "b"]},
    ],
    ids=str,
)
async def test_an_id_token_that_is_not_for_this_login_lets_nobody_in(provider: Provider, lies: dict[str, Any]) -> None:
    app, console = console_of(provider)
    provider.lie(**lies)
    async with at(app) as http:
        reply = await log_in(http)
    assert (reply.status_code, session_of(console, reply)) == (502, None)
    assert "can&#x27;t be trusted" in reply.text
    assert 'name="password"' in reply.text  # local users are shown the way in
    assert audited(console) == []


@pytest.mark.parametrize(
    ("sign", "offered"),
    [
        (unsigned, ["RS256"]),
        (unsigned, ["none", "RS256"]),
        (hmac_by_public_key, ["RS256"]),
        (hmac_by_public_key, ["HS256", "RS256"]),
        (hmac_by_client_secret, ["HS256", "RS256"]),
        (signed_by("another", named="first"), ["RS256"]),
        (signed_by("another"), ["RS256"]),
        (lambda provider, claims: signed_by("first")(provider, claims)[:-8] + "AAAAAAAA", ["RS256"]),
        (lambda provider, claims: "a.b.c", ["RS256"]),
        (lambda provider, claims: "", ["RS256"]),
    ],
)
async def test_a_signature_that_is_not_the_provider_s_lets_nobody_in(
    provider: Provider, sign: Any, offered: list[str]
) -> None:
    provider.sign, provider.says = sign, {"id_token_signing_alg_values_supported": offered}
    app, console = console_of(provider)
    async with at(app) as http:
        reply = await log_in(http)
    assert (reply.status_code, session_of(console, reply)) == (502, None)


async def test_a_key_that_is_new_at_the_provider_is_asked_for(provider: Provider) -> None:
    app, console = console_of(provider)
    async with at(app) as http:
        assert session_of(console, await log_in(http)) is not None
        provider.keys, provider.sign = ["second"], signed_by("second")
        assert session_of(console, await log_in(http)) is not None
    assert provider.asked.count("/keys") == 2
    assert provider.asked.count("/.well-known/openid-configuration") == 1


async def test_a_key_that_the_provider_took_back_is_trusted_no_longer_than_an_hour(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, console = console_of(provider)
    async with at(app) as http:
        assert session_of(console, await log_in(http)) is not None
        provider.keys = ["second"]
        assert session_of(console, await log_in(http)) is not None
        monkeypatch.setattr("app.web.console.oidc.FRESH_S", -1.0)
        assert (await log_in(http)).status_code == 502


@pytest.mark.parametrize(
    "answer",
    [{}, {"access_token": "x", "token_type": "Bearer"}, {"error": "invalid_grant"}, [1], {"id_token": 7},
     {"access_token": "x", "token_type": "Bearer", "userinfo": {"sub": "x", "groups": ["ops"]}}],
    ids=str,
)  # fmt: skip
async def test_a_reply_without_an_id_token_lets_nobody_in(provider: Provider, answer: Any) -> None:
    provider.answer = answer
    app, console = console_of(provider)
    async with at(app) as http:
        reply = await log_in(http)
    assert (reply.status_code, session_of(console, reply)) == (502, None)


@pytest.mark.parametrize(
    "says",
    [
        {"issuer": "https://another.example"},
        {"issuer": None},
        {"authorization_endpoint": "http://id.example/authorize"},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"token_endpoint": "http://id.example/token"},
        {"token_endpoint": None},
        {"jwks_uri": "file:///etc/passwd"},
        {"id_token_signing_alg_values_supported": ["HS256", "none"]},
        {"id_token_signing_alg_values_supported": 7},
    ],
    ids=str,
)
async def test_a_provider_that_is_not_the_configured_one_or_not_safe_is_not_gone_to(
    provider: Provider, says: dict[str, Any]
) -> None:
    provider.says = says
    app, _ = console_of(provider)
    async with at(app) as http:
        reply = await http.get("/oidc/login")
    assert (reply.status_code, "location" in reply.headers) == (502, False)


async def test_a_reply_that_names_another_issuer_is_not_taken(provider: Provider) -> None:
    app, console = console_of(provider)
    async with at(app) as http:
        back = await gone_there(http)
        reply = await http.get(str(httpx.URL(back).copy_merge_params({"iss": "https://another.example"})))
    assert (reply.status_code, session_of(console, reply)) == (502, None)
    assert "/token" not in provider.asked
