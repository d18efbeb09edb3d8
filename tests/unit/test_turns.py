"""Long work takes turns: between two of them the event loop serves whoever else waits."""

import asyncio

from app.delivery.turns import Turns


async def test_between_two_turns_the_loop_serves_sockets() -> None:
    turns = Turns()
    done: list[str] = []
    reader, writer = await _echo(done)
    writer.write(b"x")

    async def work(name: str) -> None:
        for _ in range(2):
            await turns.take()
            done.append(name)

    async with asyncio.TaskGroup() as group:
        for name in "abc":
            group.create_task(work(name))
    assert await reader.readexactly(1) == b"x"
    writer.close()
    assert sorted(done) == [*"aabbcc", "served"]
    assert done.index("served") < 4


async def _echo(done: list[str]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(1))
        done.append("served")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    return await asyncio.open_connection(*server.sockets[0].getsockname())


async def test_all_get_their_turn_in_the_order_of_asking() -> None:
    turns, order = Turns(), list[int]()

    async def work(number: int) -> None:
        await turns.take()
        order.append(number)

    await asyncio.gather(*[work(n) for n in range(5)])
    assert order == [0, 1, 2, 3, 4]


async def test_one_that_is_cancelled_while_it_waits_holds_up_nobody() -> None:
    turns = Turns()
    await turns.take()
    waiting = asyncio.ensure_future(turns.take())
    await asyncio.sleep(0)
    waiting.cancel()
    async with asyncio.timeout(5):
        await turns.take()
