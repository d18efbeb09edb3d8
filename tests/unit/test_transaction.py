"""A transaction: what its producer meets beside it ends the lane's try, never the worker."""

from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import IllegalOperation, KafkaError
from aiokafka.structs import TopicPartition

from app.delivery.outbox import Outbox
from app.delivery.transaction import Transaction


class LeftBehind:
    """A producer whose sender was fenced between the begin and the first batch."""

    async def begin_transaction(self) -> None:
        pass

    def create_batch(self) -> Any:
        builder = SimpleNamespace(append=lambda *record: True)
        return SimpleNamespace(_builder=builder, close=lambda: None)

    async def send_batch(self, *batch: object, partition: int) -> None:
        raise IllegalOperation("Can't send messages while not in transaction")


async def test_a_producer_that_left_its_transaction_is_an_error_of_kafka() -> None:
    out = Outbox(0)
    out.send("clean", b"k", b"v", partition=0)
    stage: Any = SimpleNamespace(changelog="changelog")
    with pytest.raises(KafkaError, match="isn't in its transaction any more"):
        await Transaction(out, 1, 1, [], 0).write(LeftBehind(), stage, TopicPartition("raw", 0), 1, "group")
