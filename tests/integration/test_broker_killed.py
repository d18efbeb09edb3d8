"""What a broker that is killed leaves of the transactions that were being committed."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiokafka
import pytest

from app.broker.kafka import EmbeddedKafka
from tests.helpers import topics

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

WRITERS = 40
"""Each in a loop of transactions, so that many are being committed when the broker is killed."""


async def test_transactions_are_whole_or_not_there_after_the_broker_was_killed(tmp_path: Path) -> None:
    """Not so with Kafka 4.3 and 4.4, which drop markers of commits while partitions have no leader: KAFKA-20734."""
    kafka = EmbeddedKafka(tmp_path)
    begun, partitions = asyncio.Event(), [(topic, partition) for topic in ("a", "b") for partition in range(4)]

    async def write(name: str) -> None:
        async with transactional(kafka, name) as producer:
            for number in itertools.count():
                async with producer.transaction():
                    for topic, partition in partitions:
                        await producer.send(topic, f"{name}-{number}".encode(), partition=partition)
                if number == 5:
                    begun.set()

    try:
        await asyncio.to_thread(kafka.start)
        for topic in ("a", "b"):
            await topics.create(kafka.bootstrap, topic)
        names = [f"w{number}" for number in range(WRITERS)]
        writers = [asyncio.create_task(write(name)) for name in names]
        await begun.wait()
        await asyncio.to_thread(kafka.kill)
        await asyncio.to_thread(kafka.start)
        for writer in writers:
            writer.cancel()
        await asyncio.gather(*writers, return_exceptions=True)
        for name in names:  # ends what each had open: nothing is hidden behind it then
            async with transactional(kafka, name):
                pass
        found = {at: set[bytes]() for at in partitions}
        for topic in ("a", "b"):
            for record in await topics.read(kafka.bootstrap, topic):
                found[topic, record.partition].add(record.value)
        everywhere, somewhere = set.intersection(*found.values()), set.union(*found.values())
        assert len(everywhere) > 5
        assert "likely deleted already" not in kafka.log_file.read_text()
        assert somewhere == everywhere
    finally:
        kafka.kill()


@asynccontextmanager
async def transactional(kafka: EmbeddedKafka, name: str) -> AsyncIterator[Any]:
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=kafka.bootstrap, transactional_id=name, retry_backoff_ms=10)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()
