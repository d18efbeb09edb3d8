"""A model server to break on purpose: OpenAI's chat completions on 127.0.0.1, with faults by script.

It answers right by keywords unless told otherwise, and knows the prompt's format on its own: it imports nothing of
the application, so that a changed prompt shows as a failing test.

    async with ModelServer(latency_ms=50) as server:
        server.script(status(429, retry_after="1"), hang(), answer(missing=[3]))   # tests.helpers.model_faults, in order
        ...
        assert server.calls[0].items == ["where is my parcel", ...]

As a process: `python -m tests.helpers.modelserver --port 0 --latency-ms 50`, which prints
`ready HOST:PORT`. Its `/faults` (POST a JSON list of faults, or `{"always": {...}}`, or `{"always": null}`), `/calls`
(GET) and `/counts` (GET) script and inspect it from outside.
"""

import argparse
import asyncio
import contextlib
import json
import math
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from aiohttp import web

from tests.helpers.model_faults import Fault, Rates

__all__ = ["KEYWORDS", "Call", "ModelServer", "category_of"]

KEYWORDS: tuple[tuple[str, str], ...] = (
    ("refund|charge|paid|payment|invoice|card|fee|money|退款|扣款|扣了|付款|支付|发票|账单|银行卡|信用卡", "payment"),
    ("parcel|package|courier|deliver|shipment|tracking|ship |快递|包裹|物流|配送|收货|签收|寄", "logistics"),
    ("order|stock|basket|quantity|cancel|buy|订单|下单|补货|现货|购买|取消", "order"),
)
"""First match wins; nothing matches: other."""

ON_THE_WIRE_S = 0.05
"""From a client's sending to this server's handling, on one machine: what was sent before the 429 was read comes so late."""

ITEM = re.compile(r'^(\d+): (".*")$', re.MULTILINE)


def category_of(text: str) -> str:
    """What the server answers for a text."""
    return next((name for words, name in KEYWORDS if re.search(words, text, re.IGNORECASE)), "other")


@dataclass
class Call:
    """One wire call as it came in."""

    at: float
    """time.monotonic of the server's process."""
    items: list[str]
    body: dict[str, Any]
    headers: dict[str, str]
    fault: str
    done: bool = False
    """False: under way, or cut off by the client."""


@dataclass
class Quiet:
    """A Retry-After that was sent."""

    until: float
    read_at: float = math.inf
    """When the client had read it, at the latest."""

    def forbids(self, at: float) -> bool:
        """A call that came then was sent in spite of it."""
        return self.read_at + ON_THE_WIRE_S < at < self.until


class ModelServer:
    """The server inside the test's own event loop.

    Args:
        port: 0 is any.
        latency_ms: of every answer.
        api_key: when set, other keys get 401.
        idle_s: idle connections are closed after this, as real servers do.
        token_ms: more of it for each token of an answer.
        rates: calls go wrong by chance, unless the script has a fault for them.
        seed: of the chance.
    """

    def __init__(
        self, port: int = 0, *, latency_ms: float = 0.0, api_key: str = "", idle_s: float = 75.0, token_ms: float = 0.0,
        rates: Rates | None = None, seed: int = 1,
    ) -> None:  # fmt: skip
        self.token_ms, self.rates, self._rnd = token_ms, rates, random.Random(seed)
        self.early = 0
        """Calls that were sent after a client had read a Retry-After, and while that forbade them."""
        self.tokens = 0
        """Of all answers and their prompts."""
        self._quiet: list[Quiet] = []
        self.port, self.latency_ms, self.api_key, self.idle_s = port, latency_ms, api_key, idle_s
        self.calls: list[Call] = []
        self.in_flight = self.most_in_flight = 0
        self.always: Fault | None = None
        """Done on every call that has no fault of the script."""
        self.by_text: dict[str, str] = {}
        """Label by exact text, over the keywords. A label that is no category spoils every answer for that text."""
        self.fields_of: Callable[[str], dict[str, Any]] | None = None
        """Fields beside the label: then each answer is an object of both."""
        self._script: list[Fault] = []
        self._runner: web.AppRunner | None = None

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def script(self, *faults: Fault) -> None:
        """Appends faults, one a wire call; calls after the last are answered right."""
        self._script.extend(faults)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    async def start(self) -> None:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/v1/chat/completions", self._completion)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._models)
        app.router.add_post("/faults", self._faults)
        app.router.add_get("/calls", self._list)
        app.router.add_get("/counts", self._counts)
        self._runner = web.AppRunner(
            app, handler_cancellation=True, keepalive_timeout=self.idle_s, shutdown_timeout=0.1, access_log=None
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]

    async def stop(self) -> None:
        """Closes the port; may be started again on the same one."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "stub", "object": "model"}]})

    async def _faults(self, request: web.Request) -> web.Response:
        given = await request.json()
        if isinstance(given, dict):
            self.always = Fault(**given["always"]) if given["always"] else None
        else:
            self.script(*(Fault(**fault) for fault in given))
        return web.json_response({"left": len(self._script)})

    async def _list(self, request: web.Request) -> web.Response:
        return web.json_response([asdict(call) for call in self.calls])

    async def _counts(self, request: web.Request) -> web.Response:
        items = [text for call in self.calls for text in call.items]
        return web.json_response(
            {
                "calls": len(self.calls), "items": len(items), "in_flight": self.in_flight, "most": self.most_in_flight,
                "early": self.early, "tokens": self.tokens, "faults": Counter(call.fault for call in self.calls),
            }
        )  # fmt: skip

    async def _completion(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        asked = body["messages"][-1]["content"]
        numbered = {int(number): json.loads(text) for number, text in ITEM.findall(asked)}
        fault = self._script.pop(0) if self._script else self.always or self._chance(list(numbered))
        call = Call(time.monotonic(), list(numbered.values()), body, dict(request.headers), fault.kind)
        self.early += any(quiet.forbids(call.at) for quiet in self._quiet)
        self.calls.append(call)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            if self.latency_ms:
                await asyncio.sleep(self.latency_ms / 1000)
            if self.api_key and request.headers.get("Authorization") != f"Bearer {self.api_key}":
                return web.json_response({"error": {"code": "invalid_api_key", "message": "no"}}, status=401)
            response = await self._act(request, fault, numbered, body)
            call.done = True
            return response
        finally:
            self.in_flight -= 1

    async def _act(
        self, request: web.Request, fault: Fault, numbered: dict[int, str], body: dict[str, Any]
    ) -> web.StreamResponse:
        if fault.kind == "raw":
            return await self._raw(request, fault)
        if fault.kind == "reset":
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if fault.kind == "hang":
            await asyncio.sleep(fault.seconds)
        if fault.kind == "drip":
            return await self._drip(request, fault, numbered, body)
        whole = self._completed(fault, numbered, body)
        self.tokens += whole.get("usage", {}).get("total_tokens", 0)
        if self.token_ms:
            await asyncio.sleep(whole["usage"]["completion_tokens"] * self.token_ms / 1000)
        if fault.kind == "stream":
            return web.Response(text=_chunks(whole), content_type="text/event-stream")
        return web.json_response(whole)

    async def _raw(self, request: web.Request, fault: Fault) -> web.StreamResponse:
        headers = {"Content-Type": "application/json", **fault.headers}
        wait_s = fault.headers.get("Retry-After", "")
        if not wait_s.replace(".", "", 1).isdigit():
            return web.Response(body=fault.body.encode(), status=fault.status, headers=headers)
        # The client is to close the connection, which it does when it has read the answer: so we see when that is.
        quiet = Quiet(until=time.monotonic() + float(wait_s))
        self._quiet = [each for each in self._quiet if each.until > time.monotonic()] + [quiet]
        body = fault.body.encode()
        response = web.StreamResponse(
            status=fault.status, headers={**headers, "Connection": "close", "Content-Length": str(len(body))}
        )
        await response.prepare(request)
        await response.write(body)
        try:
            await asyncio.sleep(max(float(wait_s), 1.0))
        finally:  # the handler is cancelled when the connection is closed
            quiet.read_at = time.monotonic()
        return response

    async def _drip(
        self, request: web.Request, fault: Fault, numbered: dict[int, str], body: dict[str, Any]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        end = time.monotonic() + fault.seconds
        while time.monotonic() < end:
            await response.write(b" ")
            await asyncio.sleep(0.1)
        await response.write(json.dumps(self._completed(fault, numbered, body)).encode())
        await response.write_eof()
        return response

    def _chance(self, numbers: Sequence[int]) -> Fault:
        return self.rates.draw(self._rnd, numbers) if self.rates else Fault()

    def _label(self, text: str) -> str:
        return self.by_text.get(text) or category_of(text)

    def _said(self, text: str, label: str) -> object:
        return {"category": label, **self.fields_of(text)} if self.fields_of else label

    def _completed(self, fault: Fault, numbered: dict[int, str], body: dict[str, Any]) -> dict[str, Any]:
        said = [(str(n), self._label(text)) for n, text in numbered.items() if n not in fault.missing]
        said = [(number, fault.wrong.get(number, label)) for number, label in said]
        said += [*fault.twice.items(), *fault.extra.items()]
        pairs = [(number, self._said(numbered.get(int(number), ""), label)) for number, label in said]
        text = "{" + ",".join(f"{json.dumps(n)}:{json.dumps(x, ensure_ascii=False)}" for n, x in pairs) + "}"
        finish = fault.finish_reason or "stop"
        if fault.kind == "broken":
            text = text[: len(text) // 2]
        if fault.cut_at:
            at = text.index(f'"{fault.cut_at}":"') + len(f'"{fault.cut_at}":"') + 3
            text, finish = text[:at], "length"
        # Rough counts, the same for the same prompt; the tests' sums are checked against them.
        usage = {
            "prompt_tokens": sum(len(m["content"]) for m in body["messages"]) // 4,
            "completion_tokens": max(len(text) // 4, 1),
        }
        usage["total_tokens"] = sum(usage.values())
        return {
            "id": f"stub-{len(self.calls)}",
            "object": "chat.completion",
            "model": body.get("model", "stub"),
            "choices": [
                {
                    "index": 0,
                    "finish_reason": finish,
                    "message": {"role": "assistant", "content": fault.prefix + text + fault.suffix},
                }
            ],
            **({"usage": usage} if fault.usage else {}),
        }


def _chunks(whole: dict[str, Any]) -> str:
    choice = whole["choices"][0]
    content = choice["message"]["content"]
    parts = [{"delta": {"content": content[i : i + 7]}, "finish_reason": None} for i in range(0, len(content), 7)]
    parts.append({"delta": {}, "finish_reason": choice["finish_reason"]})
    rows = [json.dumps({"model": whole["model"], "choices": [part]}) for part in parts]
    rows.append(json.dumps({"model": whole["model"], "choices": [], "usage": whole["usage"]}))
    return "".join(f"data: {row}\n\n" for row in [*rows, "[DONE]"])


async def _serve(given: argparse.Namespace) -> None:
    rates = Rates(**json.loads(given.rates)) if given.rates else None
    async with ModelServer(
        given.port, latency_ms=given.latency_ms, token_ms=given.token_ms, rates=rates, seed=given.seed
    ) as server:
        print(f"ready 127.0.0.1:{server.port}", flush=True)
        await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--latency-ms", type=float, default=0.0)
    parser.add_argument("--token-ms", type=float, default=0.0)
    parser.add_argument("--rates", default="", help="JSON of Rates; '{}' is the defaults")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(given))


if __name__ == "__main__":
    main()
