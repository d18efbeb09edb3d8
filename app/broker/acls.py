"""Kafka's ACLs as data, written as kafka-acls.sh lines or set through the admin protocol, which aiokafka only half wraps."""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import for_code
from aiokafka.protocol.admin import CreateAclsRequest, DeleteAclsRequest

from app.errors import BrokerError

__all__ = ["Acl", "Operation", "line", "set_acls", "take_acls"]

Resource = Literal["topic", "group", "transactional-id"]
Operation = Literal["Read", "Write", "Create", "Describe", "DescribeConfigs"]

RESOURCES: dict[Resource, int] = {"topic": 2, "group": 3, "transactional-id": 5}
OPERATIONS: dict[Operation, int] = {"Read": 3, "Write": 4, "Create": 5, "Describe": 8, "DescribeConfigs": 10}
LITERAL, PREFIXED = 3, 4
ALLOW = 3
"""Numbers of Kafka's protocol (https://kafka.apache.org/protocol, AclOperation and ResourcePattern)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acl:
    """What a user may do with a resource, from any host."""

    resource: Resource
    name: str
    operations: tuple[Operation, ...]
    prefixed: bool = False
    """The name is the beginning of names."""


def line(acl: Acl, bootstrap: str, user: str) -> str:
    """The same for kafka-acls.sh."""
    words = ["kafka-acls.sh", "--bootstrap-server", bootstrap, "--add", "--allow-principal", f"User:{user}"]
    for operation in acl.operations:
        words += ["--operation", operation]
    words += [f"--{acl.resource}", acl.name]
    if acl.prefixed:
        words += ["--resource-pattern-type", "prefixed"]
    return shlex.join(words)


async def set_acls(client: AIOKafkaAdminClient, user: str, acls: Iterable[Acl]) -> None:
    """Gives a user these rights; those that are there stay.

    Raises:
        BrokerError: refused.
    """
    for numbers in _numbers(user, acls):
        answer = await client._send_request(CreateAclsRequest(*numbers))
        for code, *rest in answer.creation_responses:
            _refuse(code, rest)


async def take_acls(client: AIOKafkaAdminClient, user: str, acls: Iterable[Acl]) -> None:
    """Takes exactly these rights from a user.

    Raises:
        BrokerError: refused.
    """
    for numbers in _numbers(user, acls):
        answer = await client._send_request(DeleteAclsRequest(*numbers))
        for code, *rest in answer.filter_responses:
            _refuse(code, rest)


def _numbers(user: str, acls: Iterable[Acl]) -> Iterable[tuple[Any, ...]]:
    for acl in acls:
        pattern = PREFIXED if acl.prefixed else LITERAL
        for operation in acl.operations:
            yield RESOURCES[acl.resource], acl.name, pattern, f"User:{user}", "*", OPERATIONS[operation], ALLOW


def _refuse(code: int, rest: list[Any]) -> None:
    if code:
        raise BrokerError(f"the broker refuses an ACL: {for_code(code).__name__} {rest[0] if rest else ''}")
