"""What each kind of user needs of Kafka, and nothing more: from the settings, for `headrace check --acls` and the broker."""

from typing import Literal, get_args

from app.broker.acls import Acl, Operation
from app.settings import Settings
from app.topics import OURS

__all__ = ["KINDS", "Kind", "acls"]

Kind = Literal["worker", "gateway", "reader"]
KINDS: tuple[Kind, ...] = get_args(Kind)

STAGES_READ = (
    "rekeyed",
    "window-events",
    "model-requests",
    "ai-results",
    "review-decisions",
    "budget",
    "budget-grants",
)
STAGES_NEVER_WRITE = ("api-keys", "redriven", "gateway-replies", "console-users", "console-audit")
"""Of commands, the gateway and the console. Whoever writes `api-keys` makes keys."""
GATEWAY_READS = ("api-keys", "gateway-replies", "workers", "ai-results")


def acls(settings: Settings, kind: Kind) -> list[Acl]:
    """The rights of a worker with any role, of a gateway, or of a program that only reads what comes out."""
    match kind:
        case "worker":
            return _worker(settings)
        case "gateway":
            return _gateway(settings)
        case "reader":
            return _reader(settings)


def _worker(settings: Settings) -> list[Acl]:
    create: tuple[Operation, ...] = ("Create",) if settings.kafka.manage_topics == "create" else ()
    name = settings.topic("headrace")
    found = [
        Acl(
            resource="topic",
            name=settings.source_topic(source),
            operations=("Read", "Describe", "DescribeConfigs", *create),
        )
        for source in settings.sources
    ]
    for topic in OURS:
        read: tuple[Operation, ...] = ("Read", "DescribeConfigs") if topic.name in STAGES_READ else ()
        write: tuple[Operation, ...] = () if topic.name in STAGES_NEVER_WRITE else ("Write",)
        # A worker makes or looks for all topics, so that one deployment is whole or not there.
        found.append(
            Acl(resource="topic", name=settings.topic(topic.name), operations=(*read, *write, "Describe", *create))
        )
    changelog: tuple[Operation, ...] = ("Read", "Write", "Describe", "DescribeConfigs", *create)
    return [
        *found,
        Acl(resource="topic", name=f"{name}-", operations=changelog, prefixed=True),
        Acl(resource="group", name=name, operations=("Read", "Describe"), prefixed=True),
        Acl(resource="transactional-id", name=f"{name}-", operations=("Write", "Describe"), prefixed=True),
    ]


def _gateway(settings: Settings) -> list[Acl]:
    found = [
        Acl(resource="topic", name=settings.source_topic(source), operations=("Write", "Describe"))
        for source in settings.sources
    ]
    for topic in OURS:
        read: tuple[Operation, ...] = ("Read",) if topic.name in GATEWAY_READS else ()
        write: tuple[Operation, ...] = ("Write",) if topic.name == "gateway-replies" else ()
        found.append(Acl(resource="topic", name=settings.topic(topic.name), operations=(*read, *write, "Describe")))
    return found


def _reader(settings: Settings) -> list[Acl]:
    names = [settings.source_topic(source) for source in settings.sources]
    names += [settings.topic(topic.name) for topic in OURS if topic.shown_to == "viewer"]
    return [
        *[Acl(resource="topic", name=name, operations=("Read", "Describe", "DescribeConfigs")) for name in names],
        Acl(resource="group", name=settings.topic("reader"), operations=("Read", "Describe"), prefixed=True),
    ]
