"""Serves gateway and console: uvicorn, with limits on headers that it lacks, and a drain before it closes."""

import asyncio
import gc
import logging
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any, Literal, Protocol

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from app.core import free_port
from app.settings import Settings
from app.web.announce import http_url

__all__ = ["Part", "serve"]

Part = Literal["gateway", "console"]

log = logging.getLogger("headrace.web")

WEBSOCKET_MESSAGE_BYTES = 64 << 10
"""Clients of the gateway send filters and nothing else."""
CONSOLE_MESSAGE_BYTES = 1 << 20
"""What Socket.IO takes as well: an edited record comes in one message."""
TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


GC_THRESHOLD = (10_000, 20, 50)
"""Requests make short-lived objects: the default of 700 looks for cycles all the time, much more would make each look long."""


class Connection(HttpToolsProtocol):
    """Headers must come whole within a time, and stay within a size: uvicorn bounds neither (0.54)."""

    max_header_bytes = 64 << 10
    header_timeout_s = 10.0
    _header_bytes = 0
    """Of raw bytes before the headers were whole."""
    _named_bytes = 0
    """Of the headers that were read: many requests may come in one piece."""
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._headers_there()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._named_bytes = 0
        if self._timer is None:
            self._await_headers()

    def data_received(self, data: bytes) -> None:
        if self._timer is not None:  # between a request's first byte and the end of its headers
            self._header_bytes += len(data)
            if self._header_bytes > self.max_header_bytes + len(data):
                self.transport.write(TOO_LARGE)
                self.transport.close()
                return
        super().data_received(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._named_bytes += len(name) + len(value)
        if self._named_bytes > self.max_header_bytes and not self.transport.is_closing():
            self.transport.write(TOO_LARGE)
            self.transport.close()

    def on_headers_complete(self) -> None:
        self._headers_there()
        if not self.transport.is_closing():
            super().on_headers_complete()

    def _await_headers(self) -> None:
        self._header_bytes = 0
        self._timer = self.loop.call_later(self.header_timeout_s, self.transport.close)

    def _headers_there(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Socket(WebSocketsSansIOProtocol):
    """Answers a handshake that can't be read (a line of more than 8 KiB, too many headers) and closes the connection.

    uvicorn (0.54) leaves the answer unsent, and the connection open for ever.
    """

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.transport.is_closing():
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.transport.close()


class Drained(Protocol):
    """What serves, and is told before it ends."""

    draining: bool


class Server(uvicorn.Server):
    """SIGTERM: first /readyz says no, so that a balancer looks elsewhere; then uvicorn's own shutdown."""

    def __init__(self, config: uvicorn.Config, served: Drained, drain_s: float) -> None:
        super().__init__(config)
        self._served, self._drain_s = served, drain_s

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._served.draining:
            self.should_exit = self.force_exit = sig == signal.SIGINT or self.force_exit
            return
        self._served.draining = True
        log.info("web: stopping")
        self._loop.call_soon_threadsafe(self._loop.call_later, self._drain_s, self._exit)

    def _exit(self) -> None:
        self.should_exit = True

    async def serve(self, sockets: Any = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)


async def serve(settings: Settings, port: int | None, only: Part | None, say: Callable[[str], None]) -> None:
    """Serves until SIGTERM or SIGINT.

    Args:
        settings: the tree.
        port: instead of gateway.port.
        only: one part of it; None: both.
        say: shows a line to whoever started it.

    Raises:
        SettingsError: the console may not be served so.
    """
    limits = settings.gateway
    wanted = limits.port if port is None else port
    chosen = free_port(limits.host, 0) if wanted == 0 else wanted
    url = http_url(limits.host, chosen)
    app, served = _build(settings, only, url, say)
    Connection.max_header_bytes, Connection.header_timeout_s = limits.max_header_bytes, limits.header_timeout_s
    config = uvicorn.Config(
        app, host=limits.host, port=chosen, http=Connection, ws=Socket, lifespan="on", log_config=None,
        access_log=False, server_header=False, limit_concurrency=limits.max_connections,
        proxy_headers=bool(limits.trusted_proxies), forwarded_allow_ips=limits.trusted_proxies,
        timeout_graceful_shutdown=max(1, int(limits.close_timeout_s)), ws_per_message_deflate=False,
        ws_max_size=WEBSOCKET_MESSAGE_BYTES if only == "gateway" else CONSOLE_MESSAGE_BYTES,
    )  # fmt: skip
    log.info("web: %s", url)
    gc.collect()
    gc.freeze()  # 150,000 objects that stay: looking through them again would hold every request up, for 0.1 s
    gc.set_threshold(*GC_THRESHOLD)
    await Server(config, served, limits.drain_s).serve()


def _build(settings: Settings, only: Part | None, url: str, say: Callable[[str], None]) -> tuple[ASGIApp, Drained]:
    if only == "gateway":  # without loading NiceGUI
        from app.web.gateway.api import build

        app = build(settings)
        gateway: Drained = app.state.gateway
        return app, gateway
    from app.web.console.app import both, console_alone

    return (both if only is None else console_alone)(settings, url, say)
