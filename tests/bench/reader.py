"""A reader of its own: notes when records of a topic become visible to a read_committed consumer.

    python -m tests.bench.reader BOOTSTRAP TOPIC PARTITIONS FILE

A line for every fetch: partition, first offset, last offset, time in seconds since the epoch. It decodes nothing, so that
it takes little from whom it watches. SIGTERM ends it.
"""

import asyncio
import signal
import sys
import time
from pathlib import Path

import aiokafka
import uvloop
from aiokafka.structs import TopicPartition

READY = "reading"


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
                fetched = await consumer.getmany(timeout_ms=200)
                now = time.time()
                for tp, records in fetched.items():
                    print(tp.partition, records[0].offset, records[-1].offset, f"{now:.4f}", file=file)
    finally:
        await consumer.stop()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])))
