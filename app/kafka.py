"""The one place that turns `KafkaSettings` into client arguments."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from app.errors import BrokerError
from app.settings import KafkaSettings

__all__ = ["admin", "client_kwargs", "ssl_context", "unreachable"]


def ssl_context(kafka: KafkaSettings) -> ssl.SSLContext | None:
    """TLS as the settings say, or None without it.

    Raises:
        BrokerError: a certificate file can't be read. Not worth retrying.
    """
    if kafka.security_protocol not in ("SSL", "SASL_SSL"):
        return None
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
    kwargs: dict[str, Any] = {
        "bootstrap_servers": [server.strip() for server in kafka.bootstrap_servers.split(",")],
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


def unreachable(kafka: KafkaSettings, error: BaseException) -> BrokerError:
    """The error to show when no broker answers."""
    name = type(error).__name__
    why = str(error).removeprefix(f"{name}: ")
    secured: str = kafka.security_protocol
    if secured.startswith("SASL"):
        secured += f" {kafka.sasl_mechanism} as {kafka.username}"
    return BrokerError(
        f"no Kafka at {kafka.bootstrap_servers} answers with {secured} ({name}: {why}); start one with `headrace broker`, or "
        "set HEADRACE_KAFKA__BOOTSTRAP_SERVERS to yours. Where one runs there: kafka.security_protocol, user, password or "
        "certificates may not be what it wants"
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
        raise unreachable(kafka, error) from error
    try:
        yield client
    finally:
        await client.close()
