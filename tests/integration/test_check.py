"""`headrace check` as a user runs it."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.broker.jars import jars, java
from app.broker.kafka import EmbeddedKafka
from tests.helpers.broker import ROOT, clean_env
from tests.helpers.processes import free_port
from tests.helpers.records import envelope
from tests.helpers.topics import create, produce

pytestmark = pytest.mark.integration

USER, PASSWORD = "alice", "alice-secret"


def check(*arguments: str, stdin: bytes = b"", **env: str) -> tuple[int, str]:
    """Exit status, and everything it said."""
    done = subprocess.run(
        [sys.executable, "-m", "app", "check", *arguments],
        input=stdin, capture_output=True, env=clean_env(**env), cwd=ROOT, timeout=120, check=False,
    )  # fmt: skip
    return done.returncode, (done.stdout + done.stderr).decode()


def at(kafka: EmbeddedKafka, prefix: str = "", **env: str) -> dict[str, str]:
    return {"HEADRACE_KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap, "HEADRACE_KAFKA__TOPIC_PREFIX": prefix, **env}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EmbeddedKafka, Path]]:
    """A broker that wants TLS and a password, and the file of its CA."""
    folder = tmp_path_factory.mktemp("secured")
    cert, key, both = folder / "cert.pem", folder / "key.pem", folder / "both.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=broker", "-days", "2",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)],
        check=True, capture_output=True,
    )  # fmt: skip
    both.write_text(key.read_text() + cert.read_text())
    listener, module = "listener.name.clients", "org.apache.kafka.common.security"
    broker = EmbeddedKafka(
        folder / "kafka",
        properties={
            "listener.security.protocol.map": "CLIENTS:SASL_SSL,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
            f"{listener}.ssl.keystore.type": "PEM",
            f"{listener}.ssl.keystore.location": str(both),
            f"{listener}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            f"{listener}.plain.sasl.jaas.config": f'{module}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";',
            f"{listener}.scram-sha-512.sasl.jaas.config": f"{module}.scram.ScramLoginModule required;",
        },
    )
    broker.start()
    try:
        subprocess.run(
            [str(java()), "-cp", f"{jars()}/*", "kafka.admin.ConfigCommand", "--bootstrap-server", broker.internal,
             "--alter", "--entity-type", "users", "--entity-name", USER, "--add-config",
             f"SCRAM-SHA-512=[password={PASSWORD}]"],
            check=True, capture_output=True,
        )  # fmt: skip
        yield broker, cert
    finally:
        broker.stop()


def login(secured: tuple[EmbeddedKafka, Path], mechanism: str, password: str = PASSWORD) -> dict[str, str]:
    broker, cert = secured
    return at(
        broker,
        HEADRACE_KAFKA__SECURITY_PROTOCOL="SASL_SSL",
        HEADRACE_KAFKA__SASL_MECHANISM=mechanism,
        HEADRACE_KAFKA__USERNAME=USER,
        HEADRACE_KAFKA__PASSWORD=password,
        HEADRACE_KAFKA__SSL_CA_FILE=str(cert),
    )


def test_fresh_cluster_is_well(tmp_path: Path) -> None:
    broker = EmbeddedKafka(tmp_path)
    broker.start()
    try:
        status, said = check(**at(broker))
    finally:
        broker.kill()
    assert status == 0, said
    assert "ok    reachable; 1 broker" in said
    assert "raw-events: not there yet; a worker makes it" in said
    assert "ok    consumer group headrace" in said


def test_nobody_there_is_one_fail_line_and_status_1() -> None:
    port = free_port()
    status, said = check(HEADRACE_KAFKA__BOOTSTRAP_SERVERS=f"127.0.0.1:{port}")
    assert status == 1
    assert f"FAIL  no Kafka at 127.0.0.1:{port}" in said
    assert "Traceback" not in said


def test_wrong_setting_is_named_with_status_2() -> None:
    status, said = check(HEADRACE_KAFKA__PARTITIONS="many")
    assert status == 2
    assert "kafka.partitions, given 'many'" in said
    assert "Traceback" not in said


def test_missing_topics_fail_where_none_may_be_made(kafka: EmbeddedKafka, prefix: str) -> None:
    status, said = check(**at(kafka, prefix, HEADRACE_KAFKA__MANAGE_TOPICS="check"))
    assert status == 1
    assert f"FAIL  {prefix}clean-events: missing, and kafka.manage_topics is `check`" in said


async def test_backlog_and_newest_record_of_a_source_are_shown(kafka: EmbeddedKafka, prefix: str) -> None:
    await create(kafka.bootstrap, f"{prefix}raw-events", partitions=2)
    for number in range(3):
        value = envelope(event_id=f"e{number}", event_type="payment.failed")
        await produce(kafka.bootstrap, f"{prefix}raw-events", [(b"u%d" % number, value)])
    status, said = await asyncio.to_thread(check, **at(kafka, prefix))
    assert status == 0, said
    assert f"raw-events: topic {prefix}raw-events, start earliest, backlog 3 records" in said
    assert "event_id = e2" in said
    assert "payment" in said


async def test_newest_record_that_is_no_event_fails_with_its_reason(kafka: EmbeddedKafka, prefix: str) -> None:
    await create(kafka.bootstrap, f"{prefix}raw-events")
    await produce(kafka.bootstrap, f"{prefix}raw-events", [(b"u", b"{broken")])
    status, said = await asyncio.to_thread(check, **at(kafka, prefix))
    assert status == 1
    assert f"{prefix}raw-events partition" in said
    assert "a dead letter, invalid-json" in said
    assert "{broken" not in said


def test_advertised_name_that_doesn_t_lead_here_is_diagnosed(tmp_path: Path) -> None:
    broker = EmbeddedKafka(tmp_path, advertised_host="kafka.example.invalid")
    broker.start()
    try:
        status, said = check(HEADRACE_KAFKA__BOOTSTRAP_SERVERS=f"127.0.0.1:{broker.port}")
    finally:
        broker.kill()
    assert status == 1
    assert f"FAIL  broker 1 says it is at kafka.example.invalid:{broker.port}, and its name can't be resolved" in said
    assert "advertised.listeners" in said


def test_source_topic_with_larger_records_than_ours_is_a_warning(tmp_path: Path) -> None:
    broker = EmbeddedKafka(tmp_path, properties={"message.max.bytes": "5000000"})
    broker.start()
    try:
        asyncio.run(create(broker.bootstrap, "raw-events"))
        status, said = check(**at(broker))
    finally:
        broker.kill()
    assert status == 0, said
    assert "warn  raw-events: records may have 5000000 bytes" in said


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_broker_with_tls_and_password_is_reached(secured: tuple[EmbeddedKafka, Path], mechanism: str) -> None:
    status, said = check(**login(secured, mechanism))
    assert status == 0, said
    assert "(SASL_SSL)" in said
    assert "ok    transactions with ids headrace-*" in said


def test_wrong_password_is_said_without_it(secured: tuple[EmbeddedKafka, Path]) -> None:
    status, said = check(**login(secured, "SCRAM-SHA-512", password="wrong-one"))
    assert status == 1
    assert "answers with SASL_SSL SCRAM-SHA-512 as alice" in said
    assert "wrong-one" not in said


def test_unknown_ca_is_refused(secured: tuple[EmbeddedKafka, Path]) -> None:
    env = login(secured, "PLAIN")
    del env["HEADRACE_KAFKA__SSL_CA_FILE"]
    status, said = check(**env)
    assert status == 1
    assert "FAIL  no Kafka at" in said


def test_sample_shows_the_event_without_asking_kafka(tmp_path: Path) -> None:
    sample = tmp_path / "events.jsonl"
    sample.write_bytes(envelope(event_id="s1", event_type="order.created") + b"\n")
    nobody = {"HEADRACE_KAFKA__BOOTSTRAP_SERVERS": f"127.0.0.1:{free_port()}"}
    status, said = check("--sample", str(sample), **nobody)
    assert status == 0, said
    assert "event_id = s1" in said
    assert check("--sample", "-", stdin=sample.read_bytes(), **nobody) == (status, said)


def test_bad_sample_fails_and_unknown_source_is_a_usage_error(tmp_path: Path) -> None:
    sample = tmp_path / "events.jsonl"
    sample.write_text(json.dumps({"event_type": "order.created"}))
    status, said = check("--sample", str(sample))
    assert status == 1
    assert "a dead letter, missing-field" in said
    assert "event_id" in said
    status, said = check("--sample", str(sample), "--source", "elsewhere")
    assert status == 2
    assert "there is no source 'elsewhere'; declared are raw-events" in said


def test_acls_name_user_topics_changelogs_group_and_transactions() -> None:
    status, said = check(
        "--acls",
        HEADRACE_KAFKA__TOPIC_PREFIX="shop.",
        HEADRACE_KAFKA__SECURITY_PROTOCOL="SASL_SSL",
        HEADRACE_KAFKA__USERNAME=USER,
    )
    assert status == 0
    lines = said.splitlines()
    assert all(line.startswith("kafka-acls.sh --bootstrap-server ") for line in lines)
    assert all("--allow-principal User:alice" in line for line in lines)
    for part in (
        "--topic shop.raw-events",
        "--topic shop.ai-results",
        "--topic shop.headrace- --resource-pattern-type prefixed",
        "--group shop.headrace --resource-pattern-type prefixed",
        "--transactional-id shop.headrace- --resource-pattern-type prefixed",
    ):
        assert [line for line in lines if part in line], part
