"""A real browser against a real `headrace web`. Pictures of what was seen are kept in build/pictures."""

import asyncio
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from app.broker.kafka import EmbeddedKafka
from app.web.users import ROLES, User, hash_password
from tests.helpers import topics
from tests.helpers.debian import needed, on_path
from tests.helpers.gateway import WebProcess
from tests.helpers.processes import wait_until

PICTURES = Path(__file__).parents[2] / "build" / "pictures"
CHROMIUM, DRIVER = "chromium", "chromedriver"
PASSWORD = "correct horse battery"
WAIT_S = 20.0
"""A page is there in a second on an idle machine; tests share theirs."""


@pytest.fixture(scope="session")
def chromium() -> str:
    """Debian's browser; installed where that is possible, and never left out in CI."""
    return needed(lambda: on_path(CHROMIUM, DRIVER), "chromium", "chromium-driver")


class Browser:
    """What tests do with a browser: they wait for what a person would wait for."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver, self.url = driver, ""

    def open(self, path: str) -> None:
        self.driver.get(self.url + path)

    def find(self, mark: str) -> WebElement:
        """The element with this data-mark, as soon as it is shown."""
        found: WebElement = self.until(lambda: self._shown(f'[data-mark="{mark}"]'), f"element {mark}")
        return found

    def css(self, selector: str) -> WebElement:
        """The first element that is shown, as soon as there is one."""
        found: WebElement = self.until(lambda: self._shown(selector), selector)
        return found

    def _shown(self, selector: str) -> WebElement | None:
        return next((e for e in self.driver.find_elements(By.CSS_SELECTOR, selector) if e.is_displayed()), None)

    def click(self, mark: str) -> None:
        """Clicks it; what an animation still covers is tried again."""

        def clicked() -> bool:
            self.find(mark).click()
            return True

        self.until(clicked, f"a click on {mark}")

    def fill(self, name: str, value: str) -> None:
        """Types into the field of this name."""
        self.css(f'[name="{name}"]').send_keys(value)

    def keys(self, *keys: str) -> None:
        """Presses keys, wherever the focus is."""
        for key in keys:
            webdriver.ActionChains(self.driver).send_keys(key).perform()

    @property
    def text(self) -> str:
        """All that is to be read."""
        return self.driver.find_element(By.TAG_NAME, "body").text

    @property
    def path(self) -> str:
        return self.driver.current_url.removeprefix(self.url)

    def see(self, *texts: str) -> None:
        """Waits until all of these are to be read."""
        self.until(lambda: all(text in self.text for text in texts), f"{texts}")

    def until(self, met: Callable[[], object], what: str) -> object:
        """Waits for a condition; a page that is being replaced while it is looked at is looked at again."""

        def tried() -> object:
            try:
                return met()
            except Exception as error:
                if type(error).__module__.startswith("selenium."):
                    return None
                raise

        try:
            return wait_until(tried, WAIT_S, what)
        except AssertionError as error:
            self.picture(f"failed-{uuid.uuid4().hex[:6]}")
            raise AssertionError(f"{error}; at {self.driver.current_url} it reads:\n{self.text[:2000]}") from None

    def picture(self, name: str) -> Path:
        """Keeps what is to be seen."""
        PICTURES.mkdir(parents=True, exist_ok=True)
        path = PICTURES / f"{name}.png"
        self.driver.save_screenshot(str(path))
        return path

    def log_in(self, user: str) -> None:
        """As one of the users that `console` has, from nothing."""
        self.driver.get(self.url + "/login")
        self.driver.delete_all_cookies()
        self.open("/login")
        self.fill("user", user)
        self.fill("password", PASSWORD + Keys.ENTER)
        self.find("user")

    def errors(self) -> list[str]:
        """What the browser complained about since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]


@pytest.fixture(scope="session")
def driver(chromium: str) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for word in (
        "headless=new",
        "no-sandbox",
        "disable-dev-shm-usage",
        "disable-gpu",
        "window-size=1400,900",
        "lang=en",
    ):
        options.add_argument(f"--{word}")
    options.set_capability("goog:loggingPrefs", {"browser": "SEVERE"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which(DRIVER)))
    yield driver
    driver.quit()


@pytest.fixture
def browser(driver: webdriver.Chrome, console: WebProcess) -> Iterator[Browser]:
    """The browser at the console; errors that pages show in its log fail the test."""
    found = Browser(driver)
    found.url = console.url
    found.errors()
    yield found
    errors = found.errors()
    while len(driver.window_handles) > 1:
        driver.switch_to.window(driver.window_handles[-1])
        driver.close()
    driver.switch_to.window(driver.window_handles[0])
    driver.get("about:blank")
    assert errors == []


async def users() -> list[tuple[bytes | None, bytes | None]]:
    """One user a role, called as it."""
    now, hashed = int(time.time() * 1000), await hash_password(PASSWORD)
    made = [User(name=role, role=role, password=hashed, created_ms=now, changed_ms=now) for role in ROLES]
    return [(user.name.encode(), msgspec.json.encode(user)) for user in made]


@pytest.fixture(scope="module")
def console_topics(kafka: EmbeddedKafka, request: pytest.FixtureRequest) -> str:
    """The prefix of a deployment with users; each file has its own, and finds nothing of the others in it."""
    name = request.module.__name__.rpartition("test_")[2]
    # `shop-` is to be read in pictures; the broker is this session's alone.
    prefix = "shop-" if name == "pages" else f"{name}-"

    async def make() -> None:
        await topics.create(kafka.bootstrap, f"{prefix}console-users", 1)
        await topics.produce(kafka.bootstrap, f"{prefix}console-users", await users())

    asyncio.run(make())
    return prefix


@pytest.fixture(scope="module")
def console_env() -> Callable[[str], dict[str, str]]:
    """More settings of the console, by its address; a file may have its own."""
    return lambda url: {}


@pytest.fixture(scope="module")
def console(
    kafka: EmbeddedKafka, chromium: str, console_topics: str, tmp_path_factory: pytest.TempPathFactory,
    console_env: Callable[[str], dict[str, str]],
) -> Iterator[WebProcess]:  # fmt: skip
    """`headrace web` with one user a role."""
    env = {"HEADRACE_KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap, "HEADRACE_KAFKA__TOPIC_PREFIX": console_topics}
    process = WebProcess(tmp_path_factory.mktemp("console"), env)
    process.env |= console_env(process.url)
    process.start()
    yield process
    process.kill()
