"""Reading a topic for a person: newest first, from a place, within a budget; and what Kafka knows of our topics."""

import asyncio
from typing import Any

import pytest

from app.broker.kafka import EmbeddedKafka
from app.settings import Settings, load
from app.web.scan import Asked, Budget, Progress, scan
from app.web.topic_state import groups_of, our_topics
from tests.helpers import topics

pytestmark = pytest.mark.integration

COUNT = 6000


@pytest.fixture(scope="module")
def filled(kafka: EmbeddedKafka) -> tuple[Settings, str]:
    """A topic of ours with many records in two of its three partitions, and a needle near the begin."""
    tree = load()
    update = {"bootstrap_servers": kafka.bootstrap, "topic_prefix": "scan-"}
    settings = tree.model_copy(update={"kafka": tree.kafka.model_copy(update=update)})
    topic = settings.topic("dead-letter")

    async def fill() -> None:
        await topics.create(kafka.bootstrap, topic, 3)
        rows = [(b"ab"[n % 2 : n % 2 + 1], b'{"n":%d}' % n) for n in range(COUNT)]
        rows[30] = (b"a", b'{"n":"needle"}')
        await topics.produce(kafka.bootstrap, topic, rows)

    asyncio.run(fill())
    return settings, topic


async def run(filled: tuple[Settings, str], budget: Budget | None = None, **asked: Any) -> tuple[list[Any], Progress]:
    found: list[Any] = []
    progress = await scan(
        filled[0], Asked(topic=filled[1], **asked), budget or Budget(), lambda records, _: found.extend(records)
    )
    return found, progress


async def test_the_newest_are_found_without_reading_the_topic(filled: tuple[Settings, str]) -> None:
    found, progress = await run(filled, rows=20)
    newest = sorted(int(record.value[5:-1]) for record in found)[-20:]
    assert newest == list(range(COUNT - 20, COUNT))
    assert progress.why == "rows"
    assert progress.read < COUNT


async def test_a_text_is_found_wherever_it_is_and_the_rest_is_known_to_be_read(filled: tuple[Settings, str]) -> None:
    found, progress = await run(filled, text="needle")
    assert [record.value for record in found] == [b'{"n":"needle"}']
    assert (progress.why, progress.read) == ("complete", COUNT)


async def test_a_place_to_begin_at(filled: tuple[Settings, str]) -> None:
    one = (await run(filled, rows=1))[0][-1].partition
    found, progress = await run(filled, partition=one, start="offset", at=100, rows=3)
    assert [record.offset for record in found] == [100, 101, 102]
    oldest, _ = await run(filled, partition=one, start="oldest", rows=1)
    assert oldest[0].offset == 0
    at_time, _ = await run(filled, partition=one, start="time", at=found[0].timestamp + 86_400_000)
    assert at_time == []
    behind, progress = await run(filled, partition=one, start="offset", at=10**9)
    assert (behind, progress.why) == ([], "complete")


async def test_a_budget_ends_it_and_says_so(filled: tuple[Settings, str]) -> None:
    found, progress = await run(filled, Budget(rows=1000), text="needle")
    assert (found, progress.why) == ([], "records")
    assert 1000 <= progress.read < COUNT
    _, progress = await run(filled, Budget(seconds=0.0), text="needle")
    assert progress.why == "seconds"


async def test_a_topic_that_is_not_there_and_one_without_records_end_at_once(filled: tuple[Settings, str]) -> None:
    settings = filled[0]
    assert (await run((settings, settings.topic("rekeyed"))))[1].why == "complete"
    await topics.create(settings.kafka.bootstrap_servers, settings.topic("sink-noise"), 50)
    found, progress = await run((settings, settings.topic("sink-noise")))
    assert (found, progress.why) == ([], "complete")
    assert progress.seconds < 5


async def test_offsets_and_groups_of_our_topics(filled: tuple[Settings, str]) -> None:
    settings, topic = filled
    states = {state.name: state for state in await our_topics(settings)}
    assert set(states) == {topic, settings.topic("sink-noise")}
    assert (states[topic].span, states[topic].what) == (COUNT, "the bytes as received")
    assert await our_topics(settings, "strangers") == []
    groups, whole = await groups_of(settings, states[topic])
    assert (groups, whole) == ([], True)
    await commit(settings.kafka.bootstrap_servers, topic)
    groups, _ = await groups_of(settings, states[topic])
    assert [(group.group, group.lag(states[topic].ends)) for group in groups] == [("reader", COUNT - 7)]


async def commit(bootstrap: str, topic: str) -> None:
    """A group that has read all but `COUNT - 7`, spread over the partitions."""
    import aiokafka
    from aiokafka.structs import TopicPartition

    consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id="reader", enable_auto_commit=False)
    await consumer.start()
    try:
        tps = [TopicPartition(topic, p) for p in range(3)]
        consumer.assign(tps)
        ends = await consumer.end_offsets(tps)
        first = next(tp for tp in tps if ends[tp] > 7)
        await consumer.commit({tp: 7 if tp == first else 0 for tp in tps})
    finally:
        await consumer.stop()
