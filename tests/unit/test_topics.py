"""The list of topics, and how it is made or checked on a real broker."""

import asyncio
from typing import Any

import pytest

from app import topics
from app.broker.kafka import EmbeddedKafka
from app.errors import BrokerError, HeadraceError
from app.kafka import admin
from app.settings import Settings, load
from app.web.history import History
from app.web.scan import Asked, Budget, scan
from tests.helpers.topics import create

OURS = {
    "rekeyed", "window-events", "agg-events", "late-events", "agent-trigger",
    "clean-events", "sink-noise", "dead-letter", "model-requests", "ai-results", "manual-review", "review-decisions",
    "workers", "budget", "budget-grants", "api-keys", "redriven", "gateway-replies", "console-users",
    "console-audit",
}  # fmt: skip
SINGLE = {"workers", "budget-grants", "api-keys", "redriven", "gateway-replies", "console-users", "console-audit"}
"""Topics of one partition."""


def settings(kafka: EmbeddedKafka | None = None, **given: Any) -> Settings:
    """The built-in settings with other Kafka settings."""
    built_in = load()
    servers = {"bootstrap_servers": kafka.bootstrap} if kafka else {}
    return built_in.model_copy(update={"kafka": built_in.kafka.model_copy(update={**servers, **given})})


def test_every_topic_gets_the_prefix_and_the_asked_partitions() -> None:
    found = {t.name: t for t in topics.topics(settings(topic_prefix="shop.", partitions=7))}
    assert set(found) == {f"shop.{name}" for name in OURS}
    assert {t.partitions for name, t in found.items() if name.removeprefix("shop.") not in SINGLE} == {7}
    assert {found[f"shop.{name}"].partitions for name in SINGLE} == {1}


def test_topics_that_carry_raw_records_have_room_for_our_headers() -> None:
    for topic in topics.topics(settings(max_message_bytes=1000)):
        assert topic.config.get("max.message.bytes") == (str(1000 + (64 << 10)) if topic.raw else None)


def test_retention_is_what_the_topic_is_for() -> None:
    found = {t.name: t.config for t in topics.topics(settings())}
    assert found["sink-noise"]["retention.ms"] == str(24 * 3600 * 1000)
    assert found["ai-results"]["cleanup.policy"] == "compact,delete"
    assert found["workers"]["cleanup.policy"] == "compact"


def test_hashes_of_secrets_are_shown_to_nobody_and_what_people_did_to_admins() -> None:
    tree = settings(topic_prefix="shop.")
    names = {f"shop.{name}" for name in OURS}
    assert {name for name in names if not topics.may_read(tree, name, admin=True)} == {
        "shop.api-keys", "shop.console-users",
    }  # fmt: skip
    assert {name for name in names if not topics.may_read(tree, name)} == {
        "shop.api-keys", "shop.console-users", "shop.console-audit", "shop.gateway-replies",
    }  # fmt: skip
    assert topics.may_read(tree, "shop.headrace-classify-changelog")
    assert topics.may_read(tree, tree.source_topic(tree.sources[0]))
    assert not topics.may_read(tree, "somebody-else-s", admin=True)
    renamed = tree.model_copy(update={"sources": [tree.sources[0].model_copy(update={"topic": "api-keys"})]})
    assert not topics.may_read(renamed, renamed.topic("api-keys"), admin=True)


async def test_places_and_scans_of_secret_topics_are_not_read() -> None:
    tree = settings()
    for name in ("api-keys", "console-users", "console-audit"):
        assert await History(tree).at(tree.topic(name), 0, 0) is None
        with pytest.raises(HeadraceError, match="aren't shown"):
            await scan(tree, Asked(topic=tree.topic(name)), Budget(), lambda found, progress: None)


@pytest.mark.integration
async def test_missing_topics_are_made_and_a_second_time_changes_nothing(kafka: EmbeddedKafka, prefix: str) -> None:
    own = settings(kafka, topic_prefix=prefix, partitions=3)
    first = await topics.ensure(own)
    assert first == {f"{prefix}{name}": 3 for name in OURS | {"raw-events"}} | {f"{prefix}{name}": 1 for name in SINGLE}
    assert await topics.ensure(own) == first


@pytest.mark.integration
async def test_two_workers_that_start_together_agree(kafka: EmbeddedKafka, prefix: str) -> None:
    own = settings(kafka, topic_prefix=prefix)
    answers = await asyncio.gather(*[topics.ensure(own) for _ in range(4)])
    assert all(answer == answers[0] for answer in answers)
    assert len(answers[0]) == len(OURS) + 1


@pytest.mark.integration
async def test_topics_that_are_there_keep_their_partitions(kafka: EmbeddedKafka, prefix: str) -> None:
    await create(kafka.bootstrap, f"{prefix}clean-events", partitions=5)
    counts = await topics.ensure(settings(kafka, topic_prefix=prefix, partitions=2))
    assert counts[f"{prefix}clean-events"] == 5
    assert counts[f"{prefix}dead-letter"] == 2


@pytest.mark.integration
async def test_check_mode_names_what_is_missing_and_makes_nothing(kafka: EmbeddedKafka, prefix: str) -> None:
    own = settings(kafka, topic_prefix=prefix, manage_topics="check")
    with pytest.raises(BrokerError, match=rf"missing.*{prefix}clean-events.*set kafka\.manage_topics to `create`"):
        await topics.ensure(own)
    async with admin(own.kafka) as client:
        assert not [name for name in await client.list_topics() if name.startswith(prefix)]


@pytest.mark.integration
async def test_refused_topic_says_which_setting_is_at_fault(kafka: EmbeddedKafka, prefix: str) -> None:
    with pytest.raises(BrokerError, match=r"InvalidReplicationFactor.*kafka\.replication"):
        await topics.ensure(settings(kafka, topic_prefix=prefix, replication=3))
