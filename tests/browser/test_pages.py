"""Overview, Topics and Settings in a real browser, over a real worker."""

import asyncio
import json
import os
import time
from collections.abc import Iterator

import pytest
from selenium.webdriver.common.by import By

from app.broker.kafka import EmbeddedKafka
from tests.browser.conftest import Browser
from tests.helpers import topics
from tests.helpers.gateway import WebProcess, an_event
from tests.helpers.processes import Worker

pytestmark = pytest.mark.integration

SCRIPT = "<img src=x onerror=document.title='owned'>"
"""As an event's id: shown as text, or the title says otherwise."""


@pytest.fixture(scope="module")
def worker(console: WebProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """One that decides by rules alone: no model is asked."""
    process = Worker(tmp_path_factory.mktemp("worker"), {**console.env, "HEADRACE_ROLE": "ingest"})
    process.start()
    process.wait_ready()
    yield process
    process.kill()


POINTS = int(os.environ.get("HEADRACE_TEST_POINTS", "0"))
"""More points in the charts of the picture, 15 s each; pictures of the docs are taken with 8."""
TYPES = ("order.created", "payment.authorized", "shipment.delayed", "page.viewed")


def send(kafka: EmbeddedKafka, console: WebProcess, *ids: str) -> None:
    """Events that rules of the built-in task decide."""
    events = [an_event(each, event_type=TYPES[n % 4], entity_id=f"user-{n % 9}") for n, each in enumerate(ids)]
    rows = [(event["entity_id"].encode(), json.dumps(event).encode()) for event in events]
    topic = f"{console.env['HEADRACE_KAFKA__TOPIC_PREFIX']}raw-events"
    asyncio.run(topics.produce(kafka.bootstrap, topic, rows))


def test_the_overview_shows_results_as_they_come(
    browser: Browser, console: WebProcess, worker: Worker, kafka: EmbeddedKafka
) -> None:
    browser.log_in("viewer")
    browser.see("Newest results")
    send(kafka, console, SCRIPT, *(f"event-{n}" for n in range(30)))
    browser.see(SCRIPT, "order.created")
    browser.until(lambda: browser.find("tile-workers").text == "1", "one worker")
    browser.until(lambda: browser.find("tile-lag").text == "0", "no lag")
    browser.until(lambda: browser.find("tile-events_in").text not in ("–", "0"), "a rate")
    assert "owned" not in browser.driver.title
    until = time.monotonic() + POINTS * 15.0
    for burst in range(10_000):  # something to be seen in the charts, whose points come every 15 s
        send(kafka, console, *(f"event-{burst}-{n}" for n in range(30 + burst % 7 * 9)))
        browser.find("tile-events_in")
        if time.monotonic() > until:
            break
    browser.until(lambda: browser.find("share-rule").text == "100%", "the first point of the charts")
    browser.picture("overview")
    browser.click("pause")
    browser.see("Go on")


def test_records_of_a_topic_are_read_and_opened(
    browser: Browser, console: WebProcess, worker: Worker, kafka: EmbeddedKafka
) -> None:
    topic = f"{console.env['HEADRACE_KAFKA__TOPIC_PREFIX']}raw-events"
    send(kafka, console, "to-be-opened", SCRIPT + "2")
    browser.log_in("viewer")
    browser.keys("g", "p")
    browser.see(topic, "ai-results")
    browser.picture("topics")
    browser.driver.find_element(By.LINK_TEXT, topic).click()
    browser.see("Consumer groups", "found", SCRIPT + "2")
    browser.fill("contains", "to-be-opened")
    browser.click("read")
    browser.see("All was read:", "1 found")
    browser.css('[data-mark="records"] tbody tr').click()
    browser.see('"event_id": "to-be-opened"', "No headers.")
    browser.picture("record")
    browser.click("close")
    assert "owned" not in browser.driver.title
    browser.open(f"/topics?name={topic.replace('raw-events', 'console-users')}")
    browser.find("hidden")
    assert "argon2" not in browser.text


def test_settings_are_shown_with_their_origin(browser: Browser, console: WebProcess) -> None:
    browser.log_in("viewer")
    browser.open("/settings")
    browser.see("kafka.topic_prefix", "environment: HEADRACE_KAFKA__TOPIC_PREFIX", "default")
    browser.click("only-set")
    browser.until(lambda: "ingest.max_depth" not in browser.text, "only what is set")
    browser.picture("settings")
