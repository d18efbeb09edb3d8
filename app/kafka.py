"""The one place that turns `KafkaSettings` into client arguments."""

import asyncio
import re
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.conn import collect_hosts, create_conn
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    KafkaError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
    UnknownTopicOrPartitionError,
    UnsupportedSaslMechanismError,
)

from app.auto_create import make_no_topics
from app.empty_cluster import wait_for_brokers
from app.errors import BrokerError, HeadraceError
from app.settings import KafkaSettings
from app.tls_close import close_tls_at_once

__all__ = [
    "KAFKA_FAILURES",
    "admin",
    "answers",
    "client_kwargs",
    "explained",
    "is_refusal",
    "ssl_context",
    "unreachable",
]

KAFKA_FAILURES = (KafkaError, HeadraceError, OSError)
"""What a client of ours raises when Kafka isn't there, refuses, or takes too long (TimeoutError is an OSError)."""
TRIAL_TIMEOUT_MS = 5000
"""Only to find a reason: a broker that is silent for longer says none."""


def ssl_context(kafka: KafkaSettings) -> ssl.SSLContext | None:
    """TLS as the settings say, or None without it.

    Raises:
        BrokerError: a certificate file can't be read. Not worth retrying.
    """
    if kafka.security_protocol not in ("SSL", "SASL_SSL"):
        return None
    close_tls_at_once()
    try:
        context = ssl.create_default_context(cafile=str(kafka.ssl_ca_file) if kafka.ssl_ca_file else None)
        if kafka.ssl_cert_file:
            context.load_cert_chain(str(kafka.ssl_cert_file), str(kafka.ssl_key_file))
    except OSError as error:
        raise BrokerError(
            f"kafka.ssl_ca_file, ssl_cert_file or ssl_key_file can't be used: {error}; all are PEM files"
        ) from error
    return context


def client_kwargs(kafka: KafkaSettings) -> dict[str, Any]:
    """Arguments that every aiokafka client of ours takes: servers, security, request time limit."""
    make_no_topics()
    wait_for_brokers()
    kwargs: dict[str, Any] = {
        "bootstrap_servers": _servers(kafka),
        "security_protocol": kafka.security_protocol,
        "request_timeout_ms": int(kafka.request_timeout_s * 1000),
    }
    context = ssl_context(kafka)
    if context is not None:
        kwargs["ssl_context"] = context
    if kafka.security_protocol.startswith("SASL"):
        kwargs |= {
            "sasl_mechanism": kafka.sasl_mechanism,
            "sasl_plain_username": kafka.username,
            "sasl_plain_password": kafka.password.get_secret_value(),
        }
    return kwargs


def _servers(kafka: KafkaSettings) -> list[str]:
    return [server.strip() for server in kafka.bootstrap_servers.split(",")]


async def unreachable(kafka: KafkaSettings, error: BaseException) -> BrokerError:
    """The error to show when no broker answers: what the first one says to us, and what to do about that."""
    secured: str = kafka.security_protocol
    if secured.startswith("SASL"):
        secured += f" {kafka.sasl_mechanism} as {kafka.username}"
    host, port = _hosts(kafka)[0]
    met = await _met(kafka, host, port) or error
    name = type(met).__name__
    why = re.sub(rf"^(\[Error \d+\] )?{name}: ", "", str(met))
    return BrokerError(f"no Kafka at {kafka.bootstrap_servers} answers with {secured} ({name}: {why}); {_advice(met)}")


async def answers(kafka: KafkaSettings) -> bool:
    """Whether one of the servers that the settings name takes a connection of ours, within 5 s."""
    found = await asyncio.gather(*(_met(kafka, host, port) for host, port in _hosts(kafka)))
    return None in found


def _hosts(kafka: KafkaSettings) -> list[tuple[str, int]]:
    return [(host, port) for host, port, _ in collect_hosts(_servers(kafka), randomize=False)]


async def _met(kafka: KafkaSettings, host: str, port: int) -> BaseException | None:
    """What a plain connection to a server meets: aiokafka's clients keep it for their log."""
    kwargs = client_kwargs(kafka) | {"request_timeout_ms": TRIAL_TIMEOUT_MS}
    del kwargs["bootstrap_servers"]
    try:
        (await create_conn(host, port, **kwargs)).close()
    except (KafkaError, OSError, TimeoutError) as error:
        return error
    return None


def _advice(error: BaseException) -> str:
    match error:
        case SaslAuthenticationFailed():
            return (
                "it refuses this user or password: set kafka.username and HEADRACE_KAFKA__PASSWORD to what it knows, then "
                "start again. Nothing was read or written"
            )
        case UnsupportedSaslMechanismError():
            return "it doesn't take this mechanism: set kafka.sasl_mechanism to one that it has"
        case ssl.SSLCertVerificationError():
            return (
                "its certificate isn't trusted: set kafka.ssl_ca_file to the PEM of the CA that signed it, and "
                "kafka.bootstrap_servers to a name that stands in it"
            )
        case ConnectionRefusedError() | TimeoutError() | socket.gaierror():
            return "start one with `headrace broker`, or set HEADRACE_KAFKA__BOOTSTRAP_SERVERS to yours"
        case _:
            return (
                "start one with `headrace broker`, or set HEADRACE_KAFKA__BOOTSTRAP_SERVERS to yours. Where one runs there: "
                "kafka.security_protocol, user, password or certificates may not be what it wants"
            )


def is_refusal(error: BaseException) -> bool:
    """Whether the broker knows the user and doesn't allow what was asked."""
    return isinstance(
        error,
        TopicAuthorizationFailedError
        | GroupAuthorizationFailedError
        | ClusterAuthorizationFailedError
        | TransactionalIdAuthorizationFailed,
    )


def explained(kafka: KafkaSettings, error: BaseException) -> str:
    """An error for the log. A refusal names the user and what was refused, a missing topic its name; and what to do."""
    if isinstance(error, UnknownTopicOrPartitionError) and error.args:
        return (
            f"topic {error.args[0]} isn't there; `headrace check` tells its shape. One that is only written, or a changelog, can "
            "be made anew, and work goes on here; an input has to come back as it was (docs/operations.md, When a topic was "
            "deleted)"
        )
    if not is_refusal(error):
        return f"{type(error).__name__}: {error}"[:300]
    what = {
        TopicAuthorizationFailedError: "topic", GroupAuthorizationFailedError: "consumer group",
        TransactionalIdAuthorizationFailed: "transactional id",
    }.get(type(error), "cluster")  # fmt: skip
    named = [str(name) for arg in error.args for name in (sorted(arg) if isinstance(arg, set | frozenset) else [arg])]
    return (
        f"Kafka refuses user {kafka.username or 'ANONYMOUS'} what it needs on {what} {', '.join(named) or '(not named)'}; "
        "`headrace check --acls` prints all rights. Work goes on here once it is given"
    )


@asynccontextmanager
async def admin(kafka: KafkaSettings) -> AsyncIterator[AIOKafkaAdminClient]:
    """An admin client.

    Raises:
        BrokerError: no broker answers. Retryable.
    """
    client = AIOKafkaAdminClient(**client_kwargs(kafka))
    try:
        await client.start()
    except (KafkaError, OSError, TimeoutError) as error:
        await client.close()
        raise await unreachable(kafka, error) from error
    try:
        yield client
    finally:
        await client.close()
