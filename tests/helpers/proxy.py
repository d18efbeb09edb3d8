"""A TCP proxy in front of a Kafka broker that cuts, delays, halves and loses answers.

Clients that come through it stay with it: the broker's advertised address is replaced in every answer by the proxy's.
Both are on 127.0.0.1, so that only the port differs and no length changes.

    with KafkaProxy(broker_port) as proxy:
        proxy.lose(PRODUCE, 3)      # the next three answers to Produce never arrive; their connections are cut
        proxy.cut()                 # all connections end, new ones are refused
        proxy.hold()                # connections stay, nothing gets through
        proxy.heal()
"""

import asyncio
import threading
from collections import Counter
from typing import Any, Self

__all__ = ["ADD_OFFSETS", "END_TXN", "FETCH", "INIT_PRODUCER", "PRODUCE", "TXN_OFFSET_COMMIT", "KafkaProxy"]

PRODUCE, FETCH, INIT_PRODUCER, ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT = 0, 1, 22, 25, 26, 28
"""Numbers of requests in Kafka's protocol (https://kafka.apache.org/protocol#protocol_api_keys)."""

HOST = b"127.0.0.1"


class KafkaProxy:
    """Runs in a thread of its own. All switches may be called from any thread.

    Args:
        target_port: the broker's.
        port: its own; 0 is any.
    """

    def __init__(self, target_port: int, port: int = 0) -> None:
        self.target_port, self.port = target_port, port
        self.lost: Counter[int] = Counter()
        """Answers lost so far, by request."""
        self.delay_s = 0.0
        """Each frame waits so long, in both directions."""
        self._refusing = False
        self._to_lose: Counter[int] = Counter()
        self._to_halve = 0
        self._connections: set[asyncio.Task[None]] = set()
        self._open: asyncio.Event | None = None
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="kafka-proxy", daemon=True)

    # -- switches --------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._start())
        return self

    def __exit__(self, *error: object) -> None:
        self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    def cut(self) -> None:
        """Ends all connections and refuses new ones."""
        self._refusing = True
        self._call(self._end_connections())

    def hold(self) -> None:
        """Lets nothing through; connections stay, as behind a router that lost its route."""
        self._switch(False)

    def heal(self) -> None:
        self._refusing = False
        self.delay_s = 0.0
        self._to_lose.clear()
        self._to_halve = 0
        self._switch(True)

    def lose(self, request: int, count: int = 1) -> None:
        """The broker does what it was asked, and the client never hears of it: its connection ends instead."""
        self._to_lose[request] += count

    def halve(self, count: int = 1) -> None:
        """The next requests arrive as their first half, and the connection ends."""
        self._to_halve += count

    @property
    def left(self) -> int:
        """Faults that were asked for and haven't happened yet."""
        return self._to_lose.total() + self._to_halve

    # -- inside ----------------------------------------------------------------------------------------------------

    def _call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def _switch(self, through: bool) -> None:
        async def switch() -> None:
            assert self._open is not None
            (self._open.set if through else self._open.clear)()

        self._call(switch())

    async def _start(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._end_connections()

    async def _end_connections(self) -> None:
        tasks = [task for task in self._connections if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._refusing:
            writer.transport.abort()
            return
        self._connections.add(task)
        try:
            await self._connected(reader, writer)
        except (OSError, EOFError, ConnectionError):
            pass  # either side went away: so does the other
        except asyncio.CancelledError:
            pass  # `cut`: this task is the connection
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, onward = await asyncio.open_connection("127.0.0.1", self.target_port)
        asked: dict[int, int] = {}
        ways = [
            asyncio.ensure_future(self._requests(reader, onward, asked)),
            asyncio.ensure_future(self._answers(there, writer, asked)),
        ]
        try:
            done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in done:
                way.result()
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            onward.transport.abort()

    async def _requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: dict[int, int]
    ) -> None:
        while True:
            frame = await self._frame(reader)
            asked[int.from_bytes(frame[8:12], "big")] = int.from_bytes(frame[4:6], "big")
            if self._to_halve and len(frame) > 64:
                self._to_halve -= 1
                writer.write(frame[: len(frame) // 2])
                await writer.drain()
                return
            writer.write(frame)
            await writer.drain()

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: dict[int, int]) -> None:
        ours, its = (HOST + port.to_bytes(4, "big") for port in (self.port, self.target_port))
        while True:
            frame = await self._frame(reader)
            request = asked.pop(int.from_bytes(frame[4:8], "big"), -1)
            if self._to_lose[request] > 0:
                self._to_lose[request] -= 1
                self.lost[request] += 1
                return
            writer.write(frame if request == FETCH else frame.replace(its, ours))
            await writer.drain()

    async def _frame(self, reader: asyncio.StreamReader) -> bytes:
        """One request or answer with its length in front, once it may pass."""
        head = await reader.readexactly(4)
        body = await reader.readexactly(int.from_bytes(head, "big"))
        assert self._open is not None
        await self._open.wait()
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        return head + body
