"""Login by an identity provider, against a real one over HTTP: who gets in, and how; and what if it fails."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from app.web.console.app import _show_link
from app.web.console.context import Console
from app.web.console.sessions import COOKIE
from app.web.users import hash_password
from tests.helpers.console import add_user
from tests.helpers.oidc import SECRET, Provider
from tests.helpers.oidc_login import (
    PUBLIC,
    at,
    at_provider,
    audited,
    console_of,
    cookies,
    gone_there,
    hurry,
    log_in,
    session_of,
)

PASSWORD = "a long enough password"


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    async with Provider() as running:
        running.callback = f"{PUBLIC}/oidc/callback"
        yield running


async def test_who_the_provider_knows_gets_in_with_the_role_of_their_group(
    provider: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    app, console = console_of(provider)
    async with at(app) as http:
        begun = await http.get("/oidc/login", params={"next": "/event?id=a%2Fb"})
        there = parse_qs(urlsplit(begun.headers["location"]).query)
        assert there["redirect_uri"] == [f"{PUBLIC}/oidc/callback"]
        assert (there["code_challenge_method"], there["response_type"]) == (["S256"], ["code"])
        ((name, parts),) = cookies(begun)
        assert name == "headrace_oidc_8080"
        assert {"HttpOnly", "SameSite=Lax", "Path=/oidc/", "Max-Age=600"} <= parts
        back = await at_provider(begun.headers["location"])
        reply = await http.get(back)
        assert (reply.status_code, reply.headers["location"]) == (303, "/event?id=a%2Fb")
        given = dict(cookies(reply))
        assert "Max-Age=0" in given["headrace_oidc_8080"]
        assert {"HttpOnly", "SameSite=Lax", "Path=/"} <= given[f"{COOKIE}_8080"]
    session = session_of(console, reply)
    assert session is not None
    assert (session.user, console.sessions.role(session)) == ("oidc:ada", "operator")
    (record,) = audited(console)
    assert (record["user"], record["action"]) == ("oidc:ada", "login")
    assert record["detail"] == {"role": "operator", "subject": "248289761001"}
    said = " ".join(each.getMessage() for each in caplog.records if each.name not in ("httpx", "aiohttp.access"))
    assert "httpx2" in {each.name for each in caplog.records}
    for secret in (SECRET, parse_qs(urlsplit(back).query)["code"][0], there["nonce"][0], there["state"][0]):
        assert secret not in said


async def test_each_login_begins_a_session_of_its_own(provider: Provider) -> None:
    app, console = console_of(provider)
    async with at(app) as http:
        http.cookies[f"{COOKIE}_8080"] = console.sessions.begin(console.book.entries["viewer"])[1]
        first, second = session_of(console, await log_in(http)), session_of(console, await log_in(http))
    assert first is not None
    assert second is not None
    assert first.id != second.id
    assert (first.user, second.user) == ("oidc:ada", "oidc:ada")


async def test_a_login_that_was_begun_elsewhere_or_not_at_all_is_none(provider: Provider) -> None:
    app, console = console_of(provider)
    async with at(app) as http, at(app) as other:
        back = await gone_there(http)
        await gone_there(other)
        wrong = back.replace("state=", "state=x")
        for reply in (
            await other.get(back),
            await http.get(wrong),
            await http.get("/oidc/callback"),
            await http.get("/oidc/callback?code=x&state="),
        ):
            assert (reply.status_code, session_of(console, reply)) == (400, None)
        cookie = http.cookies
        assert not cookie.get("headrace_oidc_8080")
    assert "/token" not in provider.asked


async def test_a_cookie_of_somebody_else_s_making_begins_no_login(provider: Provider) -> None:
    app, console = console_of(provider)
    foreign, _ = console_of(provider)
    async with at(app) as http, at(foreign) as elsewhere:
        back = await gone_there(elsewhere)
        for value in (elsewhere.cookies["headrace_oidc_8080"], "x", "a.b.c", console.sessions.begin(None)[1]):
            reply = await http.get(back, headers={"cookie": f"headrace_oidc_8080={value}"})
            assert (reply.status_code, session_of(console, reply)) == (400, None)
    assert "/token" not in provider.asked


async def test_a_callback_counts_once_even_if_the_provider_would_take_its_code_again(provider: Provider) -> None:
    provider.codes_last = True
    app, console = console_of(provider)
    async with at(app) as http:
        back = await gone_there(http)
        kept = http.cookies["headrace_oidc_8080"]
        assert session_of(console, await http.get(back)) is not None
        again = await http.get(back)
        put_back = await http.get(back, headers={"cookie": f"headrace_oidc_8080={kept}"})
    assert (again.status_code, put_back.status_code) == (400, 400)
    assert (session_of(console, again), session_of(console, put_back)) == (None, None)
    assert provider.asked.count("/token") == 1


async def test_a_login_that_took_too_long_is_over(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    app, console = console_of(provider)
    async with at(app) as http:
        back = await gone_there(http)
        monkeypatch.setattr("app.web.console.oidc_login.LOGIN_S", -1)
        reply = await http.get(back)
    assert (reply.status_code, session_of(console, reply)) == (400, None)


def says_so(reply: httpx.Response, status: int, console: Console) -> None:
    """The page names the provider, and shows the way in for local users."""
    assert (reply.status_code, session_of(console, reply)) == (status, None)
    assert console.settings.console.oidc.host in reply.text
    assert 'name="password"' in reply.text
    assert reply.headers.get("retry-after") == ("2" if status == 503 else None)


async def test_a_provider_that_is_down_leaves_local_users_their_login(provider: Provider) -> None:
    app, console = console_of(provider)
    add_user(console, "eve", "viewer", await hash_password(PASSWORD))
    await provider.stop()
    async with at(app) as http:
        says_so(await http.get("/oidc/login"), 503, console)
        local = await http.post("/login", data={"user": "eve", "password": PASSWORD})
    session = session_of(console, local)
    assert session is not None
    assert session.user == "eve"


async def test_an_answer_that_never_ends_is_not_waited_for(provider: Provider) -> None:
    app, console = console_of(provider)
    hurry(app)
    provider.drips = True
    async with at(app) as http:
        says_so(await http.get("/oidc/login"), 503, console)


@pytest.mark.parametrize("after", [False, True], ids=["at-the-way-there", "at-the-way-back"])
@pytest.mark.parametrize(("status", "silent", "shown"), [(200, True, 503), (500, False, 503), (404, False, 502)])
async def test_a_provider_that_hangs_or_is_broken_is_waited_for_no_longer_than_said(
    provider: Provider, after: bool, status: int, silent: bool, shown: int
) -> None:
    app, console = console_of(provider)
    async with at(app) as http:
        path = await gone_there(http) if after else "/oidc/login"
        if silent:
            hurry(app)
        provider.status, provider.silent = status, silent
        says_so(await http.get(path), shown, console)


async def test_logins_that_wait_for_the_provider_are_bounded(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.web.console.oidc_login.AT_ONCE", 1)
    app, console = console_of(provider)
    provider.silent = True
    async with at(app) as http, at(app) as other:
        hangs = asyncio.create_task(http.get("/oidc/login"))
        while not provider.asked:
            await asyncio.sleep(0.01)
        busy = await other.get("/oidc/login")
        assert (busy.status_code, busy.headers["retry-after"], session_of(console, busy)) == (429, "1", None)
        hangs.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await hangs
        provider.silent = False
        assert session_of(console, await log_in(other)) is not None


async def test_callbacks_that_are_remembered_are_bounded(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.web.console.oidc_login.MOST_USED", 2)
    app, _ = console_of(provider)
    assert app._oidc is not None
    assert [app._oidc._first(state) for state in "abbcc"] == [True, True, False, True, False]
    assert list(app._oidc._used) == ["b", "c"]


async def test_what_the_provider_says_of_an_error_is_shown_as_text_to_who_was_there(provider: Provider) -> None:
    app, console = console_of(provider)
    provider.error = {"error": "access_denied", "error_description": "<script>alert(1)</script>\u202e" + "x" * 500}
    async with at(app) as http:
        back = await gone_there(http)
        reply = await http.get(back)
        assert (reply.status_code, session_of(console, reply)) == (403, None)
        assert "access_denied &lt;script&gt;alert(1)&lt;/script&gt;x" in reply.text
        assert "<script" not in reply.text
        assert "\u202e" not in reply.text
        assert len(reply.text) < 3000
        forged = await http.get("/oidc/callback?error=Call&error_description=0800-EVIL&state=x")
    assert (forged.status_code, "0800-EVIL" in forged.text) == (400, False)
    assert "/token" not in provider.asked


@pytest.mark.parametrize(
    "target", ["//evil", "/\\evil", "https://evil", "/oidc/login", "/login", "/\t/evil", "/" + "a" * 3000]
)
async def test_after_the_login_one_stays_at_this_console(provider: Provider, target: str) -> None:
    app, _ = console_of(provider)
    async with at(app) as http:
        reply = await log_in(http, next=target)
    assert (reply.status_code, reply.headers["location"]) == (303, "/")


async def test_a_long_way_back_fits_into_the_cookie(provider: Provider) -> None:
    app, _ = console_of(provider)
    target = "/event?id=" + "".join(chr(33 + n % 90) for n in range(990)).replace("\\", "x").replace("#", "y")
    async with at(app) as http:
        begun = await http.get("/oidc/login", params={"next": target})
        assert len(begun.headers["set-cookie"]) < 4000
        assert (await http.get(await at_provider(begun.headers["location"]))).status_code == 303


async def test_where_the_provider_sends_back_to_is_never_what_a_request_says(provider: Provider) -> None:
    app, _ = console_of(provider)
    headers = {"host": "evil", "x-forwarded-host": "evil", "x-forwarded-proto": "https", "x-forwarded-prefix": "/evil"}
    async with at(app) as http:
        reply = await http.get("/oidc/login", headers=headers)
        shown = await http.get("/login?next=/event", headers=headers)
    assert parse_qs(urlsplit(reply.headers["location"]).query)["redirect_uri"] == [f"{PUBLIC}/oidc/callback"]
    assert f'href="{PUBLIC}/oidc/login?next=%2Fevent"' in shown.text


async def test_who_has_no_role_is_refused_by_name_and_it_is_audited(provider: Provider) -> None:
    app, console = console_of(provider)
    provider.claims = {"sub": "7", "preferred_username": "<b>eve</b>", "groups": ["guests"]}
    async with at(app) as http:
        reply = await log_in(http)
    assert (reply.status_code, session_of(console, reply)) == (403, None)
    assert "&lt;b&gt;eve&lt;/b&gt; has no role" in reply.text
    (record,) = audited(console)
    assert (record["user"], record["action"], record["target"]) == ("(nobody)", "login-refused", "oidc:<b>eve</b>")
    assert record["detail"] == {"why": "no role", "subject": "7"}


@pytest.mark.parametrize("why", ["no role", "a code that isn't taken"])
async def test_an_address_whose_logins_fail_has_to_wait_and_others_do_not(provider: Provider, why: str) -> None:
    app, console = console_of(provider, client_secret="wrong" if why != "no role" else SECRET)
    if why == "no role":
        provider.claims |= {"groups": []}
    async with at(app) as http:
        for _ in range(console.settings.console.login_failures):
            assert (await log_in(http)).status_code in (403, 502)
        back, asked = await gone_there(http), provider.asked.count("/token")
        reply = await http.get(back)
        assert (reply.status_code, session_of(console, reply)) == (429, None)
        assert 0 < int(reply.headers["retry-after"]) <= 30
    assert provider.asked.count("/token") == asked
    assert console.oidc_attempts.wait_s("10.0.0.1", "10.0.0.1") == 0
    assert console.attempts.wait_s("", "127.0.0.1") == 0  # passwords are counted apart


async def test_a_provider_that_is_down_makes_nobody_wait(provider: Provider) -> None:
    app, console = console_of(provider)
    async with at(app) as http:
        for _ in range(console.settings.console.login_failures + 1):
            provider.status = 200
            back = await gone_there(http)
            provider.status = 500
            assert (await http.get(back)).status_code == 503
        provider.status = 200
        assert session_of(console, await log_in(http)) is not None


async def test_logins_that_can_t_begin_make_nobody_wait(provider: Provider) -> None:
    app, console = console_of(provider)
    async with at(app) as http:
        issuer, provider.issuer = provider.issuer, "https://another.example"
        for _ in range(console.settings.console.login_failures + 1):
            assert (await http.get("/oidc/login")).status_code == 502
        provider.issuer = issuer
        assert session_of(console, await log_in(http)) is not None


async def test_where_the_provider_lets_people_in_no_link_does(provider: Provider) -> None:
    app, console = console_of(provider)
    console.book.entries.clear()
    said: list[str] = []
    await _show_link(console, said.append)
    assert said == [f"console at {console.url}"]
    async with at(app) as http:
        reply = await http.get("/", params={"token": console.link_token})
    assert (reply.status_code, session_of(console, reply)) == (401, None)


async def test_a_name_of_the_provider_s_is_never_a_local_user_s(provider: Provider) -> None:
    app, console = console_of(provider)
    provider.claims |= {"preferred_username": "admin"}
    async with at(app) as http:
        session = session_of(console, await log_in(http))
    assert session is not None
    assert (session.user, console.sessions.role(session)) == ("oidc:admin", "operator")
    del console.book.entries["admin"]
    assert console.sessions.role(session) == "operator"


async def test_the_client_s_secret_goes_the_way_that_the_provider_takes(provider: Provider) -> None:
    provider.says = {"token_endpoint_auth_methods_supported": ["client_secret_post"]}
    app, console = console_of(provider)
    async with at(app) as http:
        assert session_of(console, await log_in(http)) is not None
    app, console = console_of(provider, client_secret="wrong")
    async with at(app) as http:
        assert (await log_in(http)).status_code == 502
