"""Topics that aren't there: named, asked for a bounded time, and never made by asking."""

from typing import Any

import pytest
from aiokafka import client
from aiokafka.admin import client as admin_client
from aiokafka.errors import UnknownTopicOrPartitionError
from aiokafka.protocol.metadata import MetadataRequest_v1, MetadataRequest_v5

from app.delivery import presence
from app.delivery.presence import TRIES, find, missing
from app.kafka import client_kwargs, explained
from app.settings import KafkaSettings
from tests.helpers.cluster import Client


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "AGAIN_S", 0.0)


def asking(**there: Any) -> Any:
    return Client(**there)


async def test_what_is_missing_is_named_after_it_was_asked_for_again() -> None:
    kafka = asking(there=2)
    assert await missing(kafka, ["there", "gone", "away"]) == {"gone", "away"}
    assert kafka.asked == TRIES


async def test_a_topic_that_was_just_made_is_waited_for() -> None:
    kafka = asking()
    usual = kafka.force_metadata_update

    def update() -> Any:
        if kafka.asked == 1:
            kafka.there["new"] = 4
        return usual()

    kafka.force_metadata_update = update
    assert await missing(kafka, ["new"]) == set()
    assert kafka.asked == 2


async def test_nothing_is_missing_while_no_broker_answers() -> None:
    assert await missing(asking(answers=False), ["gone"]) == set()


async def test_a_topic_that_may_not_be_seen_is_not_missing() -> None:
    kafka = asking()
    kafka.hidden.add("secret")
    assert await missing(kafka, ["secret"]) == set()


async def test_a_partition_that_is_known_costs_no_question() -> None:
    kafka = asking(there=2)
    await find(kafka, "there", 1)
    first = kafka.asked
    await find(kafka, "there", 0)
    assert (first, kafka.asked) == (1, 1)


@pytest.mark.parametrize(("topic", "said"), [("gone", "gone"), ("there", "there partition 2")])
async def test_a_topic_or_partition_that_is_missing_is_named(topic: str, said: str) -> None:
    with pytest.raises(UnknownTopicOrPartitionError) as met:
        await find(asking(there=2), topic, 2)
    assert met.value.args == (said,)


def test_a_missing_topic_is_explained_with_what_may_be_made_anew() -> None:
    """An input made anew stops its partitions: nobody may be told to make one."""
    said = explained(KafkaSettings(), UnknownTopicOrPartitionError("rekeyed"))
    assert said.startswith("topic rekeyed isn't there; `headrace check`")
    assert "only written, or a changelog, can be made anew" in said
    assert "an input has to come back as it was" in said
    assert "When a topic was deleted" in said


def test_a_question_about_topics_makes_none() -> None:
    """Kafka's brokers make topics that are asked about, unless the question forbids it (from its version 4 on)."""
    client_kwargs(KafkaSettings())
    for asked in (client.MetadataRequest(["gone"]), admin_client.MetadataRequest(["gone"])):
        request = asked.build(MetadataRequest_v5)
        assert (request.topics, request.allow_auto_topic_creation) == (["gone"], False)
    assert client.MetadataRequest([]).build(MetadataRequest_v1).topics == []
