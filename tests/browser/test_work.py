"""Dead letters, reviews, events and tables in a real browser, with a real worker behind them."""

import asyncio
import functools
import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.browser.conftest import Browser
from tests.helpers import topics
from tests.helpers.gateway import WebProcess, an_event
from tests.helpers.processes import Worker, wait_until
from tests.helpers.windows import Given, recompute

pytestmark = pytest.mark.integration

CONFIG = """
[llm]
base_url = "http://127.0.0.1:9/v1"

[light]
enabled = false

[ingest]
max_event_bytes = 2000

[windows]
idle_s = 0

[[marks]]
name = "private"
when = [{ field = "source_system", op = "equals", value = "hospital" }]

[[aggregates]]
name = "minute"
size_s = 60
hop_s = 30
grace_s = 5

[[tasks]]
name = "mood"
instruction = "Say how the writer feels."
categories = [{ id = "happy", description = "Content." }, { id = "unhappy", description = "Complains." }]

[[tasks.rules]]
name = "orders"
when = [{ field = "event_type", op = "equals", value = "order.created" }]
category = "happy"
"""

SCRIPT = "<script>document.title = 'pwned'</script><img src=x onerror=\"document.title = 'pwned'\">"


@pytest.fixture(scope="module")
def worker(console: WebProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """One worker of the console's deployment, in which reviews come at once: no provider may see marked events."""
    folder = tmp_path_factory.mktemp("work")
    config = folder / "headrace.toml"
    config.write_text(CONFIG)
    ours = {name: value for name, value in console.env.items() if name.startswith("HEADRACE_KAFKA__")}
    worker = Worker(folder / "worker", {**ours, "HEADRACE_CONFIG": str(config), "HEADRACE_RESULTS__KEEP_S": "0"})
    worker.start()
    worker.wait_ready()
    yield worker
    worker.kill()


@functools.cache
def token(console: WebProcess) -> str:
    return asyncio.run(console.key("produce"))


def send(console: WebProcess, *events: dict[str, Any]) -> None:
    """Over HTTP, as a producer would."""
    headers = {"Authorization": f"Bearer {token(console)}"}
    reply = httpx.post(f"{console.url}/v1/events", json=list(events), headers=headers, timeout=30, trust_env=False)
    assert reply.status_code == 202, reply.text


def records(console: WebProcess, topic: str, partitions: int = 4) -> list[Any]:
    env = console.env
    name = env["HEADRACE_KAFKA__TOPIC_PREFIX"] + topic
    return asyncio.run(topics.read(env["HEADRACE_KAFKA__BOOTSTRAP_SERVERS"], name, partitions))


def audited(console: WebProcess, user: str) -> list[tuple[str, str]]:
    """What somebody did, in order."""
    found = [json.loads(record.value) for record in records(console, "console-audit", 1) if record.key == user.encode()]
    return [(each["action"], each["target"]) for each in found if each["action"] not in ("login", "logout")]


def rows(browser: Browser, mark: str) -> list[Any]:
    return browser.driver.find_elements(By.CSS_SELECTOR, f'[data-mark="{mark}"] tbody tr')


def test_a_broken_event_is_found_edited_sent_back_and_has_a_result(
    browser: Browser, console: WebProcess, worker: Worker
) -> None:
    odd = "bad/1 😀"
    send(console, an_event(odd, entity_id="u1", payload={"message": SCRIPT + "x" * 3000}))
    wait_until(lambda: records(console, "dead-letter"), 20, "its dead letter", every_s=0.3)
    browser.log_in("operator")
    browser.open("/dead-letters?text=bad/1")
    browser.until(lambda: rows(browser, "groups"), "a group")
    rows(browser, "groups")[0].click()
    browser.until(lambda: rows(browser, "letters"), "its dead letters")
    browser.picture("dead-letters")
    rows(browser, "letters")[0].click()
    browser.click("as-hex")
    browser.see("7b 22 65 76 65 6e 74")
    browser.click("as-text")
    value = browser.css('textarea[name="value"]')
    value.send_keys(Keys.CONTROL + "a" + Keys.NULL, json.dumps(an_event(odd, payload={"note": SCRIPT})))
    browser.picture("dead-letter")
    browser.click("redrive")
    browser.click("yes")
    browser.see("1 sent back")
    browser.find("none")  # it isn't shown any more
    begun, done = audited(console, "operator")
    assert (begun[0], done[0]) == ("redrive", "redrive-done")
    assert begun[1].startswith("dead-letter/")
    assert begun[1] == done[1]

    wait_until(lambda: records(console, "ai-results"), 20, "its result", every_s=0.3)
    browser.open("/event")
    browser.fill("event", odd + Keys.ENTER)
    browser.see("happy · rule", "Received", "ingest-raw-events: decided by rule orders", "Written")
    browser.find("record").click()
    browser.see("headrace.redrive-attempt", "headrace.redrive-origin", SCRIPT.replace('"', '\\"'))
    browser.picture("event-redriven")
    assert browser.driver.title != "pwned"
    (result,) = [json.loads(record.value) for record in records(console, "ai-results") if record.key == odd.encode()]
    assert (result["category"], result["tier"]) == ("happy", "rule")


def at_hand(browser: Browser, before: list[str]) -> str:
    """The event that is to be decided, as soon as it is none of those before."""

    def found() -> str:
        shown = browser.find("text").text.rsplit(" ", 1)[-1]
        return "" if shown in before else shown

    return str(browser.until(found, f"another event than {before}"))


def test_one_key_decides_a_review_undo_takes_it_back_and_typing_decides_nothing(
    browser: Browser, console: WebProcess, worker: Worker
) -> None:
    ids = [f"r{n}" for n in range(3)]
    send(
        console,
        *[
            an_event(each, event_type="note", source_system="hospital", payload={"message": f"{SCRIPT} number {each}"})
            for each in ids
        ],
    )
    browser.log_in("reviewer")
    looking_on = browser.driver.current_window_handle
    browser.open(f"/event?id={ids[0]}")
    browser.see("review: waits for a person", "Not at its end yet")
    browser.click("record")
    browser.see('"source_system": "hospital"')
    browser.driver.switch_to.new_window("tab")
    browser.open("/review")
    browser.see("3 wait", "no-provider-allowed", SCRIPT)
    order = [at_hand(browser, [])]
    browser.picture("review")
    browser.fill("note", "1, as it seems" + Keys.TAB)
    browser.keys("1")
    order.append(at_hand(browser, order))
    browser.keys("2")
    order.append(at_hand(browser, order))
    browser.css('[data-key="1"]').click()
    browser.see("Nothing waits")
    assert sorted(order) == ids
    first, second, third = order

    def decided() -> dict[str, Any]:
        found = [json.loads(record.value) for record in records(console, "ai-results")]
        return {each["event_id"]: each for each in found if each["event_id"] in ids}

    wait_until(lambda: len(decided()) == 3, 20, "three results", every_s=0.3)
    browser.keys("u")
    assert at_hand(browser, order[:2]) == third
    browser.keys("2")
    browser.see("Nothing waits")
    wait_until(lambda: decided()[third]["category"] == "unhappy", 20, "the later decision's result", every_s=0.3)
    assert {each: (found["category"], found["tier"], found["reviewer"]) for each, found in decided().items()} == {
        first: ("happy", "review", "reviewer"), second: ("unhappy", "review", "reviewer"),
        third: ("unhappy", "review", "reviewer"),
    }  # fmt: skip
    assert decided()[first]["note"] == "1, as it seems"
    assert audited(console, "reviewer") == [
        ("decide", f"review/{first}"), ("decide", f"review/{second}"), ("decide", f"review/{third}"),
        ("undo", f"review/{third}"), ("decide", f"review/{third}"),
    ]  # fmt: skip
    browser.open(f"/event?id={third}")
    browser.see(
        "unhappy · review", "ingest-raw-events: a model is asked, task mood", "classify: review: no category",
        "review: waited for a person (task mood: no-provider-allowed)", "review: reviewer decided unhappy", "Received",
    )  # fmt: skip
    browser.picture("event-reviewed")
    assert browser.driver.title != "pwned"
    browser.driver.switch_to.window(looking_on)
    browser.see("review: waited for a person", "review: reviewer decided", "At its end", '"source_system": "hospital"')


def test_an_entity_s_open_windows_are_what_its_events_make(
    browser: Browser, console: WebProcess, worker: Worker
) -> None:
    now_ms = int(time.time() * 1000) // 30_000 * 30_000
    given = [
        Given("u/7 <b>", now_ms + 2_000 * n, kind, append_ms=now_ms) for n, kind in enumerate(["view", "cart", "view"])
    ]
    send(
        console,
        *[
            an_event(f"w{n}", event_type=each.kind, event_time=each.at_ms, entity_id=each.entity)
            for n, each in enumerate(given)
        ],
    )
    want = recompute(given, 60_000, 30_000, 5_000, ended=True).windows
    assert sorted(start for _, start in want) == [now_ms - 30_000, now_ms]
    browser.log_in("viewer")
    browser.open("/tables")
    browser.find("rows")

    def shown() -> list[str]:
        browser.css('[name="entity"]').send_keys(Keys.CONTROL + "a" + Keys.NULL, "u/7 <b>" + Keys.ENTER)
        browser.until(lambda: browser._shown('[data-mark="sequence"], [data-mark="no-windows"]'), "windows, or none")
        return [each.text for each in browser.driver.find_elements(By.CSS_SELECTOR, '[data-mark="sequence"]')]

    found = wait_until(
        lambda: each if len(each := shown()) == 2 and each[0].count("\n") == 2 else None, 20, "two windows"
    )
    for text, (_, window) in zip(found, sorted(want.items()), strict=True):
        assert [line.split()[-1] for line in text.splitlines()] == [label for _, label in window["sequence"]]
        assert [line.split()[1][-6:-4] for line in text.splitlines()] == [
            f"{at // 1000 % 60:02}" for at, _ in window["sequence"]
        ]
    browser.see("Events", "view 2, cart 1")
    browser.picture("windows")


def test_a_table_is_paged_searched_and_leads_to_the_event(
    browser: Browser, console: WebProcess, worker: Worker
) -> None:
    send(console, *[an_event(f"page-{n}", entity_id=f"p{n % 5}") for n in range(60)])
    wait_until(lambda: len(records(console, "ai-results")) >= 60, 20, "all are taken", every_s=0.3)
    browser.log_in("viewer")
    browser.open("/tables?table=ingest-raw-events/seen")
    browser.until(lambda: len(rows(browser, "rows")) == 50, "a full page")
    browser.click("forward")
    browser.see("Page 2")
    browser.until(lambda: 0 < len(rows(browser, "rows")) < 50, "the rest")
    browser.css('[name="key"]').send_keys("page-7" + Keys.ENTER)
    browser.until(lambda: len(rows(browser, "rows")) == 1, "one row")
    browser.picture("tables")
    rows(browser, "rows")[0].click()
    browser.until(lambda: browser.driver.find_elements(By.LINK_TEXT, "This event through every stage"), "the link")
    browser.driver.find_element(By.LINK_TEXT, "This event through every stage").click()
    browser.see("happy · rule")
    browser.click("language")
    browser.see("事件 ID", "由规则判定 orders")
