"""Replies kept for repeated requests with an Idempotency-Key, shared by all gateways through `gateway-replies`.

What is not covered here is covered by the event ids: a gateway that is killed between the events' acks and the record of
its reply lets the repeat write them again, and ingest drops them as duplicates.
"""

import hashlib
import time
import zlib
from collections import OrderedDict

import msgspec
from aiokafka.structs import ConsumerRecord

from app.web.problems import Problem

__all__ = ["MAX_NAME_CHARS", "Replies", "Reply", "digest"]

MAX_NAME_CHARS = 255
MAX_STORED_BYTES = 256 << 10
"""Packed. A larger reply (of a list of tens of thousands) isn't kept."""


class Reply(msgspec.Struct, array_like=True, frozen=True):
    """What was answered."""

    request: bytes
    """SHA-256 of what was asked."""
    status: int
    body: bytes
    """Packed (zlib)."""
    at_ms: int

    @property
    def content(self) -> bytes:
        return zlib.decompress(self.body)


encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Reply).decode


def digest(*parts: bytes) -> bytes:
    """SHA-256 over parts that can't run into each other."""
    total = hashlib.sha256()
    for part in parts:
        total.update(len(part).to_bytes(8, "big") + part)
    return total.digest()


class Replies:
    """Kept replies by the hash of API key and Idempotency-Key.

    Args:
        keep_s: how long.
        most: how many.
    """

    def __init__(self, keep_s: float, most: int) -> None:
        self._keep_ms, self._most = int(keep_s * 1000), most
        self._kept: OrderedDict[bytes, Reply] = OrderedDict()
        self._running: dict[bytes, bytes] = {}

    def apply(self, record: ConsumerRecord[bytes, bytes]) -> None:
        """Takes what another gateway answered."""
        try:
            reply = _decode(record.value or b"")
        except msgspec.MsgspecError:
            return
        self._keep(record.key or b"", reply)

    def clear(self) -> None:
        """Forgets them: the topic was made anew. Ingest drops what is repeated then."""
        self._kept.clear()

    def begin(self, name: bytes, request: bytes) -> Reply | None:
        """The kept reply to the same request, or None: then it runs, until `end`.

        Raises:
            Problem: 409 while the same one runs, 422 when the key was used for something else.
        """
        kept = self._kept.get(name)
        if kept is not None and kept.at_ms < time.time() * 1000 - self._keep_ms:
            kept = None
        other = kept.request if kept is not None else self._running.get(name)
        if other is not None and other != request:
            raise Problem(
                422,
                "idempotency-conflict",
                "this Idempotency-Key was used for another request",
                field="idempotency-key",
            )
        if kept is None and other is not None:
            raise Problem(
                409, "idempotency-running", "the request with this Idempotency-Key still runs", field="idempotency-key",
                headers={"Retry-After": "1"},
            )  # fmt: skip
        if kept is None:
            self._running[name] = request
        return kept

    def end(self, name: bytes, status: int = 0, body: bytes = b"") -> bytes | None:
        """The request ended; without a status nothing is kept, and it may be tried again.

        Returns:
            What to store for the other gateways, or None.
        """
        request = self._running.pop(name)
        packed = zlib.compress(body, 1) if status else b""
        if not status or len(packed) > MAX_STORED_BYTES:
            return None
        reply = Reply(request, status, packed, int(time.time() * 1000))
        self._keep(name, reply)
        return encode(reply)

    def _keep(self, name: bytes, reply: Reply) -> None:
        self._kept[name] = reply
        self._kept.move_to_end(name)
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)
