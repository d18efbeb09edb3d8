"""`headrace check` and the identity provider of the console."""

from typing import Any

import pytest

from app.commands import check
from app.settings_web import OidcSettings
from tests.helpers.console import settings_with
from tests.helpers.oidc import CLIENT, Provider


async def checked(monkeypatch: pytest.MonkeyPatch, issuer: str, **more: Any) -> check.Findings:
    given = {"issuer": issuer, "client_id": CLIENT, "public_url": "https://console.example", "roles": {"ops": "admin"}}
    monkeypatch.setattr(check, "settings", settings_with(oidc=OidcSettings(**{**given, **more})))
    found = check.Findings()
    await check._identity(found)
    return found


async def test_discovery_and_keys_are_asked_for_and_the_redirect_uri_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with Provider() as provider:
        provider.says = {"scopes_supported": ["openid", "profile"], "code_challenge_methods_supported": ["plain"]}
        found = await checked(monkeypatch, provider.issuer)
        said = capsys.readouterr().out
        assert found.wrong == 0
        assert "ok    discovery; 1 keys" in said
        assert "https://console.example/oidc/callback" in said
        assert "warn  it doesn't say that it knows the scopes email" in said
        assert "warn  it doesn't say that it knows PKCE" in said
        assert "warn  HEADRACE_CONSOLE__OIDC__CLIENT_SECRET isn't set here" in said
        provider.says = {}
        assert (await checked(monkeypatch, provider.issuer, client_secret="x")).wrong == 0
        assert "warn" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        ({"says": {"issuer": "https://another.example"}}, "https://another.example"),
        ({"says": {"jwks_uri": None}}, "jwks_uri"),
        ({"keys": []}, "0 keys"),
        ({"status": 404}, "HTTP 404"),
        ({"status": 500}, "HTTP 500"),
    ],
    ids=str,
)
async def test_what_would_keep_people_out_is_wrong(
    fault: dict[str, Any], named: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with Provider() as provider:
        for name, value in fault.items():
            setattr(provider, name, value)
        assert (await checked(monkeypatch, provider.issuer)).wrong == 1
    said = capsys.readouterr().out
    assert "FAIL" in said
    assert named in said


async def test_a_provider_that_is_not_there_is_wrong_and_a_missing_library_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with Provider() as provider:
        await provider.stop()
        assert (await checked(monkeypatch, provider.issuer)).wrong == 1
        assert "ConnectError" in capsys.readouterr().out
    monkeypatch.setitem(__import__("sys").modules, "authlib.integrations.starlette_client", None)
    assert (await checked(monkeypatch, provider.issuer)).wrong == 0
    assert "warn  console.oidc needs Authlib" in capsys.readouterr().out
