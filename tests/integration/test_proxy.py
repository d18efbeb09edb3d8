"""The proxy that stands between workers and the broker in fault runs does what it says."""

import asyncio

import aiokafka
import pytest
from aiokafka.errors import KafkaError

from app.broker.kafka import EmbeddedKafka
from tests.helpers import topics
from tests.helpers.proxy import PRODUCE, KafkaProxy

pytestmark = [pytest.mark.integration, pytest.mark.fault]


async def send(port: int, topic: str, value: bytes, timeout_ms: int = 5000, idempotent: bool = False) -> None:
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=f"127.0.0.1:{port}", request_timeout_ms=timeout_ms, enable_idempotence=idempotent
    )
    await producer.start()
    try:
        await producer.send_and_wait(topic, value, partition=0)
    finally:
        await producer.stop()


async def test_clients_stay_with_it_and_a_cut_ends_them(kafka: EmbeddedKafka, prefix: str) -> None:
    topic = f"{prefix}through"
    await topics.create(kafka.bootstrap, topic, 1)
    with KafkaProxy(kafka.port) as proxy:
        await send(proxy.port, topic, b"1")
        proxy.cut()
        with pytest.raises(KafkaError):
            await send(proxy.port, topic, b"2")
        proxy.heal()
        await send(proxy.port, topic, b"3")
        proxy.hold()
        sending = asyncio.ensure_future(send(proxy.port, topic, b"4", timeout_ms=40_000))
        await send(kafka.port, topic, b"5")  # the broker itself answers meanwhile
        assert not sending.done()
        proxy.heal()
        await sending
    values = [record.value for record in await topics.read(kafka.bootstrap, topic, 1)]
    assert values == [b"1", b"3", b"5", b"4"]


async def test_a_lost_answer_was_done_and_a_halved_request_was_not(kafka: EmbeddedKafka, prefix: str) -> None:
    topic = f"{prefix}lost"
    await topics.create(kafka.bootstrap, topic, 1)
    with KafkaProxy(kafka.port) as proxy:
        proxy.lose(PRODUCE)
        await send(proxy.port, topic, b"plain")  # sent again: written twice
        assert proxy.lost[PRODUCE] == 1
        proxy.lose(PRODUCE)
        await send(proxy.port, topic, b"idempotent", idempotent=True)  # sent again, and known by its number
        proxy.halve()
        await send(proxy.port, topic, b"halved " * 50)
        assert proxy.left == 0
    values = [record.value for record in await topics.read(kafka.bootstrap, topic, 1)]
    assert values == [b"plain", b"plain", b"idempotent", b"halved " * 50]
