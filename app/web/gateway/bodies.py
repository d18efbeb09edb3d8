"""Request bodies: read within limits, unpacked, and split into the bytes of single events.

Limits count unpacked bytes. Nothing here raises anything but `Problem`.
"""

import asyncio
import zlib
from collections.abc import Callable

import msgspec
from starlette.requests import ClientDisconnect, Request

from app.settings import GatewaySettings
from app.sources.document import parse
from app.web.problems import Problem
from models.events import Bad

__all__ = ["read_body", "split_lines", "split_list"]

CLOSE = {"Connection": "close"}
"""A body that isn't read to its end makes the connection useless."""
GZIP_WINDOW = 31
ZLIB_WINDOW = 15

_raws = msgspec.json.Decoder(list[msgspec.Raw]).decode


async def read_body(request: Request, limits: GatewaySettings, take: Callable[[int], None]) -> bytes:
    """The whole body, unpacked.

    Args:
        request: the request.
        limits: bytes and seconds.
        take: called with the bytes of each piece; may refuse by raising `Problem`.

    Raises:
        Problem: 400, 408, 413 or 415.
    """
    unpacker = _unpacker(request.headers.get("content-encoding", "").strip().lower())
    length = request.headers.get("content-length", "")
    if length.isdigit() and len(length) < 20 and int(length) > limits.max_body_bytes:
        raise _too_large(limits)
    pieces: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(limits.body_timeout_s):
            async for packed in request.stream():
                piece = packed if unpacker is None else _unpack(unpacker, packed, limits.max_body_bytes - size)
                size += len(piece)
                if size > limits.max_body_bytes:
                    raise _too_large(limits)
                take(len(piece))
                pieces.append(piece)
    except TimeoutError:
        raise Problem(
            408, "body-timeout", f"the body wasn't there within {limits.body_timeout_s:g} s", headers=CLOSE
        ) from None
    except ClientDisconnect:
        raise Problem(400, "disconnected", "the client went away before the body was there") from None
    if unpacker is not None and not unpacker.eof:
        raise Problem(400, "bad-encoding", f"the packed body ends in the middle, after {size} unpacked bytes")
    return b"".join(pieces)


def _too_large(limits: GatewaySettings) -> Problem:
    return Problem(
        413,
        "too-large",
        f"a body may have {limits.max_body_bytes} bytes, unpacked (gateway.max_body_bytes)",
        headers=CLOSE,
    )


def _unpacker(encoding: str) -> "zlib._Decompress | None":
    if encoding in ("", "identity"):
        return None
    if encoding in ("gzip", "x-gzip"):
        return zlib.decompressobj(GZIP_WINDOW)
    if encoding == "deflate":
        return zlib.decompressobj(ZLIB_WINDOW)
    raise Problem(415, "bad-encoding", "Content-Encoding may be gzip, deflate or identity", field="content-encoding")


def _unpack(unpacker: "zlib._Decompress", packed: bytes, room: int) -> bytes:
    """Unpacks a piece, but no more than one byte above the room: a bomb costs nothing."""
    try:
        piece = unpacker.decompress(packed, room + 1)
    except zlib.error as error:
        raise Problem(400, "bad-encoding", f"the packed body can't be read: {error}", headers=CLOSE) from None
    if unpacker.eof and unpacker.unused_data:
        raise Problem(400, "bad-encoding", "there is more behind the end of the packed body", headers=CLOSE)
    return piece


def split_list(body: bytes, max_items: int, max_depth: int) -> list[bytes]:
    """The elements of a JSON array, each as it stands.

    Raises:
        Problem: it is no JSON, or holds too many.
    """
    try:
        found: list[bytes] = [bytes(raw) for raw in _raws(body)]
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        document = parse(body, max_depth + 1)
        if isinstance(document, Bad):
            raise Problem.of(document) from None
        raise Problem(400, "invalid-json", "the list can't be split into its events; send them one a line") from None
    return _checked(found, max_items)


def split_lines(body: bytes, max_items: int) -> list[bytes]:
    """The lines of NDJSON, without their ends; empty ones don't count."""
    return _checked([line for line in (raw.strip(b" \t\r") for raw in body.split(b"\n")) if line], max_items)


def _checked(found: list[bytes], max_items: int) -> list[bytes]:
    if not found:
        raise Problem(400, "empty-list", "there is no event in the body")
    if len(found) > max_items:
        raise Problem(413, "too-many", f"{len(found)} events; a request may have {max_items} (gateway.max_items)")
    return found
