"""Each private name of faust-streaming, mode-streaming and aiokafka that app/delivery uses: an upgrade fails here first."""

import inspect
from importlib.metadata import version

import aiokafka
import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.conn import AIOKafkaConnection
from aiokafka.consumer.fetcher import Fetcher, FetchResult, PartitionRecords
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.consumer.subscription_state import SubscriptionState, TopicPartitionState
from aiokafka.producer.message_accumulator import BatchBuilder, MessageAccumulator, MessageBatch
from aiokafka.producer.transaction_manager import TransactionManager
from faust.tables import manager as faust_tables
from faust.tables.recovery import Recovery
from faust.transport import consumer as faust_consumer
from faust.transport.drivers import aiokafka as driver
from prometheus_client import CollectorRegistry, Histogram

from app.metrics import observe_many


@pytest.mark.parametrize(
    ("package", "pinned"), [("faust-streaming", "0.15.3"), ("mode-streaming", "0.7.1"), ("aiokafka", "0.14.0")]
)
def test_the_three_packages_are_the_ones_that_were_read(package: str, pinned: str) -> None:
    assert version(package) == pinned


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (driver.AIOKafkaConsumerThread, "_create_worker_consumer"),
        (driver.AIOKafkaConsumerThread, "_fetch_records"),
        (driver.AIOKafkaConsumerThread, "_ensure_consumer"),
        (driver.Consumer, "_new_consumer_thread"),
        (driver.Producer, "_settings_auth"),
        (driver.Producer, "_settings_default"),
        (faust_consumer.Consumer, "_wait_next_records"),
        (faust_consumer.Consumer, "_add_gap"),
        (faust_consumer.Consumer, "wait_empty"),
        (faust_consumer.Consumer, "perform_seek"),
        (Fetcher, "_create_fetch_waiter"),
        (Fetcher, "_notify"),
        (FetchResult, "check_assignment"),
        (FetchResult, "has_more"),
        (FetchResult, "_update_position"),
        (PartitionRecords, "_consume_aborted_up_to"),
        (PartitionRecords, "_contains_abort_marker"),
        (TransactionManager, "is_in_transaction"),
        (TransactionManager, "wait_for_transaction_end"),
        (TransactionManager, "error_transaction"),
        (MessageBatch, "failure"),
        (MessageAccumulator, "reenqueue"),
        (GroupCoordinator, "check_errors"),
        (GroupCoordinator, "request_rejoin"),
        (AIOKafkaConnection, "close"),
        (AIOKafkaAdminClient, "_send_request"),
        (AIOKafkaAdminClient, "_send_request_to_node"),
        (SubscriptionState, "fetch_context"),
        (faust_tables.TableManager, "_update_channels"),
        (faust_tables.TableManager, "on_actives_ready"),
        (faust_tables.TableManager, "on_standbys_ready"),
    ],
)
def test_the_name_is_still_there(owner: type, name: str) -> None:
    assert callable(getattr(owner, name))


@pytest.mark.parametrize(
    ("owner", "attribute"),
    [
        (aiokafka.AIOKafkaConsumer.__init__, "self._subscription"),
        (aiokafka.AIOKafkaConsumer.__init__, "self._group_id"),
        (aiokafka.AIOKafkaConsumer.start, "self._coordinator"),
        (GroupCoordinator.__init__, "self.member_id"),
        (GroupCoordinator.__init__, "self._coordination_task"),
        (GroupCoordinator.__init__, "self._pending_exception"),
        (AIOKafkaConnection.__init__, "self._requests"),
        (AIOKafkaConnection.__init__, "self._loop"),
        (AIOKafkaConnection.connect, "self._writer"),
        (aiokafka.AIOKafkaConsumer.start, "self._fetcher"),
        (aiokafka.AIOKafkaConsumer.__init__, "self._closed"),
        (Fetcher.__init__, "self._subscriptions"),
        (Fetcher.__init__, "self._closed"),
        (Fetcher.__init__, "self._records"),
        (Fetcher.__init__, "self._wait_consume_future"),
        (FetchResult.__init__, "self._partition_records"),
        (PartitionRecords.__init__, "self._records"),
        (PartitionRecords.__init__, "self._records_iterator"),
        (PartitionRecords.__init__, "self._aborted_producers"),
        (PartitionRecords.__init__, "self._check_crcs"),
        (PartitionRecords.__init__, "self._isolation_level"),
        (PartitionRecords.__init__, "self.next_fetch_offset"),
        (BatchBuilder.__init__, "self._builder"),
        (BatchBuilder.__init__, "self._relative_offset"),
        (TopicPartitionState.__init__, "self._position"),
        (TopicPartitionState.__init__, "self.lso"),
        (TopicPartitionState.__init__, "self.timestamp"),
        (aiokafka.AIOKafkaProducer.__init__, "self._txn_manager"),
        (aiokafka.AIOKafkaProducer.__init__, "self._message_accumulator"),
        (MessageAccumulator.__init__, "self._batches"),
        (faust_consumer.Consumer.__init__, "self._unacked_messages"),
        (faust_consumer.Consumer.__init__, "self._read_offset"),
    ],
)
def test_the_attribute_is_still_set(owner: object, attribute: str) -> None:
    assert attribute in inspect.getsource(owner)  # type: ignore[arg-type]


def test_a_histogram_takes_many_values_as_it_takes_each() -> None:
    registry = CollectorRegistry()
    one = Histogram("one", "", buckets=(0.1, 1.0), registry=registry)
    many = Histogram("many", "", buckets=(0.1, 1.0), registry=registry)
    values = [0.0, 0.1, 0.2, 1.0, 5.0, 0.05]
    for value in values:
        one.observe(value)
    observe_many(many, values)
    for suffix, label in (("bucket", "0.1"), ("bucket", "1.0"), ("bucket", "+Inf"), ("count", None), ("sum", None)):
        labels = {"le": label} if label else {}
        assert registry.get_sample_value(f"one_{suffix}", labels) == registry.get_sample_value(f"many_{suffix}", labels)


def test_fausts_own_recovery_is_made_in_the_property_that_ours_overrides() -> None:
    assert "self._recovery = Recovery(" in inspect.getsource(faust_tables.TableManager.recovery.fget)
    uses = inspect.getsource(faust_tables.TableManager).count("self.recovery.")
    assert uses == 5, "the table manager asks more of its recovery than on_rebalance, on_partitions_revoked and start"


def test_what_follows_a_recovery_is_what_our_restore_does() -> None:
    """Faust's on_recovery_completed, step by step; a new step has to be looked at."""
    source = inspect.getsource(Recovery.on_recovery_completed)
    steps = ("on_rebalance_complete.send", "resume_partitions", "perform_seek", "completed.set", "flow_control.resume",
             "resume_flow", "_fetcher.maybe_start", "on_actives_ready", "on_standbys_ready", "on_rebalance_end")  # fmt: skip
    places = [source.index(step) for step in steps]
    assert places == sorted(places)
