"""Users of the console: name, role and the password's argon2 hash, in the compacted topic `console-users`.

The topic also holds which sessions were ended before their time, under `session:ID`: a console that starts anew must not
take them for valid.
"""

import asyncio
import functools
import re
import time
from typing import get_args

import argon2
import msgspec
from aiokafka.structs import ConsumerRecord

from app.errors import HeadraceError
from app.settings_web import ConsoleRole as Role
from app.web.roster import Roster

__all__ = ["ROLES", "Role", "User", "UserBook", "bad_name", "bad_password", "hash_password", "may", "verify_password"]

ROLES: tuple[Role, ...] = get_args(Role)

SESSION = "session:"
MIN_PASSWORD, MAX_PASSWORD = 12, 1024
"""Characters. Longer than NIST's 8 (SP 800-63B): nothing else guards the login."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")


class User(msgspec.Struct, kw_only=True, frozen=True):
    """What is stored of a user."""

    name: str
    role: Role
    password: str
    """As argon2 encodes a hash, with salt and parameters."""
    created_ms: int
    changed_ms: int
    """Role or password changed: sessions from before it are over."""

    def changed(self, *, role: Role | None = None, password: str | None = None) -> "User":
        """With another role or password hash."""
        at = max(self.changed_ms + 1, int(time.time() * 1000))
        return msgspec.structs.replace(self, role=role or self.role, password=password or self.password, changed_ms=at)


class UserBook(Roster[User]):
    """All users of the deployment, and the sessions that were ended."""

    def __init__(self) -> None:
        super().__init__(User, lambda user: user.name)
        self.ended: dict[str, int] = {}
        """When, by session id, Unix milliseconds. Stays when the topic is made anew: the rest may come from a backup."""

    def apply(self, record: ConsumerRecord[bytes, bytes]) -> None:
        key = (record.key or b"").decode("utf-8", "replace")
        if not key.startswith(SESSION):
            super().apply(record)
        elif record.value is None:
            self.ended.pop(key.removeprefix(SESSION), None)
        else:
            self.ended[key.removeprefix(SESSION)] = record.timestamp


def may(role: Role, needed: Role) -> bool:
    """Whether a role may do what another is needed for."""
    return needed == "viewer" or role in (needed, "admin")


def bad_name(name: str) -> str:
    """Why a name can't be a user's; empty: it can."""
    return (
        ""
        if _NAME.fullmatch(name)
        else "a name has up to 64 letters, digits and . _ @ -, and begins with one of the first"
    )


def bad_password(password: str) -> str:
    """Why a password can't be taken; empty: it can."""
    if len(password) < MIN_PASSWORD:
        return f"a password has {MIN_PASSWORD} characters or more"
    return f"a password has at most {MAX_PASSWORD} characters" if len(password) > MAX_PASSWORD else ""


@functools.cache
def _hasher() -> argon2.PasswordHasher:
    return argon2.PasswordHasher()  # the library's profile is RFC 9106's for little memory


@functools.cache
def _nobody() -> str:
    """Verified where there is no such user: the reply takes as long as for one that there is."""
    return _hasher().hash("")


async def hash_password(password: str) -> str:
    """The hash to be stored; made in a thread.

    Raises:
        HeadraceError: the password is too short or too long.
    """
    if why := bad_password(password):
        raise HeadraceError(why)
    return await asyncio.to_thread(_hasher().hash, password)


async def verify_password(user: User | None, password: str) -> bool:
    """Whether it is the user's; in a thread, and as long for nobody as for somebody."""
    right = await asyncio.to_thread(_matches, user.password if user else _nobody(), password)
    return right and user is not None


def _matches(stored: str, password: str) -> bool:
    try:
        return _hasher().verify(stored, password)
    except (argon2.exceptions.VerificationError, argon2.exceptions.InvalidHashError, UnicodeError):
        return False
