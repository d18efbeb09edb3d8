"""Walks the pages and routes of the console: nothing is there for who isn't logged in, or whose role is too small."""

import dataclasses
from collections.abc import AsyncIterator

import pytest
from nicegui import core
from pydantic import SecretStr
from starlette.routing import BaseRoute

from app.settings_web import OidcSettings
from app.web.console import guard
from app.web.console.app import shell
from app.web.console.context import Console
from app.web.console.guard import Guard
from app.web.console.oidc_login import OIDC_PATHS
from app.web.console.pagelist import PAGES, Page
from app.web.console.sessions import COOKIE
from app.web.console.texts import TEXTS
from app.web.users import ROLES, may
from tests.helpers.console import browser, console_app, settings_with


@pytest.fixture
async def served() -> AsyncIterator[tuple[Guard, Console]]:
    app, console = console_app()
    async with shell().router.lifespan_context(shell()):
        yield app, console


def paths(table: list[BaseRoute]) -> list[str]:
    """Every path that NiceGUI's application answers at, with something for its parameters."""
    found = []
    for route in table:
        path = str(getattr(route, "path", "/"))
        found.append(path.replace("{key:path}", "vue.js").replace("{path:path}", "x").replace("{key}", "x"))
    return found


OIDC = OidcSettings(
    issuer="http://127.0.0.1:1",
    client_id="x",
    client_secret=SecretStr("x"),
    public_url="https://c",
    default_role="viewer",
)
"""Nobody is at that address."""


@pytest.mark.parametrize("oidc", [OidcSettings(), OIDC], ids=["local users", "and a provider"])
async def test_without_a_session_every_route_leads_to_the_login_or_is_refused(oidc: OidcSettings) -> None:
    app, console = console_app(settings_with(oidc=oidc))
    asked = [
        *paths(list(core.app.routes)),
        *(() if oidc.issuer else OIDC_PATHS),
        "/oidc/",
        "/oidc/loginx",
        "/oidc/callback/x",
        "/_nicegui_ws/socket.io/?EIO=4&transport=polling",
        "/nothing",
        "/%2e%2e/etc",
    ]
    assert len(asked) > 10
    async with browser(app, console) as http:
        for path in asked:
            for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"):
                reply = await http.request(method, path)
                if reply.status_code == 303:
                    assert reply.headers["location"].startswith("/login"), path
                else:
                    assert reply.status_code == 401, (method, path)
                assert "no-store" in reply.headers["cache-control"]
                assert "frame-ancestors 'none'" in reply.headers["content-security-policy"]


async def test_the_ways_of_a_provider_give_no_session_by_themselves() -> None:
    app, console = console_app(settings_with(oidc=OIDC))
    async with browser(app, console) as http:
        for path in OIDC_PATHS:
            for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"):
                reply = await http.request(method, path)
                expected = (503 if path == OIDC_PATHS[0] else 400) if method == "GET" else 405
                assert reply.status_code == expected, (method, path)
                assert COOKIE + "=" not in reply.headers.get("set-cookie", "")
                assert "no-store" in reply.headers["cache-control"]
                assert "frame-ancestors 'none'" in reply.headers["content-security-policy"]
        console.users.current_at = float("-inf")
        for path in OIDC_PATHS:
            assert (await http.get(path)).status_code == 503


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
async def test_a_page_is_there_for_its_role_alone(page: Page, served: tuple[Guard, Console]) -> None:
    app, console = served
    for role in ROLES:
        async with browser(app, console, role) as http:
            reply = await http.get(page.path)
        assert reply.status_code == (200 if may(role, page.role) else 403), role
        assert ("nicegui" in reply.text) == may(role, page.role)


async def test_every_route_of_ours_is_a_page_of_the_list() -> None:
    shell()
    ours = {path for path in paths(list(core.app.routes)) if not path.startswith(("/_nicegui", "/favicon", "/static"))}
    assert ours == {page.path for page in PAGES}


async def test_a_cookie_of_somebody_else_s_making_is_none(served: tuple[Guard, Console]) -> None:
    app, console = served
    _, other = console_app()
    async with browser(app, other, "admin") as http:
        assert (await http.get("/")).status_code == 303
    async with browser(app, console, "admin") as http:
        cookie = http.cookies["headrace_session"]
        http.cookies["headrace_session"] = cookie[:-2] + ("A" if cookie[-2] != "A" else "B") + cookie[-1]
        assert (await http.get("/")).status_code == 303


async def test_other_origins_are_refused_at_the_socket_and_for_every_change(served: tuple[Guard, Console]) -> None:
    app, console = served
    for foreign in ({"origin": "http://evil"}, {"sec-fetch-site": "cross-site"}, {"origin": "null"}):
        async with browser(app, console, "admin", **foreign) as http:
            assert (await http.post("/login", data={"user": "admin"})).status_code == 403
            assert (await http.get("/_nicegui_ws/socket.io/?EIO=4&transport=polling")).status_code == 403
    async with browser(app, console, "admin", origin="http://console") as http:
        assert (await http.get("/_nicegui_ws/socket.io/?EIO=4&transport=polling")).status_code == 200


async def test_a_socket_for_the_page_of_another_session_is_refused(served: tuple[Guard, Console]) -> None:
    from nicegui import Client

    app, console = served
    async with browser(app, console, "admin") as http:
        await http.get("/")
        client_id = list(Client.instances)[-1]
        socket = f"/_nicegui_ws/socket.io/?EIO=4&transport=polling&client_id={client_id}"
        assert (await http.get(socket)).status_code == 200
    async with browser(app, console, "viewer") as http:
        assert (await http.get(socket)).status_code == 403
        assert (await http.post(f"/_nicegui/client/{client_id}/upload/1")).status_code == 403


def test_keys_and_names_of_pages_differ_and_each_has_a_title() -> None:
    for of in ("name", "path", "key"):
        assert len({getattr(page, of) for page in PAGES}) == len(PAGES)
    assert all(f"page_{page.name}" in texts for page in PAGES for texts in TEXTS.values())


def test_all_languages_have_the_same_texts_with_the_same_placeholders() -> None:
    import string

    fields = [
        {key: sorted(name for _, name, _, _ in string.Formatter().parse(said) if name) for key, said in texts.items()}
        for texts in TEXTS.values()
    ]
    assert all(each == fields[0] for each in fields)


async def test_a_page_for_admins_is_refused_to_all_others(
    served: tuple[Guard, Console], monkeypatch: pytest.MonkeyPatch
) -> None:
    app, console = served
    monkeypatch.setattr(guard, "page_at", lambda path: dataclasses.replace(PAGES[0], role="admin"))
    for role in ROLES:
        async with browser(app, console, role) as http:
            assert (await http.get("/")).status_code == (200 if role == "admin" else 403)
