"""The secured broker's certificates, users and rights; and what is said when Kafka refuses us."""

import datetime as dt
import logging
import shlex
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import (
    GroupAuthorizationFailedError,
    KafkaError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
)
from aiokafka.protocol.admin import CreateAclsRequest
from cryptography import x509

from app.broker.acls import Acl, line, set_acls
from app.broker.certificates import ensure_certificates
from app.broker.secure import Secured
from app.errors import BrokerError
from app.kafka import explained
from app.logs import NoTraces
from app.rights import KINDS, Kind, acls
from app.settings import KafkaSettings, Settings, load

NOW = dt.datetime(2026, 12, 1, tzinfo=dt.UTC)


def certificate(folder: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate((folder / "broker.pem").read_bytes())


def test_certificate_is_of_our_authority_and_names_the_host(tmp_path: Path) -> None:
    ensure_certificates(tmp_path, "kafka.example.org", NOW)
    made, authority = certificate(tmp_path), x509.load_pem_x509_certificate((tmp_path / "ca.pem").read_bytes())
    made.verify_directly_issued_by(authority)
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert set(names.get_values_for_type(x509.DNSName)) == {"localhost", "kafka.example.org"}
    assert "127.0.0.1" in map(str, names.get_values_for_type(x509.IPAddress))


def test_certificate_is_kept_until_it_ends_or_the_host_changes(tmp_path: Path) -> None:
    ensure_certificates(tmp_path, "127.0.0.1", NOW)
    authority, first = (tmp_path / "ca.pem").read_bytes(), certificate(tmp_path)
    ensure_certificates(tmp_path, "127.0.0.1", NOW + dt.timedelta(days=100))
    assert certificate(tmp_path) == first
    ensure_certificates(tmp_path, "127.0.0.1", NOW + dt.timedelta(days=800))
    second = certificate(tmp_path)
    assert second.serial_number != first.serial_number
    ensure_certificates(tmp_path, "10.1.2.3", NOW + dt.timedelta(days=800))
    assert certificate(tmp_path).serial_number != second.serial_number
    assert (tmp_path / "ca.pem").read_bytes() == authority  # clients needn't be told


def test_secrets_are_their_owner_s_and_passwords_stay(tmp_path: Path) -> None:
    first = Secured(tmp_path, "127.0.0.1", {"worker": []})
    first.prepare("127.0.0.1:9093")
    second = Secured(tmp_path, "127.0.0.1", {"worker": []})
    second.prepare("127.0.0.1:9094")
    assert second.passwords == first.passwords
    assert len(set(first.passwords.values())) == 2
    assert min(map(len, first.passwords.values())) >= 32
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "secure").iterdir()}
    assert modes.pop("ca.pem") & 0o022 == 0
    assert set(modes.values()) == {0o600}, modes
    text = (tmp_path / "secure" / "worker.env").read_text()
    assert "BOOTSTRAP_SERVERS=127.0.0.1:9094\n" in text
    assert f"PASSWORD={first.passwords['worker']}\n" in text


def test_no_listener_is_open_and_nothing_is_allowed_that_isn_t_named(tmp_path: Path) -> None:
    properties = Secured(tmp_path, "127.0.0.1", {"worker": []}).prepare("127.0.0.1:9093")
    protocols = [pair.split(":")[1] for pair in properties["listener.security.protocol.map"].split(",")]
    assert sorted(protocols) == ["SASL_SSL", "SSL", "SSL"]
    assert properties["listener.name.internal.ssl.client.auth"] == "required"
    assert properties["listener.name.controller.ssl.client.auth"] == "required"
    assert properties["allow.everyone.if.no.acl.found"] == "false"
    assert properties["authorizer.class.name"].endswith("StandardAuthorizer")


def test_damaged_user_file_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    Secured(tmp_path, "127.0.0.1", {"worker": []}).prepare("127.0.0.1:9093")
    (tmp_path / "secure" / "worker.env").write_text("")
    with pytest.raises(BrokerError, match=r"worker\.env holds no password.*remove it"):
        Secured(tmp_path, "127.0.0.1", {"worker": []}).prepare("127.0.0.1:9093")


def granted(kind: Kind, settings: Settings | None = None) -> dict[str, set[str]]:
    return {acl.name: set(acl.operations) for acl in acls(settings or load(), kind)}


def test_worker_reads_sources_and_can_t_make_keys_or_write_its_own_input() -> None:
    rights = granted("worker")
    assert rights["raw-events"] == {"Read", "Describe", "DescribeConfigs", "Create"}
    assert rights["api-keys"] == {"Describe", "Create"}
    assert rights["clean-events"] == {"Write", "Describe", "Create"}
    assert {"Read", "Write"} <= rights["model-requests"]


def test_checked_topics_need_no_right_to_make_them() -> None:
    settings = load()
    checked = settings.model_copy(update={"kafka": settings.kafka.model_copy(update={"manage_topics": "check"})})
    assert all("Create" not in operations for operations in granted("worker", checked).values())


def test_gateway_and_reader_can_t_change_what_workers_rest_on() -> None:
    for kind in ("gateway", "reader"):
        writes = {name for name, operations in granted(kind).items() if "Write" in operations}
        assert writes == ({"raw-events", "gateway-replies"} if kind == "gateway" else set())
    assert "api-keys" not in granted("reader")
    assert "Read" not in granted("gateway")["raw-events"]


@pytest.mark.parametrize("kind", KINDS)
def test_rights_stay_within_the_prefix_and_the_sources(kind: Kind) -> None:
    settings = load()
    shop = settings.model_copy(update={"kafka": settings.kafka.model_copy(update={"topic_prefix": "shop."})})
    assert all(name.startswith("shop.") for name in granted(kind, shop))


def test_line_is_one_that_a_shell_and_kafka_acls_take() -> None:
    acl = Acl(resource="group", name="my group", operations=("Read", "Describe"), prefixed=True)
    words = shlex.split(line(acl, "kafka:9093", "alice"))
    assert words[words.index("--allow-principal") + 1] == "User:alice"
    assert words[words.index("--group") + 1] == "my group"
    assert [words[n + 1] for n, word in enumerate(words) if word == "--operation"] == ["Read", "Describe"]
    assert words[-2:] == ["--resource-pattern-type", "prefixed"]


async def test_all_rights_of_a_user_are_set_with_one_request_and_a_refused_one_is_an_error() -> None:
    sent: list[CreateAclsRequest] = []
    answer = SimpleNamespace(creation_responses=[(0, None), (0, None), (0, None)])

    async def send(request: CreateAclsRequest) -> SimpleNamespace:
        sent.append(request)
        return answer

    client: Any = SimpleNamespace(_send_request=send)
    mine = [
        Acl(resource="topic", name="t", operations=("Read", "Write")),
        Acl(resource="group", name="g", operations=("Read",), prefixed=True),
    ]
    await set_acls(client, "alice", mine)
    (built,) = [request.prepare({30: (0, 3)}) for request in sent]
    assert built.to_object()["creations"] == [
        {
            "resource_type": kind, "resource_name": name, "resource_pattern_type": pattern, "principal": "User:alice",
            "host": "*", "operation": operation, "permission_type": 3,
        }
        for kind, name, pattern, operation in ((2, "t", 3, 3), (2, "t", 3, 4), (3, "g", 4, 3))
    ]  # fmt: skip
    answer.creation_responses[2] = (31, "not you")
    with pytest.raises(BrokerError, match="ClusterAuthorizationFailedError not you"):
        await set_acls(client, "alice", mine)


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (TopicAuthorizationFailedError({"b", "a"}), "topic a, b"),
        (TopicAuthorizationFailedError("orders"), "topic orders"),
        (GroupAuthorizationFailedError("headrace"), "consumer group headrace"),
        (TransactionalIdAuthorizationFailed("headrace-x-0"), "transactional id headrace-x-0"),
    ],
)
def test_refusal_names_user_and_what_was_refused_and_what_to_do(error: KafkaError, named: str) -> None:
    said = explained(KafkaSettings(username="alice"), error)
    assert f"refuses user alice what it needs on {named};" in said
    assert "headrace check --acls" in said
    assert explained(KafkaSettings(), KafkaError("x")) == "KafkaError: KafkaError: x"


def test_faust_reports_an_error_of_ours_in_one_line_and_others_in_full() -> None:
    def shown(error: Exception) -> logging.LogRecord:
        record = logging.LogRecord("faust.worker", logging.ERROR, "", 0, "Error: %r", (error,), (None, error, None))  # type: ignore[arg-type]
        assert NoTraces().filter(record)
        return record

    assert shown(BrokerError("no Kafka")).getMessage() == "BrokerError: no Kafka"
    assert shown(BrokerError("no Kafka")).exc_info is None
    assert shown(ValueError("x")).exc_info is not None
