"""One call to any server that speaks the OpenAI chat completions API.

All HTTP of the model tier is here: httpx can be replaced without touching what decides. `complete` is one wire call;
who wants another asks again (see `app.llm.deep`). Two exceptions, both once: a server that refuses structured output
is asked without it, and a request on a kept connection that the server had closed is sent again on a fresh one.
"""

import asyncio
import ipaddress
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import httpx

from app import metrics
from app.errors import ModelError, ModelUnavailable, SettingsError
from app.llm.answer import Completion, SchemaRefused, completion_of, error_of, parse_retry_after
from app.settings import LlmSettings

__all__ = ["ChatClient", "Completion", "Message"]

Message = Mapping[str, str]

KEEP_ALIVE_S = 4.0
"""Below the 5 s after which uvicorn and llama.cpp close idle connections, so that we close first."""

MAX_ANSWER_BYTES = 4 << 20
"""Far above any classification; a server that sends without end must not fill our memory."""


class ChatClient:
    """A pool of connections to `llm.base_url`.

    Args:
        settings: address, model, key, deadlines.
        transport: replaces the network, for tests.

    Raises:
        SettingsError: the key can't be sent in a header.
    """

    def __init__(self, settings: LlmSettings, *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._settings = settings
        self._url = httpx.URL(settings.base_url.rstrip("/") + "/chat/completions")
        self._schema_works = settings.json_schema
        key = settings.api_key.get_secret_value().strip()
        if not (key.isascii() and (key.isprintable() or not key)):
            # h11 would name the whole header in its error.
            raise SettingsError("llm.api_key: only printable ASCII can be sent; set HEADRACE_LLM__API_KEY again")
        self._http = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(settings.timeout_s, connect=settings.connect_timeout_s, pool=None),
            limits=httpx.Limits(max_connections=None, keepalive_expiry=KEEP_ALIVE_S),
            # A proxy of the environment is for the outside: it can't reach this machine's loopback.
            trust_env=not _is_loopback(self._url.host),
            transport=transport,
        )

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
            ModelUnavailable: no usable answer within llm.timeout_s; the same call may succeed later. Retryable.
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
            return await self._counted({**body, "response_format": form})
        except SchemaRefused:
            completion = await self._counted(body)
        # Only now: where the call without it fails as well, structured output wasn't the trouble.
        self._schema_works = False
        return completion

    async def _counted(self, body: Mapping[str, Any]) -> Completion:
        model = self._settings.model
        started = time.monotonic()
        outcome = "cancelled"
        try:
            completion = await self._within_deadline(body)
            outcome = "ok"
        except ModelError as error:
            outcome = f"status-{error.status}" if error.status else "unreachable"
            raise
        finally:
            metrics.MODEL_CALLS.labels(model, outcome).inc()
            metrics.MODEL_SECONDS.labels(model).observe(time.monotonic() - started)
        metrics.MODEL_TOKENS.labels(model, "prompt").inc(completion.prompt_tokens)
        metrics.MODEL_TOKENS.labels(model, "completion").inc(completion.completion_tokens)
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
        for fresh in (False, True):
            opened: list[str] = []

            async def trace(event: str, info: Mapping[str, Any], opened: list[str] = opened) -> None:
                if event == "connection.connect_tcp.started":
                    opened.append(event)

            try:
                return await self._exchange(body, trace)
            except httpx.TimeoutException as error:
                raise ModelUnavailable(f"model server: {type(error).__name__}") from error
            except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError) as error:
                # A kept connection may be closed by the server just as we write. Nothing came back, so ask once more:
                # should the server have read it after all, a second answer does no harm.
                if fresh or opened:
                    raise ModelUnavailable(f"model server broke the connection ({type(error).__name__})") from error
            except httpx.HTTPError as error:
                raise ModelUnavailable(f"model server can't be reached ({type(error).__name__})") from error
        raise AssertionError("the second round returns or raises")

    async def _exchange(self, body: Mapping[str, Any], trace: object) -> Completion:
        started = time.monotonic()
        request = self._http.build_request("POST", self._url, json=body, extensions={"trace": trace})
        response = await self._http.send(request, stream=True)
        try:
            content = bytearray()
            try:
                async for chunk in response.aiter_bytes():
                    content += chunk
                    if len(content) > MAX_ANSWER_BYTES:
                        raise ModelUnavailable("model server's answer doesn't end", status=response.status_code)
            except (httpx.TransportError, httpx.DecodingError) as error:
                # Headers came, so the request did arrive: no silent second one.
                raise ModelUnavailable(f"model server broke off its answer ({type(error).__name__})") from error
        finally:
            await response.aclose()
        wait_s = parse_retry_after(
            response.headers.get_list("retry-after"), response.headers.get("date"), self._settings.max_retry_after_s
        )
        if response.status_code != 200:
            raise error_of(response.status_code, bytes(content), wait_s)
        return completion_of(bytes(content), round((time.monotonic() - started) * 1000), wait_s)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
