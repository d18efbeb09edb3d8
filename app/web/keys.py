"""API keys: random, stored as SHA-256 in the compacted topic `api-keys`, which every gateway follows.

A token is `hr_ID_SECRET`. The secret has 256 random bits, so a plain hash is enough: there is nothing to guess. A key
that is revoked stays in the topic with the time of it, and every gateway refuses it as soon as it reads that record.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from typing import get_args

import msgspec

from app.settings_web import Scope
from app.web.roster import Roster

__all__ = ["SCOPES", "ApiKey", "KeyRing", "new_key"]

SCOPES: tuple[Scope, ...] = get_args(Scope)

_TOKEN = re.compile(r"hr_([0-9a-f]{12})_[A-Za-z0-9_-]{43}")


class ApiKey(msgspec.Struct, kw_only=True, frozen=True):
    """What is stored of a key."""

    id: str
    sha256: str
    """Of the whole token, hex."""
    scopes: list[Scope]
    name: str = ""
    """For people: who uses it."""
    created_ms: int
    revoked_ms: int = 0

    def allows(self, scope: Scope) -> bool:
        return scope in self.scopes or "admin" in self.scopes


def new_key(scopes: Iterable[Scope], name: str, now_ms: int) -> tuple[str, ApiKey]:
    """The token, which is shown once and stored nowhere, and what is stored of it."""
    key_id = secrets.token_hex(6)
    token = f"hr_{key_id}_{secrets.token_urlsafe(32)}"
    digest = hashlib.sha256(token.encode()).hexdigest()
    return token, ApiKey(id=key_id, sha256=digest, scopes=list(scopes), name=name, created_ms=now_ms)


class KeyRing(Roster[ApiKey]):
    """All keys of the deployment, as the topic tells them."""

    def __init__(self) -> None:
        super().__init__(ApiKey, lambda key: key.id)

    def holds(self, key_id: str) -> bool:
        """The key is still there and not revoked: asked by what began with it and goes on."""
        key = self.entries.get(key_id)
        return key is not None and not key.revoked_ms

    def find(self, token: str) -> ApiKey | None:
        """The key that a token is of, unless it is unknown or revoked."""
        match = _TOKEN.fullmatch(token)
        key = self.entries.get(match[1]) if match else None
        if key is None or key.revoked_ms:
            return None
        digest = hashlib.sha256(token.encode()).hexdigest()
        return key if hmac.compare_digest(digest.encode(), key.sha256.encode()) else None
