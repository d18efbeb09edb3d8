"""People whom an identity provider knows: their role and name, how long a session holds, and how they go."""

import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import SettingsError
from app.settings import load
from app.settings_web import OidcSettings
from app.web.console.app import console_alone
from app.web.console.audit import audit
from app.web.console.context import Visit
from app.web.console.oidc import IdentityProvider, name_of, role_of
from app.web.console.sessions import Guest, Session, Sessions
from app.web.users import UserBook, may
from tests.helpers.asgi import ListWriter
from tests.helpers.console import browser, console_app, settings_with

BASE: dict[str, Any] = {
    "issuer": "https://id.example", "client_id": "console", "client_secret": "s3cret",
    "public_url": "https://console.example", "roles": {"boss": "admin", "ops": "operator", "look": "viewer"},
}  # fmt: skip
ADA = Guest(name="ada", subject="7", role="operator")


def oidc(**more: Any) -> OidcSettings:
    return OidcSettings(**{**BASE, **more})


def sessions(settings: OidcSettings, book: UserBook | None = None, **state: bool) -> Sessions:
    """Signed with one secret, as after a restart."""
    tree = settings_with(oidc=settings, secret=type(settings.client_secret)("x" * 32), session_s=43_200.0)
    return Sessions(tree.console, book or UserBook(), lambda: state.get("known", True), lambda: state.get("read", True))


@pytest.mark.parametrize(
    ("claims", "settings", "role"),
    [
        ({"groups": ["ops"]}, {}, "operator"),
        ({"groups": "ops"}, {}, "operator"),
        ({"groups": ["look", "ops", "boss"]}, {}, "admin"),
        ({"groups": ["look", "ops"]}, {"roles": {"look": "viewer", "ops": "operator"}}, "viewer"),
        ({"groups": ["others"]}, {}, None),
        ({"groups": []}, {}, None),
        ({}, {}, None),
        ({}, {"default_role": "viewer"}, "viewer"),
        ({"groups": ["boss"]}, {"default_role": "viewer"}, "admin"),
        ({"groups": "boss ops"}, {}, None),
        ({"groups": ["BOSS"]}, {}, None),
        ({"groups": {"boss": True}}, {}, None),
        ({"groups": [["boss"], {"a": "boss"}, None, 7]}, {}, None),
        ({"realm_access": {"roles": ["ops"]}}, {"role_claim": "realm_access.roles"}, "operator"),
        ({"realm_access": ["ops"]}, {"role_claim": "realm_access.roles"}, None),
        ({"https://a.example/roles": ["ops"]}, {"role_claim": "https://a.example/roles"}, "operator"),
        ({"email": "a@b.c", "email_verified": True}, {"role_claim": "email", "roles": {"a@b.c": "admin"}}, "admin"),
        ({"email": "a@b.c", "email_verified": False}, {"role_claim": "email", "roles": {"a@b.c": "admin"}}, None),
        ({"email": "a@b.c"}, {"role_claim": "email", "roles": {"a@b.c": "admin"}}, None),
        ({"email": ["a@b.c"], "email_verified": []}, {"role_claim": "email", "roles": {"a@b.c": "admin"}}, None),
    ],
)  # fmt: skip
def test_a_role_is_given_by_what_the_settings_name_and_by_nothing_else(
    claims: dict[str, Any], settings: dict[str, Any], role: str | None
) -> None:
    assert role_of(claims, oidc(**settings)) == role


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
)


@given(JSON, st.sampled_from(["groups", "a.b.c", "email"]))
def test_whatever_a_claim_holds_only_a_value_of_the_settings_gives_a_role(value: Any, claim: str) -> None:
    claims = {"groups": value, "a": {"b": value}, "email": value, "sub": "x", "preferred_username": value}
    assert role_of(claims, oidc(role_claim=claim)) is None
    assert name_of(claims).isprintable()
    assert 0 < len(name_of(claims)) <= 64


@pytest.mark.parametrize(
    ("claims", "name"),
    [
        ({"preferred_username": "ada", "email": "a@b.c", "email_verified": True, "sub": "7"}, "ada"),
        ({"email": "a@b.c", "email_verified": True, "sub": "7"}, "a@b.c"),
        ({"email": "a@b.c", "email_verified": "true", "sub": "7"}, "a@b.c"),
        ({"email": "a@b.c", "email_verified": False, "sub": "7"}, "7"),
        ({"preferred_username": "", "sub": "7"}, "7"),
        ({"preferred_username": ["ada"], "sub": "7"}, "7"),
        ({"preferred_username": "\u202e\u0000a\nd\ud800a  ", "sub": "7"}, "ada"),
        ({"preferred_username": "x" * 1000, "sub": "7"}, "x" * 64),
        ({"sub": "\u200b"}, "?"),
    ],
)
def test_the_name_shown_is_the_first_that_can_be(claims: dict[str, Any], name: str) -> None:
    assert name_of(claims) == name


def test_a_guest_s_session_holds_over_a_restart_for_its_own_time_and_with_its_own_role() -> None:
    book = UserBook()
    before, after = sessions(oidc(session_s=600.0)), sessions(oidc(session_s=600.0), book)
    session, cookie = before.begin(ADA)
    assert (session.user, after.of(cookie)) == ("oidc:ada", session)
    assert [needed for needed in ("viewer", "operator", "reviewer", "admin") if after.may(session, needed)] == [
        needed for needed in ("viewer", "operator", "reviewer", "admin") if may("operator", needed)
    ]
    old = msgspec.structs.replace(session, begun_ms=session.begun_ms - 601_000)
    assert (after.role(old), after.over(old)) == (None, True)
    shorter = sessions(oidc(session_s=43_200.0))
    assert shorter.role(old) == "operator"
    key, _ = before.end(session)
    book.ended[key.removeprefix("session:")] = int(time.time() * 1000)
    assert (after.role(session), after.over(session), before.role(session)) == (None, True, None)


@pytest.mark.parametrize(
    "changed",
    [
        {"issuer": "https://another.example"},
        {"client_id": "another"},
        {"role_claim": "roles"},
        {"roles": {"boss": "admin", "ops": "viewer", "look": "viewer"}},
        {"roles": {"ops": "operator", "boss": "admin", "look": "viewer"}},
        {"default_role": "viewer"},
    ],
    ids=str,
)
def test_sessions_of_guests_end_when_the_settings_would_decide_otherwise(changed: dict[str, Any]) -> None:
    session, cookie = sessions(oidc()).begin(ADA)
    after = sessions(oidc(**changed))
    assert after.signed(cookie) == session
    assert (after.role(session), after.over(session)) == (None, True)
    assert sessions(oidc(timeout_s=5.0, scopes=["openid"])).role(session) == "operator"
    without = sessions(OidcSettings())
    assert (without.role(session), without.over(session)) == (None, True)


def test_as_long_as_it_is_not_read_who_logged_out_a_guest_may_nothing_and_keeps_the_cookie() -> None:
    session, _ = sessions(oidc()).begin(ADA)
    unread = sessions(oidc(), known=False, read=False)
    assert (unread.role(session), unread.over(session)) == (None, False)
    stale = sessions(oidc(), known=False)
    assert (stale.may(session, "viewer"), stale.may(session, "operator")) == (True, False)


def test_no_cookie_makes_a_local_user_a_guest_or_a_guest_a_local_user() -> None:
    held = sessions(oidc(), book := UserBook())
    forged = Session(id="x", user="admin", begun_ms=int(time.time() * 1000), guest=ADA)
    assert held.role(forged) is None
    session, _ = held.begin(ADA)
    assert held.role(msgspec.structs.replace(session, guest=None)) is None
    assert session.user not in book.entries


async def test_signing_out_ends_a_guest_s_session_for_good() -> None:
    app, console = console_app(settings_with(oidc=oidc()))
    session, cookie = console.sessions.begin(ADA)
    async with browser(app, console) as http:
        http.cookies["headrace_session"] = cookie
        assert (await http.get("/_nicegui_ws/socket.io/?EIO=4&transport=polling")).status_code == 200
        await console.end_session(session)
        reply = await http.get("/")
        assert (reply.status_code, reply.headers["location"]) == (303, "/login")
        assert (await http.get("/_nicegui_ws/socket.io/?EIO=4&transport=polling")).status_code == 401
    assert isinstance(console.writer, ListWriter)
    ((topic, key, value),) = console.writer.aside
    assert (topic, key, value) == ("console-users", f"session:{session.id}".encode(), b"{}")


async def test_what_a_guest_does_is_audited_with_the_name_that_never_changes_hands() -> None:
    _, console = console_app(settings_with(oidc=oidc()))
    session, _ = console.sessions.begin(ADA)
    visit = Visit.__new__(Visit)
    visit.console, visit.session, visit.address = console, session, "10.0.0.1"
    await audit(visit, "redrive", "dead-letter/0/1", {"count": 1})
    assert isinstance(console.writer, ListWriter)
    ((_, key, value),) = console.writer.aside
    record = json.loads(value or b"")
    assert (key, record["user"]) == (b"oidc:ada", "oidc:ada")
    assert record["detail"] == {"role": "operator", "subject": "7", "count": 1}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"issuer": "http://id.example"}, "issuer"),
        ({"issuer": "ftp://id.example"}, "issuer"),
        ({"issuer": "https://"}, "issuer"),
        ({"issuer": "https://a:b@id.example"}, "issuer"),
        ({"issuer": "https://id.example?x=1"}, "issuer"),
        ({"issuer": "https://id.example/#x"}, "issuer"),
        ({"issuer": "https://id.example:x"}, "issuer"),
        ({"issuer": "http://127.0.0.1.evil.example"}, "issuer"),
        ({"issuer": ""}, "issuer is missing"),
        ({"public_url": ""}, "public_url"),
        ({"public_url": "http://console.example"}, "public_url"),
        ({"client_id": ""}, "client_id"),
        ({"scopes": ["profile"]}, "openid"),
        ({"scopes": ["openid profile"]}, "scopes"),
        ({"roles": {}}, "nobody could log in"),
        ({"roles": {"ops": "owner"}}, "operator"),
        ({"default_role": "everything"}, "none"),
        ({"role_claim": ""}, "role_claim"),
        ({"session_s": 1}, "60"),
    ],
)  # fmt: skip
def test_settings_that_are_not_safe_or_let_nobody_in_are_refused(given: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        oidc(**given)


def test_http_is_for_this_machine_alone() -> None:
    for host in ("127.0.0.1:8180", "localhost", "[::1]:8180"):
        assert oidc(issuer=f"http://{host}/realms/x", public_url=f"http://{host}").host == host
    assert (
        oidc(public_url="https://console.example/headrace/").callback
        == "https://console.example/headrace/oidc/callback"
    )


def test_its_secret_is_of_the_environment_alone_and_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "headrace.toml"
    lines = ["[console.oidc]", 'issuer = "https://id.example"', 'client_id = "c"', 'public_url = "https://c.example"']
    section = "\n".join([*lines, 'roles = { a = "admin" }', ""])
    path.write_text(section + 'client_secret = "from-the-file"\n')
    with pytest.raises(SettingsError, match="HEADRACE_CONSOLE__OIDC__CLIENT_SECRET") as caught:
        load(path)
    assert "from-the-file" not in str(caught.value)
    path.write_text(section)
    monkeypatch.setenv("HEADRACE_CONSOLE__OIDC__CLIENT_SECRET", "from-the-environment")
    settings = load(path)
    assert settings.console.oidc.client_secret.get_secret_value() == "from-the-environment"
    assert settings.console.oidc.roles == {"a": "admin"}
    assert "from-the-environment" not in repr(settings)


def test_a_console_that_lacks_the_secret_or_the_library_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match="HEADRACE_CONSOLE__OIDC__CLIENT_SECRET"):
        console_alone(settings_with(oidc=oidc(client_secret="")), "", print)
    monkeypatch.setitem(__import__("sys").modules, "authlib.integrations.starlette_client", None)
    with pytest.raises(SettingsError, match=r"headrace\[oidc\]"):
        IdentityProvider(oidc())
