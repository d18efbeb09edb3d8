"""A worker that can't go on ends: nothing waits for a thread that stops, and a hung loop is found whatever stderr is."""

import asyncio
import subprocess
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka.errors import KafkaConnectionError
from faust.types import TP
from mode.utils.locks import Event

from app.delivery.transport import Consumer, ConsumerThread

HUNG = """
import io, sys
from app.delivery import hang_watch

hang_watch.LOOP_HANG_S = 1
sys.stderr = io.StringIO()  # as Faust's: no file behind it
hang_watch.HangWatch().watch_loop()
"""


def thread_with(promise: asyncio.Future[Any]) -> ConsumerThread:
    """A consumer's thread that never ran; a call into it gets this promise."""
    thread = ConsumerThread.__new__(ConsumerThread)

    async def call(*arguments: object) -> asyncio.Future[Any]:
        return promise

    queue: Any = SimpleNamespace(call=call)
    thread.parent_loop = asyncio.get_running_loop()
    thread._method_queue, thread._stopped, thread._crashed = queue, Event(), Event()
    return thread


async def test_a_call_into_a_thread_that_stops_is_refused_instead_of_waiting_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.delivery.transport.LOOK_S", 0.01)
    promise: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    thread = thread_with(promise)
    call = asyncio.ensure_future(thread.call_thread(asyncio.sleep, 0))
    await asyncio.sleep(0.05)
    assert not call.done(), "it may take its time while the thread runs"
    thread._stopped.set()
    with pytest.raises(KafkaConnectionError, match="stopping"):
        await call
    assert promise.cancelled()


async def test_a_call_gives_its_result_or_its_error() -> None:
    promise: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    promise.set_result(7)
    assert await thread_with(promise).call_thread(asyncio.sleep, 0) == 7
    failed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    failed.set_exception(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        await thread_with(failed).call_thread(asyncio.sleep, 0)


def test_a_hung_loop_ends_the_worker_with_tracebacks() -> None:
    done = subprocess.run([sys.executable, "-c", HUNG], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 70
    assert "the event loop hung" in done.stderr
    assert "watch_loop" in done.stderr


@pytest.mark.parametrize("stopping", ["", "worker", "thread"])
@pytest.mark.parametrize("step", ["assigned", "revoked"])
async def test_partitions_that_can_t_be_taken_up_or_given_back_end_the_worker(step: str, stopping: str) -> None:
    async def fails(*_: object) -> None:
        raise AssertionError("a bug of somebody's")

    async def works() -> None: ...

    ended: list[tuple[str, str]] = []
    delivery = SimpleNamespace(
        join=lambda consumer: None, fence=fails, close_lanes=fails, restore=SimpleNamespace(halt=works),
        end=lambda what, error: ended.append((what, str(error))),
    )  # fmt: skip
    consumer = Consumer.__new__(Consumer)
    consumer.app = cast("Any", SimpleNamespace(delivery=delivery))
    consumer._thread = cast("Any", SimpleNamespace(settle_in=works, should_stop=stopping == "thread"))
    consumer._stopped, consumer._crashed = Event(), Event()
    if stopping == "worker":
        consumer._stopped.set()
    with pytest.raises(AssertionError, match="a bug"):
        await (
            consumer.on_partitions_assigned({TP("raw", 0)})
            if step == "assigned"
            else consumer.on_partitions_revoked(set())
        )
    what = "the assignment of partitions" if step == "assigned" else "the revocation of partitions"
    assert ended == ([] if stopping else [(what, "a bug of somebody's")])
