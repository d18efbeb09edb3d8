"""One call to any server that speaks the OpenAI chat completions API.

All HTTP of the model tier is here: httpx can be replaced without touching what decides. `complete` is one wire call;
who wants another asks again (see `app.llm.provider`). One exception: a server that refuses structured output is asked
without it, once. Nothing is sent again in silence: calls are counted, budgeted and paid one by one.
"""

import asyncio
import os
import ssl
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import httpx

from app import crash, metrics
from app.errors import ModelError, ModelUnavailable, SettingsError
from app.llm.answer import Completion, SchemaRefused, completion_of, error_of, is_retryable, parse_retry_after
from app.llm.gate import Gate, Held
from app.llm.loopback import is_loopback
from app.settings import ProviderSettings

__all__ = ["ChatClient", "Completion", "Message"]

Message = Mapping[str, str]

KEEP_ALIVE_S = 4.0
"""Below the 5 s after which uvicorn and llama.cpp close idle connections, so that we close first."""

MAX_ANSWER_BYTES = 4 << 20
"""Far above any classification; a server that sends without end must not fill our memory."""


class ChatClient:
    """A pool of connections to one provider.

    Args:
        settings: address, model, key, deadlines.
        max_retry_after_s: a longer Retry-After is cut to this.
        gate: closed by a Retry-After; while it is closed nothing is sent.
        transport: replaces the network, for tests.

    Raises:
        SettingsError: a key or header can't be sent, or isn't in the environment; the CA can't be read.
    """

    def __init__(
        self,
        settings: ProviderSettings,
        *,
        max_retry_after_s: float = 300.0,
        gate: Gate | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._settings, self._max_retry_after_s = settings, max_retry_after_s
        self.gate = gate or Gate(time.monotonic)
        self._url = httpx.URL(settings.base_url.rstrip("/") + "/chat/completions")
        self._schema_works = settings.json_schema
        self._schema_known = not settings.json_schema
        timeout = httpx.Timeout(settings.read_timeout_s, connect=settings.connect_timeout_s, pool=None)
        self._http = httpx.AsyncClient(
            headers=_headers(settings),
            timeout=timeout,
            limits=httpx.Limits(max_connections=None, keepalive_expiry=KEEP_ALIVE_S),
            # A proxy of the environment is for the outside: it can't reach this machine's loopback.
            trust_env=not is_loopback(self._url.host),
            proxy=settings.proxy or None,
            verify=_trusted(settings),
            transport=transport,
        )

    @property
    def schema_works(self) -> bool:
        """The server took structured output so far; never asked for: as the settings say."""
        return self._schema_works

    @property
    def most_calls(self) -> int:
        """Wire calls that `complete` may make now."""
        return 1 if self._schema_known else 2

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections; calls in flight fail."""
        await self._http.aclose()

    async def complete(
        self, messages: Sequence[Message], *, schema: Mapping[str, Any] | None, max_tokens: int
    ) -> Completion:
        """Asks once.

        Args:
            messages: role and content, in order.
            schema: JSON schema of the answer; left out when the server is known to refuse it.
            max_tokens: the longest answer.

        Raises:
            ModelUnavailable: no usable answer within the provider's timeout_s; the same call may succeed later. Retryable.
            Held: it wasn't sent, for the gate is closed. Retryable when it is open.
            ModelRefused: the same call will fail again. Not retryable.
        """
        body: dict[str, Any] = {
            "model": self._settings.model,
            "messages": list(messages),
            "temperature": self._settings.temperature,
            "max_tokens": max_tokens,
        }
        if schema is None or not self._schema_works:
            return await self._counted(body)
        form = {"type": "json_schema", "json_schema": {"name": "answers", "strict": True, "schema": schema}}
        try:
            completion = await self._counted({**body, "response_format": form})
        except SchemaRefused:
            completion = await self._counted(body)
            # Only now: where the call without it fails as well, structured output wasn't the trouble.
            self._schema_works = False
        self._schema_known = True
        return completion

    async def _counted(self, body: Mapping[str, Any]) -> Completion:
        labels = (self._settings.name, self._settings.model)
        started = time.monotonic()
        outcome = "cancelled"
        try:
            completion = await self._within_deadline(body)
            outcome = "ok"
        except Held:
            outcome = ""
            raise
        except ModelError as error:
            outcome = f"status-{error.status}" if error.status else "unreachable"
            raise
        finally:
            if outcome:
                metrics.MODEL_CALLS.labels(*labels, outcome).inc()
                metrics.MODEL_SECONDS.labels(*labels).observe(time.monotonic() - started)
        return completion

    async def _within_deadline(self, body: Mapping[str, Any]) -> Completion:
        """Ends slow drips too: httpx's own read timeout starts anew with every byte: a slow drip would pass it."""
        limit_s = self._settings.timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return await self._send(body)
        except TimeoutError as error:
            raise ModelUnavailable(f"no whole answer from the model server within {limit_s:g} s") from error

    async def _send(self, body: Mapping[str, Any]) -> Completion:
        try:
            return await self._exchange(body)
        except httpx.TimeoutException as error:
            raise ModelUnavailable(f"model server: {type(error).__name__}") from error
        except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError) as error:
            raise ModelUnavailable(f"model server broke the connection ({type(error).__name__})") from error
        except httpx.HTTPError as error:
            raise ModelUnavailable(f"model server can't be reached ({type(error).__name__})") from error

    async def _before_sending(self, event: str, info: Mapping[str, Any]) -> None:
        """Called by httpcore at each step: a call may have waited long for its connection.

        https://www.encode.io/httpcore/extensions/#trace
        """
        if event.endswith("send_request_headers.started") and self.gate.left_s > 0:
            raise Held("the provider asked to be left alone", retry_after_s=self.gate.left_s)

    async def _exchange(self, body: Mapping[str, Any]) -> Completion:
        started = time.monotonic()
        request = self._http.build_request("POST", self._url, json=body, extensions={"trace": self._before_sending})
        response = await self._http.send(request, stream=True)
        crash.at("asked")
        wait_s = parse_retry_after(
            response.headers.get_list("retry-after"), response.headers.get("date"), self._max_retry_after_s
        )
        if wait_s and is_retryable(response.status_code):
            self.gate.close(wait_s)  # before the body is there: other calls may be about to be sent
        try:
            content = bytearray()
            try:
                async for chunk in response.aiter_bytes():
                    content += chunk
                    if len(content) > MAX_ANSWER_BYTES:
                        raise ModelUnavailable("model server's answer doesn't end", status=response.status_code)
            except (httpx.TransportError, httpx.DecodingError) as error:
                raise ModelUnavailable(f"model server broke off its answer ({type(error).__name__})") from error
        finally:
            await response.aclose()
        if response.status_code != 200:
            raise error_of(response.status_code, bytes(content), wait_s)
        return completion_of(bytes(content), round((time.monotonic() - started) * 1000), wait_s)


def _headers(settings: ProviderSettings) -> dict[str, str]:
    """With the key. Secrets are checked here, for h11 would name the whole header in its error."""
    headers = {}
    for name, value in settings.headers.items():
        variable = value.removeprefix("$")
        if variable != value and variable not in os.environ:
            raise SettingsError(f"provider {settings.name}: header {name} needs the environment variable {variable}")
        headers[name] = _sendable(os.environ[variable] if variable != value else value, f"header {name}", settings)
    if settings.api_key_env and settings.api_key_env not in os.environ:
        raise SettingsError(f"provider {settings.name}: set the environment variable {settings.api_key_env} to its key")
    if key := _sendable(settings.key(), "the key", settings):
        headers["Authorization"] = f"Bearer {key}"
    return headers


def _sendable(value: str, what: str, settings: ProviderSettings) -> str:
    if value and not (value.isascii() and value.isprintable()):
        raise SettingsError(
            f"provider {settings.name}: {what} isn't printable ASCII, so it can't be sent; set it again"
        )
    return value


def _trusted(settings: ProviderSettings) -> ssl.SSLContext | bool:
    if settings.ca_file is None:
        return True
    try:
        return ssl.create_default_context(cafile=str(settings.ca_file))
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"provider {settings.name}: ca_file {settings.ca_file} can't be read ({error})") from None
