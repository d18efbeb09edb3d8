"""`headrace broker --secure` and what works through it; and workers that Kafka refuses, with real processes."""

import asyncio
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka
import pytest
import uvloop
from aiokafka.admin import NewTopic
from aiokafka.errors import GroupAuthorizationFailedError, TopicAuthorizationFailedError
from aiokafka.structs import TopicPartition

from app.broker.acls import Acl
from app.delivery.probe import probe, record_at
from app.errors import BrokerError
from app.kafka import admin, client_kwargs
from app.settings import KafkaSettings, load
from tests.helpers import topics
from tests.helpers.broker import BrokerProcess
from tests.helpers.gateway import WebProcess, an_event
from tests.helpers.processes import Worker, wait_until
from tests.helpers.records import envelope
from tests.helpers.secure import SecureKafka

pytestmark = pytest.mark.integration

PREFIX = "shop."
COUNT = 40


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerProcess, str]]:
    """`headrace broker --secure`, which has stopped; and the password that it gave the user `worker`."""
    process = BrokerProcess(
        tmp_path_factory.mktemp("secure"), "--port", "0", "--secure", HEADRACE_KAFKA__TOPIC_PREFIX=PREFIX
    )
    try:
        process.ready()
        assert process.stop() == 0
        written = (process.data_dir / "secure" / "worker.env").read_text()
        yield process, written.split("PASSWORD=")[1].split()[0]
    finally:
        process.end()


@pytest.fixture(scope="module")
def broker(command: tuple[BrokerProcess, str]) -> Iterator[SecureKafka]:
    """What the command made, started again."""
    settings = load()
    kafka = settings.kafka.model_copy(update={"topic_prefix": PREFIX})
    broker = SecureKafka(command[0].data_dir, settings.model_copy(update={"kafka": kafka}))
    broker.start()
    yield broker
    broker.stop()


def environment(broker: SecureKafka, user: str, **more: str) -> dict[str, str]:
    prefix = {"HEADRACE_KAFKA__TOPIC_PREFIX": PREFIX, "HEADRACE_KAFKA__SESSION_TIMEOUT_S": "6"}
    return {**broker.environment(user), **prefix, **more}


async def send(broker: SecureKafka, first: int, count: int = COUNT) -> None:
    """Payments, whose result a rule gives; each is sent twice."""
    values = [
        (b"u%d" % (n % 7), envelope(event_id=f"e{n}", event_type="payment.failed")) for n in range(first, first + count)
    ]
    await topics.produce(broker.internal, f"{PREFIX}raw-events", values * 2)


async def results(broker: SecureKafka, count: int, seconds: float = 60) -> list[str]:
    """Ids of all results, once there are so many, in the order of their numbers."""
    async with asyncio.timeout(seconds):
        while len(found := await topics.read(broker.internal, f"{PREFIX}ai-results")) < count:
            await asyncio.sleep(0.3)
    return sorted((r.key.decode() for r in found), key=lambda name: int(name[1:]))


def denied(broker: SecureKafka, user: str) -> list[str]:
    """What the authorizer refused a user, by its log."""
    said = broker.log_file.read_text(encoding="utf-8").splitlines()
    return [line for line in said if f"User:{user}" in line and "Denied" in line]


async def test_worker_gateway_and_reader_work_with_exactly_their_rights(broker: SecureKafka, tmp_path: Path) -> None:
    first, second = (Worker(tmp_path / name, environment(broker, "worker")) for name in ("first", "second"))
    web = WebProcess(tmp_path / "web", environment(broker, "gateway"), "--only", "gateway")
    ring = WebProcess(tmp_path / "keys", environment(broker, "admin"))
    try:
        first.start()
        await asyncio.to_thread(first.wait_ready)
        await send(broker, 0)
        await results(broker, 1)
        assert await asyncio.to_thread(first.stop) == 0
        second.start()  # without a State of its own: it reads the changelogs
        said, _ = await asyncio.gather(
            asyncio.to_thread(ring.command, "keys", "create", "--scope", "produce"), asyncio.to_thread(web.start)
        )
        token = said.split()[-1]
        async with web.client(token) as http:
            event = an_event(f"e{COUNT}", event_type="payment.failed", entity_id="u1")
            wait_until(lambda: web.answers("/readyz"), 30, "the gateway is ready")
            async with asyncio.timeout(30):
                while (answer := await http.post("/v1/events", json=event)).status_code == 401:
                    await asyncio.sleep(0.1)
        assert answer.status_code == 202, answer.text
        assert await results(broker, COUNT + 1) == [f"e{n}" for n in range(COUNT + 1)]
        assert await asyncio.to_thread(second.stop) == 0
    finally:
        for each in (first, second, web):
            each.kill()
    assert denied(broker, "worker") == denied(broker, "gateway") == []
    await _reader_reads_results_and_nothing_secret(broker)


async def _reader_reads_results_and_nothing_secret(broker: SecureKafka) -> None:
    kwargs = client_kwargs(broker.settings("reader"))
    consumer = aiokafka.AIOKafkaConsumer(
        f"{PREFIX}ai-results", group_id=f"{PREFIX}reader-1", auto_offset_reset="earliest", **kwargs
    )
    await consumer.start()
    async with asyncio.timeout(30):
        assert (await consumer.getone()).value
    await consumer.commit()
    await consumer.stop()
    assert f"{PREFIX}api-keys" not in await _seen(broker, "reader")
    with pytest.raises(TopicAuthorizationFailedError):
        await _write(broker, "reader", f"{PREFIX}raw-events")
    with pytest.raises(TopicAuthorizationFailedError):
        await _write(broker, "worker", f"{PREFIX}api-keys")


async def _seen(broker: SecureKafka, user: str) -> list[str]:
    async with admin(broker.settings(user)) as client:
        return list(await client.list_topics())


async def _write(broker: SecureKafka, user: str, topic: str) -> None:
    producer = aiokafka.AIOKafkaProducer(**client_kwargs(broker.settings(user)))
    await producer.start()
    try:
        await producer.send_and_wait(topic, b"x", partition=0)
    finally:
        await producer.stop()


async def test_rights_taken_from_a_running_worker_are_named_and_it_goes_on_with_them(
    broker: SecureKafka, tmp_path: Path
) -> None:
    taken = [
        (Acl(resource="topic", name=f"{PREFIX}clean-events", operations=("Write",)), f"topic {PREFIX}clean-events"),
        (Acl(resource="topic", name=f"{PREFIX}raw-events", operations=("Read",)), f"topic {PREFIX}raw-events"),
        (
            Acl(resource="group", name=f"{PREFIX}headrace", operations=("Read",), prefixed=True),
            f"consumer group {PREFIX}headrace",
        ),
    ]
    before = len(await topics.read(broker.internal, f"{PREFIX}ai-results"))
    worker = Worker(tmp_path / "worker", environment(broker, "worker"))
    try:
        worker.start()
        await asyncio.to_thread(worker.wait_ready)
        sent = 1000
        for acl, named in taken:
            await broker.take("worker", acl)
            await send(broker, sent)
            sent += COUNT
            words = f"Kafka refuses user worker what it needs on {named};"
            await asyncio.to_thread(wait_until, lambda w=words: w in worker.log.read_text(), 40, words)  # type: ignore[misc]
            await broker.give("worker", acl)
        expected = before + sent - 1000
        found = await results(broker, expected)
        assert len(found) == len(set(found)) == expected
        assert worker.process is not None
        assert worker.process.poll() is None
        assert await asyncio.to_thread(worker.stop) == 0
    finally:
        worker.kill()


def test_worker_with_a_wrong_password_ends_with_the_reason(broker: SecureKafka, tmp_path: Path) -> None:
    worker = Worker(tmp_path / "worker", environment(broker, "worker", HEADRACE_KAFKA__PASSWORD="wrong-one"))
    worker.start()
    assert worker.process is not None
    assert worker.process.wait(60) == 1
    said = worker.log.read_text()
    assert "answers with SASL_SSL PLAIN as worker (SaslAuthenticationFailed: Authentication failed" in said
    assert "set kafka.username and HEADRACE_KAFKA__PASSWORD to what it knows" in said
    assert "wrong-one" not in said
    assert "Traceback" not in said


async def test_unknown_authority_and_unknown_mechanism_say_which_setting(broker: SecureKafka) -> None:
    good = broker.settings("worker")
    wrong: list[tuple[KafkaSettings, str]] = [
        (good.model_copy(update={"ssl_ca_file": None}), "certificate isn't trusted: set kafka.ssl_ca_file"),
        (good.model_copy(update={"sasl_mechanism": "SCRAM-SHA-512"}), "set kafka.sasl_mechanism"),
        (KafkaSettings(bootstrap_servers=broker.bootstrap), "kafka.security_protocol, user, password or certificates"),
    ]
    for settings, advice in wrong:
        with pytest.raises(BrokerError, match=advice):
            async with admin(settings):
                pass


async def test_group_that_isn_t_ours_is_refused(broker: SecureKafka) -> None:
    consumer = aiokafka.AIOKafkaConsumer(group_id="somebody-else", **client_kwargs(broker.settings("worker")))
    await consumer.start()
    try:
        consumer.assign([TopicPartition(f"{PREFIX}raw-events", 0)])
        with pytest.raises(GroupAuthorizationFailedError):
            async with asyncio.timeout(30):
                await consumer.committed(TopicPartition(f"{PREFIX}raw-events", 0))
    finally:
        await consumer.stop()


def test_looking_into_a_topic_over_tls_doesn_t_wait_for_the_connection_to_close(broker: SecureKafka) -> None:
    """uvloop waits 30 s for a closing connection on which an answer is due (see app.tls_close)."""

    async def look() -> Any:
        topic = "looked-at"
        await topics.create(broker.internal, topic, 1)
        await topics.produce(broker.internal, topic, [(b"k", b"v")])
        async with asyncio.timeout(20), probe(broker.settings("admin")) as consumer:
            found = await record_at(consumer, TopicPartition(topic, 0), 0, 1)
        return found.value if found else None

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(look()) == b"v"


async def test_command_prints_no_secret_and_its_users_and_their_rights_stay_over_a_restart(
    command: tuple[BrokerProcess, str], broker: SecureKafka
) -> None:
    process, password = command
    secure = process.data_dir / "secure"
    shown = process.said + process.out.read_text()
    written = [p for p in process.data_dir.rglob("*.log") if p.is_file()]
    assert f". {shlex.quote(str(secure / 'worker.env'))}" in shown
    assert password not in shown
    assert written
    assert not [p for p in written if password.encode() in p.read_bytes()]
    assert stat.S_IMODE((process.data_dir / "server.properties").stat().st_mode) == 0o600
    settings = KafkaSettings(
        bootstrap_servers=broker.bootstrap, security_protocol="SASL_SSL", username="worker", password=password,  # type: ignore[arg-type]
        ssl_ca_file=secure / "ca.pem",
    )  # fmt: skip
    async with admin(settings) as client:
        for name, code in (("somebody-s", 29), (f"{PREFIX}headrace-x-changelog", 0)):  # 29: TOPIC_AUTHORIZATION_FAILED
            answer = await client.create_topics([NewTopic(name, 1, 1)], validate_only=True)
            assert [found for _, found, *_ in answer.topic_errors] == [code]
