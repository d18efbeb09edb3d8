"""Takes what aiokafka has fetched for a partition, whole record batches at a time.

aiokafka's own way makes a ConsumerRecord for each record through three nested generators, which costs more than all of
ingest's checks. This reads the same buffers with the same rules for aborted and control batches.
"""

from typing import Any

from aiokafka.consumer.fetcher import READ_COMMITTED, Fetcher, FetchResult
from aiokafka.errors import CorruptRecordException
from aiokafka.structs import TopicPartition

from models.events import Received

__all__ = ["drain"]


def drain(fetcher: Fetcher, tp: TopicPartition, limit: int) -> list[Received]:
    """Records of a partition from its position on, which moves behind them.

    Args:
        fetcher: a consumer's.
        tp: the partition.
        limit: no further record batch is begun once this many records are there.

    Raises:
        KafkaError: what the fetch met, for example a refused credential or an offset that isn't there any more.
    """
    result: Any = fetcher._records.get(tp)
    if result is None or fetcher._subscriptions.reassignment_in_progress:
        return []
    buffered: Any = getattr(result, "_partition_records", None)
    records: list[Received] = []
    done = True  # an error or a buffer that no longer fits is dropped, and fetched again
    try:
        if type(result) is not FetchResult:
            result.check_raise()
        elif result.check_assignment(tp) and result.has_more():
            records = _read(buffered, tp, limit)
            result._update_position()
            done = not buffered._records.has_next()
    finally:
        if done:
            del fetcher._records[tp]
            if buffered is not None:
                # An iterator that isn't used here refers back to it: megabytes would wait for the garbage collector, and
                # a restore makes so few objects that it hardly ever runs.
                buffered._records_iterator = None
            fetcher._notify(fetcher._wait_consume_future)
    return records


def _read(buffered: Any, tp: TopicPartition, limit: int) -> list[Received]:
    topic, partition = tp.topic, tp.partition
    found: list[Received] = []
    batches = buffered._records
    while batches.has_next() and len(found) < limit:
        batch = batches.next_batch()
        if buffered._check_crcs and not batch.validate_crc():
            raise CorruptRecordException(f"{topic}, partition {partition}: a record batch with a wrong checksum")
        if not _skipped(buffered, batch):
            start = buffered.next_fetch_offset
            records = [Received(topic, partition, r.offset, r.timestamp, r.key, r.value, r.headers) for r in batch]
            if records and records[0].offset < start:  # the fetch began in the middle of this batch
                records = [record for record in records if record.offset >= start]
            found += records
        buffered.next_fetch_offset = max(buffered.next_fetch_offset, batch.next_offset)
    return found


def _skipped(buffered: Any, batch: Any) -> bool:
    """Control batches, and batches of transactions that were aborted."""
    if buffered._isolation_level == READ_COMMITTED and batch.producer_id is not None:
        buffered._consume_aborted_up_to(batch.base_offset)
        if batch.is_control_batch and buffered._contains_abort_marker(batch):
            buffered._aborted_producers.discard(batch.producer_id)
        if batch.is_transactional and batch.producer_id in buffered._aborted_producers:
            return True
    return bool(batch.is_control_batch)
