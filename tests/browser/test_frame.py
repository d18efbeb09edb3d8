"""The frame of the console in a real browser: login, roles, language, keys, the end of a session."""

import asyncio
import json
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.by import By

from app.broker.kafka import EmbeddedKafka
from tests.browser.conftest import PASSWORD, Browser
from tests.helpers import topics
from tests.helpers.gateway import WebProcess
from tests.helpers.oidc import CLIENT, SECRET, Provider
from tests.helpers.processes import wait_until

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    """An identity provider of another site than the console's: localhost isn't 127.0.0.1."""
    provider, loop = Provider(), asyncio.new_event_loop()
    loop.run_until_complete(provider.__aenter__())
    provider.issuer = provider.issuer.replace("127.0.0.1", "localhost")
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield provider
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.run_until_complete(provider.stop())
    loop.close()


@pytest.fixture(scope="module")
def console_env(provider: Provider) -> Callable[[str], dict[str, str]]:
    def env(url: str) -> dict[str, str]:
        provider.callback = f"{url}/oidc/callback"
        given = {
            "issuer": provider.issuer, "client_id": CLIENT, "client_secret": SECRET, "public_url": url,
            "roles": json.dumps({"ops": "operator"}),
        }  # fmt: skip
        return {f"HEADRACE_CONSOLE__OIDC__{name.upper()}": value for name, value in given.items()}

    return env


def test_by_an_identity_provider_one_comes_in_where_one_wanted_and_logs_out(browser: Browser) -> None:
    browser.open("/login")
    browser.driver.delete_all_cookies()
    browser.open("/?x=1")
    browser.picture("login-provider")
    browser.css("a.other").click()
    browser.find("user")
    assert browser.path == "/?x=1"
    browser.click("user")
    browser.see("oidc:ada · operator")
    browser.click("log-out")
    browser.until(lambda: browser.path.startswith("/login"), "the login")
    browser.open("/settings")
    assert browser.path == "/login?next=%2Fsettings"


def test_who_logs_in_gets_to_the_page_that_was_asked_for(browser: Browser) -> None:
    browser.open("/?x=1")
    browser.driver.delete_all_cookies()
    browser.open("/?x=1")
    assert browser.path == "/login?next=%2F%3Fx%3D1"
    browser.fill("user", "viewer")
    browser.fill("password", "not the password\n")
    browser.see("User or password is wrong.")
    browser.errors()  # the 401 is in the log
    browser.open("/login?next=%2F%3Fx%3D1")
    browser.fill("user", "viewer")
    browser.fill("password", PASSWORD + "\n")
    browser.find("user")
    assert browser.path == "/?x=1"
    browser.picture("overview-empty")


def test_language_theme_and_keys(browser: Browser) -> None:
    browser.log_in("viewer")
    browser.see("Overview")
    browser.click("language")
    browser.see("总览")
    assert browser.driver.find_element(By.TAG_NAME, "html").get_attribute("lang") == "zh-CN"
    browser.click("theme")
    browser.until(lambda: not browser.driver.find_elements(By.CSS_SELECTOR, "body.body--dark"), "a light page")
    browser.click("theme")
    browser.css("body.body--dark")
    browser.open("/nothing-here")
    browser.errors()  # a 404 is in the log
    browser.open("/?x=1")
    browser.find("user")
    browser.keys("g", "o")
    browser.until(lambda: browser.path == "/", "g o leads to the overview")


def test_on_a_narrow_screen_the_navigation_waits_behind_a_button(browser: Browser) -> None:
    browser.log_in("viewer")
    try:
        browser.driver.set_window_size(500, 800)
        browser.open("/settings")
        browser.see("gateway.port")
        assert "Overview" not in browser.text
        width = browser.driver.execute_script("return document.documentElement.scrollWidth - window.innerWidth")
        assert width <= 0
        browser.click("menu")
        browser.see("Overview")
        browser.picture("narrow")
    finally:
        browser.driver.set_window_size(1400, 900)


def test_logging_out_ends_the_session_in_all_its_windows(browser: Browser) -> None:
    browser.log_in("viewer")
    cookies = browser.driver.get_cookies()
    browser.driver.switch_to.new_window("tab")
    browser.open("/")
    browser.find("user")
    browser.click("user")
    browser.click("log-out")
    browser.until(lambda: browser.path.startswith("/login"), "the login in this window")
    browser.driver.switch_to.window(browser.driver.window_handles[0])
    browser.until(lambda: browser.path.startswith("/login"), "the login in the other window")
    browser.driver.delete_all_cookies()
    for cookie in cookies:
        browser.driver.add_cookie(cookie)
    browser.open("/")
    assert browser.path.startswith("/login")


def test_the_link_in_the_terminal_lets_one_browser_in_while_there_are_no_users(
    driver: Any, kafka: EmbeddedKafka, tmp_path: Path, prefix: str
) -> None:
    env = {"HEADRACE_KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap, "HEADRACE_KAFKA__TOPIC_PREFIX": prefix}
    process = WebProcess(tmp_path, env).start()
    try:
        browser = Browser(driver)
        browser.url = process.url
        link = wait_until(lambda: re.search(r"\S+/\?token=\S+", process.log.read_text()), 20, "the link")[0]
        driver.get(link)
        browser.find("user").click()
        browser.see("local · admin")
        assert "token" not in driver.current_url
        driver.delete_all_cookies()
        driver.get(link)
        browser.see("This link was used already.")
        process.command("users", "add", "ada", "--password-stdin", given="a long password\n")
        audited = asyncio.run(topics.read(kafka.bootstrap, f"{prefix}console-audit", 1))
        assert [record.key for record in audited] == [b"(local)"]
    finally:
        process.kill()
        driver.get("about:blank")
