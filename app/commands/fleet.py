"""What commands share: asking all workers that are alive."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import click
import httpx
from aiokafka.errors import KafkaError

from app.core import settings
from app.errors import HeadraceError
from app.kafka import unreachable
from app.web.announce import Worker, workers

__all__ = ["ask_all", "run"]

T = TypeVar("T")

ASK_TIMEOUT_S = 10.0


def run(work: Callable[[], Awaitable[T]]) -> T:
    """Runs a command's coroutine; errors of ours become one line and exit status 1."""

    async def main() -> T:
        try:
            return await work()
        except (KafkaError, OSError, TimeoutError) as error:
            raise await unreachable(settings.kafka, error) from error

    try:
        return asyncio.run(main())
    except HeadraceError as error:
        click.echo(f"headrace: {error}", err=True)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


async def ask_all(path: str, params: dict[str, str] | None = None) -> list[tuple[Worker, Any]]:
    """GETs a path of every worker; those that don't answer are said on stderr and left out.

    Raises:
        HeadraceError: no worker is alive.
    """
    alive = await workers(settings)
    if not alive:
        raise HeadraceError(
            "no worker is alive (none announced itself in the last 20 s); start one with `headrace worker`"
        )
    token = settings.web.token.get_secret_value()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with httpx.AsyncClient(timeout=ASK_TIMEOUT_S, headers=headers, trust_env=False) as client:
        answers = await asyncio.gather(*[_ask(client, worker, path, params) for worker in alive])
    return [(worker, answer) for worker, answer in zip(alive, answers, strict=True) if answer is not None]


async def _ask(client: httpx.AsyncClient, worker: Worker, path: str, params: dict[str, str] | None) -> Any:
    try:
        answer = await client.get(worker.url + path, params=params)
        if answer.status_code in (200, 404):  # 404: it has none of what was asked for
            return answer.json()
        why = str(answer.status_code)
    except (httpx.HTTPError, ValueError) as error:
        why = type(error).__name__
    click.echo(f"headrace: worker {worker.pid} on {worker.host} doesn't answer ({why})", err=True)
    return None
