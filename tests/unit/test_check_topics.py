"""What `headrace check` says of topics that aren't there, and of changelogs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import TopicAuthorizationFailedError

from app import topics
from app.commands import check_topics
from app.commands.findings import Findings
from app.settings import load
from app.topics import OURS


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


def managed(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load()
    kafka = settings.kafka.model_copy(update={"manage_topics": how, "partitions": 3})
    monkeypatch.setattr(check_topics, "settings", settings.model_copy(update={"kafka": kafka}))


def topic(name: str) -> topics.Topic:
    return next(each for each in OURS if each.name == name)


@pytest.mark.parametrize(
    ("how", "others", "mark", "words"),
    [
        ("create", False, "ok", "not there yet"),
        ("create", True, "warn", "Was it deleted?"),
        ("check", True, "FAIL", "make it with 3 partitions, cleanup.policy=compact,delete"),
    ],
)
def test_a_missing_topic_is_named_with_its_writer_and_shape(
    how: str, others: bool, mark: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    managed(how, monkeypatch)
    found = Findings()
    check_topics._missing("p-ai-results", topic("ai-results"), others, found)
    line = said(capsys)
    assert line.split()[0] == mark
    assert words in line
    assert others is False or "(written by ingest, classify, review)" in line
    assert found.wrong == (mark == "FAIL")


def test_a_topic_of_one_partition_is_to_be_made_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    managed("check", monkeypatch)
    check_topics._missing("p-workers", topic("workers"), True, Findings())
    assert "make it with 1 partitions, cleanup.policy=compact" in said(capsys)


@pytest.mark.parametrize(
    ("counts", "policy", "mark", "words"),
    [
        ({"s-changelog": 4, "other-changelog": 4}, "compact", "ok", "4 partitions"),
        ({"s-changelog": 4, "other-changelog": 4}, "delete", "FAIL", "isn't compact"),
        ({"s-changelog": 1, "other-changelog": 4}, "compact", "FAIL", "has 1 partitions, and in 4"),
        ({"other-changelog": 4}, "compact", "warn", "Was it deleted?"),
    ],
)
async def test_a_changelog_must_be_there_compacted_and_split_as_its_input(
    counts: dict[str, int],
    policy: str,
    mark: str,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def there(settings: object, names: list[str]) -> dict[str, int]:
        return {name: counts[name] for name in names if name in counts}

    async def configs(kafka: object, names: list[str]) -> dict[str, dict[str, str]]:
        return {name: {"cleanup.policy": policy if name == "s-changelog" else "compact"} for name in names}

    stages: Any = {
        topic: SimpleNamespace(name=name, topic=topic, changelog=f"{name}-changelog")
        for topic, name in (("in", "s"), ("in2", "other"), ("gone", "third"))
    }
    monkeypatch.setattr(check_topics.topics, "counts", there)
    monkeypatch.setattr(check_topics, "configs_of", configs)
    monkeypatch.setattr(check_topics.app.delivery, "stages", stages)
    found = Findings()
    await check_topics._changelogs({"in": 4, "in2": 4}, found)
    first, second = said(capsys).splitlines()
    assert first.split()[0] == mark
    assert words in first
    assert second.split() == ["ok", "other-changelog:", "4", "partitions"]
    assert found.wrong == (mark == "FAIL")


async def test_a_topic_whose_configuration_is_refused_is_wrong_and_the_others_are_looked_at(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def there(settings: object, names: list[str]) -> dict[str, int]:
        return dict.fromkeys(names, 4)

    async def described(resources: list[Any]) -> list[Any]:
        refused = TopicAuthorizationFailedError.errno
        return [
            SimpleNamespace(resources=[(refused, "no", 2, each.name, [])])
            if each.name == "s-changelog"
            else SimpleNamespace(resources=[(0, None, 2, each.name, [("cleanup.policy", "compact")])])
            for each in resources
        ]

    @asynccontextmanager
    async def admin(kafka: object) -> AsyncIterator[Any]:
        yield SimpleNamespace(describe_configs=described)

    stages: Any = {
        topic: SimpleNamespace(name=name, topic=topic, changelog=f"{name}-changelog")
        for topic, name in (("in", "s"), ("in2", "other"))
    }
    monkeypatch.setattr(check_topics.topics, "counts", there)
    monkeypatch.setattr("app.delivery.probe.admin", admin)
    monkeypatch.setattr(check_topics.app.delivery, "stages", stages)
    found = Findings()
    await check_topics._changelogs({"in": 4, "in2": 4}, found)
    first, second = said(capsys).splitlines()
    assert first.split()[:2] == ["FAIL", "s-changelog:"]
    assert "Kafka refuses user" in first
    assert second.split() == ["ok", "other-changelog:", "4", "partitions"]
    assert found.wrong == 1


async def test_a_refused_configuration_that_a_worker_needs_no_right_to_is_only_a_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def refused(kafka: object, names: list[str]) -> dict[str, dict[str, str]]:
        raise TopicAuthorizationFailedError(names[0])

    monkeypatch.setattr(check_topics, "configs_of", refused)
    rights = check_topics.rights.acls(check_topics.settings, "worker")
    spared = next(each.name for each in rights if each.resource == "topic" and "DescribeConfigs" not in each.operations)
    found = Findings()
    assert await check_topics._configs([spared], found) == {}
    assert said(capsys).split()[:2] == ["warn", f"{spared}:"]
    assert found.wrong == 0
