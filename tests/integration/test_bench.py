"""The benchmark's judge and its runs, on a real broker."""

import json

import pytest

from app.broker.kafka import EmbeddedKafka
from tests.bench import deep, ingest, outputs
from tests.bench.data import Expected, preload
from tests.helpers import topics

pytestmark = pytest.mark.integration


def _event(event_id: str) -> tuple[bytes, bytes]:
    return b"k", json.dumps({"event_id": event_id}).encode()


async def _judged(
    kafka: EmbeddedKafka, prefix: str, expected: Expected, clean: list[str], dead: list[bytes]
) -> list[str]:
    await outputs.make(kafka.bootstrap, [prefix + name for name in outputs.OUTPUTS], stamped=True)
    await topics.produce(kafka.bootstrap, f"{prefix}clean-events", [_event(i) for i in clean])
    await topics.produce(kafka.bootstrap, f"{prefix}dead-letter", [(b"k", value) for value in dead])
    found = (await outputs.judge(kafka.bootstrap, prefix, expected)).wrong
    await outputs.drop(kafka.bootstrap, prefix)
    return found


async def test_judge_finds_lost_invented_and_copied_events(kafka: EmbeddedKafka, prefix: str) -> None:
    expected = Expected(clean={"a", "b", "c"})
    assert await _judged(kafka, f"{prefix}1-", expected, ["a", "b", "c"], []) == []
    wrong = await _judged(kafka, f"{prefix}2-", expected, ["a", "a", "x"], [])
    assert wrong == ["clean-events: 2 lost, 1 invented, 1 copies"]
    wrong = await _judged(kafka, f"{prefix}3-", expected, ["a", "b", "c"], [b"never there"])
    assert wrong == ["dead-letter: 0 lost, 1 invented or copies"]


async def test_contestant_that_ends_early_is_told_of(kafka: EmbeddedKafka, prefix: str) -> None:
    topic = f"{prefix}input"
    await outputs.make(kafka.bootstrap, [topic], stamped=False)
    await preload(kafka.bootstrap, topic, 100)
    stuck = await outputs.await_progress(kafka.bootstrap, f"{prefix}nobody", topic, 100, lambda: False)
    assert stuck.startswith("ended at 0 of 100 events")  # a young coordinator may add why it refused


@pytest.mark.slow
def test_round_of_ours_is_right() -> None:
    found = ingest.run(["ours"], 20_000, 1, lambda _: None)
    row = ingest.summary(found, 20_000)[0]
    assert row["right"], found
    assert row["events_per_s"] > 0
    assert row["cpu_us_per_event"] > 0


@pytest.mark.slow
def test_batches_take_fewer_calls_and_tokens_and_each_answer_reaches_its_event() -> None:
    one, many = deep.batches([1, 20], 200, deep.Model(latency_ms=20, token_ms=1), lambda _: None)
    assert one["right"], one["wrong"]
    assert many["right"], many["wrong"]
    assert one["calls"] == one["events"] == many["events"] == 200
    assert many["calls"] < 40
    assert many["tokens_ratio"] > 3
