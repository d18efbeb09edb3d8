"""A reader of its own: notes when records of a topic become visible to a read_committed consumer.

    python -m tests.bench.reader BOOTSTRAP TOPIC PARTITIONS FILE

A line for every record batch: partition, first offset, last offset, time in seconds since the epoch. It looks at batch
headers only, so that it takes little from whom it watches. SIGTERM ends it.
"""

import asyncio
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka
import uvloop
from aiokafka.structs import TopicPartition

READY = "reading"
WAIT_S = 0.2


async def main(bootstrap: str, topic: str, partitions: int, path: Path) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=bootstrap, isolation_level="read_committed", enable_auto_commit=False, check_crcs=False
    )
    await consumer.start()
    try:
        tps = [TopicPartition(topic, p) for p in range(partitions)]
        consumer.assign(tps)
        await consumer.seek_to_beginning(*tps)
        with path.open("w", encoding="ascii", buffering=1) as file:
            print(READY, file=file)
            while not stopping.is_set():
                waiter = consumer._fetcher._create_fetch_waiter()
                await asyncio.wait([waiter], timeout=WAIT_S)
                waiter.cancel()
                now = time.time()
                for tp in tps:
                    for first, last in spans(consumer._fetcher, tp):
                        print(tp.partition, first, last, f"{now:.4f}", file=file)
    finally:
        await consumer.stop()


def spans(fetcher: Any, tp: TopicPartition) -> Iterator[tuple[int, int]]:
    """First and last offset of each record batch that was fetched for a partition; its position moves behind them.

    Commit markers are no records. Nothing is aborted in a run that is right.
    """
    result = fetcher._records.pop(tp, None)
    if result is None:
        return
    buffered = result._partition_records
    while buffered._records.has_next():
        batch = buffered._records.next_batch()
        buffered.next_fetch_offset = batch.next_offset
        if not batch.is_control_batch:
            yield batch.base_offset, batch.next_offset - 1
    result._update_position()
    fetcher._notify(fetcher._wait_consume_future)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])))
