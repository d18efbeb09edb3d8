"""Logins, sessions and their end, and who has to wait."""

import json
import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from aiokafka.structs import ConsumerRecord
from hypothesis import given
from hypothesis import strategies as st

from app.errors import SettingsError
from app.web.console.app import console_alone
from app.web.console.attempts import MOST, Attempts
from app.web.console.login import safe_next
from app.web.console.sessions import Sessions
from app.web.users import ROLES, UserBook, hash_password, may, verify_password
from tests.helpers.asgi import ListWriter
from tests.helpers.console import add_user, browser, console_app, settings_with

PASSWORD = "a long enough password"


def record(key: bytes, value: bytes | None, timestamp: int = 0) -> Any:
    """A record of `console-users`."""
    return ConsumerRecord("console-users", 0, 0, timestamp, 0, key, value, None, len(key), len(value or b""), ())


async def test_a_right_password_gives_a_new_session_and_a_wrong_one_nothing() -> None:
    app, console = console_app()
    add_user(console, "ada", "operator", await hash_password(PASSWORD))
    async with browser(app, console, "viewer") as http:
        before = http.cookies["headrace_session"]
        wrong = await http.post("/login", data={"user": "ada", "password": PASSWORD + "x"})
        unknown = await http.post("/login", data={"user": "bob", "password": PASSWORD})
        assert (wrong.status_code, unknown.status_code) == (401, 401)
        assert "set-cookie" not in wrong.headers
        right = await http.post("/login", data={"user": "ada", "password": PASSWORD, "next": "/?a=b"})
    assert (right.status_code, right.headers["location"]) == (303, "/?a=b")
    cookie = right.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=Lax", "Path=/"} <= {part.strip() for part in cookie.split(";")}
    session = console.sessions.of(cookie.split(";")[0].partition("=")[2])
    assert session is not None
    assert (session.user, console.sessions.role(session), before in cookie) == ("ada", "operator", False)


async def test_too_many_failures_have_to_wait_even_with_the_right_password() -> None:
    app, console = console_app(settings_with(login_failures=2))
    add_user(console, "ada", "admin", await hash_password(PASSWORD))
    async with browser(app, console) as http:
        for _ in range(2):
            await http.post("/login", data={"user": "ada", "password": "wrong"})
        reply = await http.post("/login", data={"user": "ada", "password": PASSWORD})
    assert reply.status_code == 429
    assert 0 < int(reply.headers["retry-after"]) <= 30


async def test_forms_that_are_none_or_too_large_are_refused() -> None:
    app, console = console_app()
    async with browser(app, console) as http:
        for body in (b"user=" + b"x" * 9000, b"\xff\xfe", b"&".join(b"a=1" for _ in range(50)), b""):
            assert (await http.post("/login", content=body)).status_code in (400, 401)


@given(
    st.text(max_size=40) | st.sampled_from(["//evil", "/\\evil", "https://evil", "/\t/evil", "/a?b=//c", "/login?x"])
)
def test_after_the_login_one_stays_at_this_console(target: str) -> None:
    led = urlsplit(safe_next(target))
    assert (led.scheme, led.netloc) == ("", "")
    assert led.path.startswith("/")
    assert not led.path.startswith("//")


async def test_where_one_wanted_to_go_is_kept_over_the_login() -> None:
    app, console = console_app()
    async with browser(app, console) as http:
        reply = await http.get("/event?id=a%2Fb%20%F0%9F%8F%81&x=1")
        kept = parse_qs(urlsplit(reply.headers["location"]).query)["next"][0]
        assert kept == "/event?id=a%2Fb%20%F0%9F%8F%81&x=1"
        prefixed = await http.get("/event", headers={"x-forwarded-prefix": "/console"})
        assert prefixed.headers["location"].startswith("/console/login?")
        forged = await http.get("/event", headers={"x-forwarded-prefix": "//evil"})
        assert forged.headers["location"].startswith("/login?")


async def test_the_link_works_once_on_loopback_and_without_users() -> None:
    app, console = console_app()
    link = f"/?token={console.link_token}"
    async with browser(app, console) as http:
        assert (await http.get(link)).status_code == 401  # there are users
        console.book.entries.clear()
        assert (await http.get("/?token=x")).status_code == 401
        reply = await http.get(link)
        assert (reply.status_code, reply.headers["location"]) == (303, "/")
    async with browser(app, console) as http:
        assert (await http.get(link)).status_code == 401
    session = console.sessions.of(reply.headers["set-cookie"].split(";")[0].partition("=")[2])
    assert session is not None
    assert console.sessions.may(session, "admin")
    _, elsewhere = console_app(settings_with({"host": "0.0.0.0"}))
    elsewhere.book.entries.clear()
    assert not elsewhere.link_open


def test_others_reach_it_only_with_a_secret() -> None:
    with pytest.raises(SettingsError, match="HEADRACE_CONSOLE__SECRET"):
        console_alone(settings_with({"host": "0.0.0.0"}), "", lambda line: None)


def test_a_session_ends_with_its_time_its_logout_and_every_change_of_its_user() -> None:
    book = UserBook()
    sessions = Sessions(settings_with(session_s=3600.0).console, book, lambda: True, lambda: True)
    book.apply(record(b"ada", b'{"name":"ada","role":"viewer","password":"x","created_ms":1,"changed_ms":1}'))
    ada = book.entries["ada"]
    session, cookie = sessions.begin(ada)
    assert (sessions.of(cookie), sessions.role(session)) == (session, "viewer")
    book.entries["ada"] = ada.changed(role="admin")
    assert sessions.of(cookie) is None
    book.entries["ada"] = ada
    key, value = sessions.end(session)
    assert sessions.role(session) is None
    again = UserBook()
    again.entries["ada"] = ada
    again.apply(record(key.encode(), value, timestamp=int(time.time() * 1000)))
    assert Sessions(settings_with().console, again, lambda: True, lambda: True).role(session) is None
    old = type(session)(id="b", user="ada", begun_ms=int(time.time() * 1000) - 3_601_000, changed_ms=1)
    assert sessions.role(old) is None
    book.apply(record(b"ada", None))
    assert sessions.role(sessions.begin(ada)[0]) is None


def test_a_damaged_record_takes_its_user_away_and_a_foreign_key_gives_none() -> None:
    book = UserBook()
    good = b'{"name":"ada","role":"admin","password":"x","created_ms":1,"changed_ms":1}'
    book.apply(record(b"ada", good))
    book.apply(record(b"bob", good))
    assert set(book.entries) == {"ada"}
    book.apply(record(b"ada", good.replace(b"admin", b"owner")))
    assert book.entries == {}


def test_while_users_may_have_changed_unseen_nobody_may_do_more_than_look() -> None:
    _, console = console_app()
    session, _ = console.sessions.begin(console.book.entries["admin"])
    assert console.sessions.may(session, "operator")
    console.users.current_at = float("-inf")
    assert console.sessions.may(session, "viewer")
    assert not console.sessions.may(session, "operator")


def test_each_role_may_do_its_own_and_look() -> None:
    allowed = {(role, needed) for role in ROLES for needed in ROLES if may(role, needed)}
    own = {(role, role) for role in ROLES}
    assert allowed == own | {(role, "viewer") for role in ROLES} | {("admin", role) for role in ROLES}


async def test_nobody_has_no_password() -> None:
    assert not await verify_password(None, "")


def test_waits_double_up_to_a_quarter_of_an_hour_and_end() -> None:
    now = 0.0
    attempts = Attempts(free=3, wait_s=10, clock=lambda: now)
    waits = []
    for _ in range(12):
        attempts.failed("ada", "1.1.1.1")
        waits.append(attempts.wait_s("ada", "1.1.1.1"))
    assert waits[:6] == [0, 0, 10, 20, 40, 80]
    assert max(waits) == 900
    assert attempts.wait_s("bob", "1.1.1.1") == 900  # the address has to wait for other names as well
    assert attempts.wait_s("bob", "2.2.2.2") == 0
    now = 901.0
    assert attempts.wait_s("ada", "1.1.1.1") == 0
    attempts.failed("ada", "3.3.3.3")
    attempts.succeeded("ada", "3.3.3.3")
    assert attempts.wait_s("ada", "3.3.3.3") == 0


def test_guesses_from_elsewhere_make_a_name_wait_shortly_and_not_where_it_has_logged_in() -> None:
    now = 0.0
    attempts = Attempts(free=1, wait_s=10, clock=lambda: now)
    attempts.failed("ada", "home")
    attempts.succeeded("ada", "home")
    for n in range(20):
        attempts.failed("ada", f"10.0.0.{n}")
    assert attempts.wait_s("ada", "a new place") == 30
    assert attempts.wait_s("ada", "home") == 0
    for _ in range(20):
        attempts.failed("ada", "10.0.0.1")
    assert attempts.wait_s("ada", "10.0.0.1") == 900
    now = 31.0
    assert attempts.wait_s("ada", "a new place") == 0
    assert attempts.wait_s("ada", "10.0.0.1") > 800


def test_ipv6_addresses_of_one_network_count_together() -> None:
    attempts = Attempts(free=2, wait_s=10)
    attempts.failed("ada", "2001:db8:0:1::1")
    attempts.failed("bob", "2001:db8:0:1:ffff::2")
    assert attempts.wait_s("eve", "2001:db8:0:1:abcd::3") > 0
    assert attempts.wait_s("eve", "2001:db8:0:2::1") == 0
    attempts.failed("ada", "::ffff:10.0.0.1")
    attempts.failed("bob", "10.0.0.1")
    assert attempts.wait_s("eve", "10.0.0.1") > 0


def test_names_and_addresses_without_number_stay_bounded_and_end_no_wait() -> None:
    attempts = Attempts(free=2, wait_s=900)
    for _ in range(2):
        attempts.failed("ada", "1.1.1.1")
    for n in range(MOST):
        attempts.failed(f"user{n}" * 100, f"address{n}")
    assert len(attempts._kept) <= MOST
    assert attempts.wait_s("bob", "1.1.1.1") > 800
    everyone_waits = Attempts(free=1, wait_s=900)
    for n in range(MOST):
        everyone_waits.failed(f"user{n}", f"address{n}")
        everyone_waits.succeeded(f"other{n}", f"elsewhere{n}")
    assert len(everyone_waits._kept) <= MOST
    assert len(everyone_waits._known) <= MOST


async def test_what_other_pages_make_a_browser_ask_for_neither_guesses_nor_locks() -> None:
    app, console = console_app(settings_with(login_failures=2))
    console.book.entries.clear()
    link = f"/?token={console.link_token}"
    async with browser(app, console) as http:
        for site in ("cross-site", "same-site"):
            reply = await http.get(link, headers={"sec-fetch-site": site})
            assert (reply.status_code, "set-cookie" in reply.headers) == (403, False)
        for _ in range(5):
            assert (await http.get("/?token=x", headers={"sec-fetch-site": "cross-site"})).status_code == 403
        assert (await http.head(link)).status_code == 401
        for _ in range(2):
            assert (await http.get("/?token=x")).status_code == 401
        locked = await http.get(link, headers={"sec-fetch-site": "none"})
        assert (locked.status_code, "retry-after" in locked.headers) == (429, True)
    assert console.attempts.wait_s("", "127.0.0.1") == 0  # who guesses links keeps nobody from a password
    add_user(console, "ada", "admin")
    async with browser(app, console) as http:
        for _ in range(20):
            assert (await http.get("/?token=x")).status_code == 401
    assert not console.attempts._kept


async def test_who_is_logged_in_already_goes_on_without_the_token() -> None:
    app, console = console_app()
    async with browser(app, console, "viewer") as http:
        reply = await http.get("/?token=x")
    assert (reply.status_code, reply.headers["location"], "set-cookie" in reply.headers) == (303, "/", False)


async def test_a_wait_is_audited() -> None:
    app, console = console_app(settings_with(login_failures=2))
    console.writer = writer = ListWriter(console.settings)
    async with browser(app, console) as http:
        for _ in range(3):
            await http.post("/login", data={"user": "ada", "password": "wrong"})
    ((_, key, value),) = writer.aside
    record = json.loads(value or b"")
    assert (key, record["action"], record["target"]) == (b"(nobody)", "login-locked", "ada")
    assert record["address"] == "127.0.0.1"
