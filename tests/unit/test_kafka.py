"""Client arguments from settings."""

import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import NodeNotReadyError
from pydantic import ValidationError

from app.errors import BrokerError
from app.kafka import admin, client_kwargs, unreachable
from app.settings import KafkaSettings
from tests.helpers.processes import free_port


def kafka(**given: Any) -> KafkaSettings:
    return KafkaSettings(**given)


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "2",
         "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True,
    )  # fmt: skip
    return cert, key


def test_plain_settings_give_servers_and_time_limit_only() -> None:
    assert client_kwargs(kafka(bootstrap_servers="a:1, b:2", request_timeout_s=41)) == {
        "bootstrap_servers": ["a:1", "b:2"],
        "security_protocol": "PLAINTEXT",
        "request_timeout_ms": 41_000,
    }


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_sasl_gives_mechanism_user_and_password(mechanism: str) -> None:
    given = client_kwargs(
        kafka(security_protocol="SASL_PLAINTEXT", sasl_mechanism=mechanism, username="alice", password="s3cret")
    )
    assert (given["sasl_mechanism"], given["sasl_plain_username"], given["sasl_plain_password"]) == (
        mechanism,
        "alice",
        "s3cret",
    )
    assert "ssl_context" not in given


def test_sasl_without_user_is_refused() -> None:
    with pytest.raises(ValidationError, match="username is needed"):
        kafka(security_protocol="SASL_SSL")


@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL"])
def test_tls_checks_the_brokers_certificate_and_its_name(protocol: str) -> None:
    context = client_kwargs(kafka(security_protocol=protocol, username="alice"))["ssl_context"]
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert context.check_hostname


def test_own_ca_is_the_only_one_trusted(certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    given = client_kwargs(kafka(security_protocol="SSL", ssl_ca_file=cert, ssl_cert_file=cert, ssl_key_file=key))
    assert [dict(part[0] for part in ca["subject"]) for ca in given["ssl_context"].get_ca_certs()] == [
        {"commonName": "localhost"}
    ]


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_certificate_file_that_can_t_be_used_is_said(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(BrokerError, match="ssl_ca_file, ssl_cert_file or ssl_key_file can't be used"):
        client_kwargs(kafka(security_protocol="SSL", ssl_ca_file=path))


async def test_nobody_there_names_the_servers_and_what_to_do() -> None:
    servers = f"127.0.0.1:{free_port()}"
    with pytest.raises(
        BrokerError, match=f"no Kafka at {servers} answers with PLAINTEXT .*headrace broker.*BOOTSTRAP_SERVERS"
    ):
        async with admin(kafka(bootstrap_servers=servers)):
            pass


async def test_error_names_the_user_and_never_the_password() -> None:
    servers = f"127.0.0.1:{free_port()}"
    settings = kafka(bootstrap_servers=servers, security_protocol="SASL_SSL", username="alice", password="s3cret")
    said = str(await unreachable(settings, OSError("refused")))
    assert "SASL_SSL PLAIN as alice" in said
    assert "s3cret" not in said


async def test_a_cluster_that_names_no_broker_is_waited_for_like_a_broker_that_is_not_ready() -> None:
    client = AIOKafkaClient(**client_kwargs(kafka()))
    with pytest.raises(NodeNotReadyError, match="no broker"):
        await client.coordinator_lookup(1, "some-id")
    await client.close()
    assert NodeNotReadyError.retriable
