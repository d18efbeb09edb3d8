"""Cookies of sessions: what they are called, when they are taken away, and what of their end outlasts a restart."""

import asyncio
import time

import pytest
from nicegui import Client

from app.web.console.context import Console, visit_of
from app.web.console.guard import Guard
from app.web.users import hash_password
from tests.helpers.asgi import ListWriter
from tests.helpers.console import add_user, browser, console_app, settings_with

PASSWORD = "a long enough password"
SECRET = "x" * 32


def with_secret() -> tuple[Guard, Console]:
    """A console whose cookies outlast a restart."""
    settings = settings_with()
    secret = type(settings.console.secret)(SECRET)
    return console_app(settings_with(secret=secret))


async def set_cookie(headers: dict[str, str], **gateway: str) -> str:
    """The header that a login's reply sets the session's cookie by."""
    app, console = console_app(settings_with(gateway, secret=type(settings_with().console.secret)(SECRET)))
    add_user(console, "ada", "viewer", await hash_password(PASSWORD))
    async with browser(app, console, **headers) as http:
        reply = await http.post("/login", data={"user": "ada", "password": PASSWORD})
    assert reply.status_code == 303
    return reply.headers["set-cookie"]


def parts(cookie: str) -> set[str]:
    return {part.strip() for part in cookie.split(";")}


async def test_while_users_are_not_read_a_cookie_stays_and_is_asked_for_again() -> None:
    before, console_before = with_secret()
    app, console = with_secret()
    console.users.current_at = float("-inf")
    users, console.book.entries = console.book.entries, {}
    async with browser(before, console_before, "operator") as http:
        http._transport = browser(app, console)._transport
        page = await http.get("/?x=1")
        assert (page.status_code, page.headers["retry-after"]) == (503, "2")
        assert "set-cookie" not in page.headers
        for path in ("/_nicegui_ws/socket.io/?EIO=4&transport=polling", "/_nicegui/x", "/login"):
            reply = await http.get(path)
            assert (reply.status_code, "set-cookie" in reply.headers) == (503, False)
        console.users.current_at = time.monotonic()
        console.book.entries = users
        assert (await http.get("/login")).status_code == 200
        del users["operator"]
        gone = await http.get("/?x=1")
        assert (gone.status_code, gone.headers["location"]) == (303, "/login?next=%2F%3Fx%3D1")
        assert {"Max-Age=0", "Path=/"} <= parts(gone.headers["set-cookie"])


@pytest.mark.parametrize("cookie", ["x", "a.b", "." * 10_000])
async def test_a_cookie_that_is_not_ours_goes_also_while_users_are_not_read(cookie: str) -> None:
    app, console = console_app()
    console.users.current_at = float("-inf")
    async with browser(app, console) as http:
        http.cookies["headrace_session"] = cookie
        reply = await http.get("/")
    assert reply.status_code == 303
    assert "Max-Age=0" in parts(reply.headers["set-cookie"])


async def test_a_session_that_has_run_out_or_ended_is_over_whether_users_are_read_or_not() -> None:
    _, console = console_app()
    console.users.current_at = float("-inf")
    sessions = console.sessions
    session, _ = sessions.begin(console.book.entries["viewer"])
    console.book.entries.clear()
    assert (sessions.role(session), sessions.over(session)) == (None, False)
    sessions.end(session)
    assert sessions.over(session)
    foreign = type(session)(id="b", user="(local)", begun_ms=session.begun_ms, process="another")
    assert sessions.over(foreign)


async def test_consoles_of_one_host_have_cookies_of_their_own() -> None:
    plain = await set_cookie({})
    assert plain.startswith("headrace_session=")
    port = await set_cookie({"host": "console:8081"})
    assert port.startswith("headrace_session_8081=")
    prefixed = await set_cookie({"host": "console:8081", "x-forwarded-prefix": "/a/b"})
    assert prefixed.startswith("headrace_session_8081+a+b=")
    assert "Path=/a/b" in parts(prefixed)
    odd = await set_cookie({"host": "console:x;y=z"})
    assert odd.startswith("headrace_session=")
    app, console = console_app()
    async with browser(app, console, "viewer") as http:
        assert (await http.get("/nothing", headers={"host": "console:8081"})).status_code == 303


async def test_cookies_are_secure_wherever_https_is_seen() -> None:
    assert "Secure" not in parts(await set_cookie({}))
    assert "Secure" in parts(await set_cookie({"host": "console", "origin": "https://console"}))
    assert "Secure" in parts(await set_cookie({}, host="0.0.0.0"))
    app, console = console_app()
    add_user(console, "ada", "viewer", await hash_password(PASSWORD))
    async with browser(app, console) as http:
        reply = await http.post("https://console/login", data={"user": "ada", "password": PASSWORD})
    assert "Secure" in parts(reply.headers["set-cookie"])


async def test_a_logout_is_written_until_kafka_has_it() -> None:
    _, console = console_app()
    console.writer = writer = ListWriter(console.settings)
    session, cookie = console.sessions.begin(console.book.entries["viewer"])
    writer.down = True
    await console.end_session(session)
    assert console.sessions.of(cookie) is None
    assert not await console.save_ends()
    writer.down = False
    assert await console.save_ends()
    assert await console.save_ends()
    assert writer.aside == [(console.settings.topic("console-users"), f"session:{session.id}".encode(), b"{}")]


async def test_records_of_old_sessions_go_until_the_first_that_can_t() -> None:
    _, console = console_app()
    asked: list[bytes] = []

    class Slow(ListWriter):
        async def send_aside(self, topic: str, key: bytes, value: bytes | None, partition: int = 0) -> None:
            asked.append(key)
            raise TimeoutError

    console.writer = Slow(console.settings)
    console.book.ended = dict.fromkeys(("a", "b", "c"), 0)
    assert await console.save_ends()
    assert asked == [b"session:a"]


async def test_pages_are_closed_while_kafka_takes_nothing() -> None:
    from app.web.console.app import shell

    app, console = console_app()

    class Hanging(ListWriter):
        async def send_aside(self, topic: str, key: bytes, value: bytes | None, partition: int = 0) -> None:
            await asyncio.Event().wait()

    console.writer = Hanging(console.settings)
    async with shell().router.lifespan_context(shell()):
        async with browser(app, console, "operator") as http:
            assert (await http.get("/settings")).status_code == 200
        client = list(Client.instances.values())[-1]
        console.book.ended["old"] = 0
        visit = visit_of(client)
        assert visit is not None
        loops = {loop.__name__: loop for loop in console.loops()}
        tasks = [asyncio.create_task(loops.pop(name)) for name in ("_keep_ends", "_sweep")]
        for loop in loops.values():
            loop.close()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not client.storage.get("closing")
        del console.book.entries["operator"]
        async with asyncio.timeout(10):
            while not client.storage.get("closing"):
                await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
