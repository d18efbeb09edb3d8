"""Kafka's ACLs as data, written as kafka-acls.sh lines or set through the admin protocol, which aiokafka only half wraps."""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import for_code
from aiokafka.protocol.admin import CreateAclsRequest

from app.errors import BrokerError

__all__ = ["Acl", "Operation", "line", "numbered", "set_acls"]

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
    """Gives a user these rights, all in one request; those that are there stay.

    Raises:
        BrokerError: refused.
    """
    answer = await client._send_request(_CreateAll(list(numbered(user, acls))))
    for code, message in answer.creation_responses:
        if code:
            raise BrokerError(f"the broker refuses an ACL: {for_code(code).__name__} {message or ''}")


def numbered(user: str, acls: Iterable[Acl]) -> Iterable[tuple[Any, ...]]:
    """An operation each, as the requests of Kafka's protocol have them."""
    for acl in acls:
        pattern = PREFIXED if acl.prefixed else LITERAL
        for operation in acl.operations:
            yield RESOURCES[acl.resource], acl.name, pattern, f"User:{user}", "*", OPERATIONS[operation], ALLOW


class _CreateAll(CreateAclsRequest):  # type: ignore[misc]  # aiokafka has no types
    """aiokafka's own holds one operation, and Kafka writes each request to its metadata log before it answers."""

    def __init__(self, creations: list[tuple[Any, ...]]) -> None:
        self._creations = creations

    def build(self, request_struct_class: Any) -> Any:
        return request_struct_class(self._creations)
