"""Sessions: signed cookies that say who somebody is, and what takes them away again.

A cookie is enough to know its session, so a restart of the console ends none. It holds until `console.session_s` has passed,
until it is ended (a logout, kept in `console-users`), and until its user gets another role or password, or is removed. That of
somebody whom the identity provider knows holds for `console.oidc.session_s`, with the role that the login gave.
"""

import hashlib
import json
import secrets
import time
from collections.abc import Callable

import itsdangerous
import msgspec

from app.settings_web import ConsoleSettings, OidcSettings
from app.web.users import SESSION, Role, User, UserBook, may

__all__ = ["COOKIE", "LOCAL_USER", "Guest", "Session", "Sessions"]

COOKIE = "headrace_session"
LOCAL_USER = "(local)"
"""Who came in by the link in the terminal. No user can be called so."""
GUEST = "oidc:"
"""Before the names that an identity provider gives. No user's name has a colon."""


class Guest(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody whom the identity provider knows."""

    name: str
    """As it is shown, and is written into audit and decisions after `oidc:`. It may change hands at the provider."""
    subject: str
    """The provider's own name of the person (`sub`), which never changes hands."""
    role: Role


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """Who is logged in, from when on."""

    id: str
    user: str
    begun_ms: int
    changed_ms: int = 0
    """`User.changed_ms` as it was at the login."""
    process: str = ""
    """Of who came in by the link: the process that showed it."""
    guest: Guest | None = None
    provider: str = ""
    """Of a guest: which settings of the provider the role is from."""


class Sessions:
    """Makes sessions, and tells which still hold.

    Args:
        settings: secret, and how long they last.
        book: the users.
        known: tells whether the book is current. While it isn't, nobody may do more than look.
        read: tells whether the book was read at all. Before that it isn't known who has logged out.
    """

    def __init__(
        self, settings: ConsoleSettings, book: UserBook, known: Callable[[], bool], read: Callable[[], bool]
    ) -> None:
        self._settings, self._book, self._known, self._read = settings, book, known, read
        self._secret = settings.secret.get_secret_value() or secrets.token_hex(32)
        self._signer = itsdangerous.URLSafeSerializer(self._secret, salt="headrace console session")
        self.process = secrets.token_hex(16)
        self._provider = _digest(settings.oidc)

    def begin(self, who: User | Guest | None) -> tuple[Session, str]:
        """A new session and its cookie; None: of whoever came in by the link."""
        session = Session(id=secrets.token_urlsafe(24), user=LOCAL_USER, begun_ms=int(time.time() * 1000))
        match who:
            case User():
                own = {"user": who.name, "changed_ms": who.changed_ms}
            case Guest():
                own = {"user": GUEST + who.name, "guest": who, "provider": self._provider}
            case None:
                own = {"process": self.process}
        session = msgspec.structs.replace(session, **own)
        cookie = self._signer.dumps(msgspec.to_builtins(session))
        return session, cookie if isinstance(cookie, str) else cookie.decode()

    def signer(self, salt: str) -> itsdangerous.URLSafeTimedSerializer:
        """Signs other cookies of the console; `salt` keeps those of one purpose from being taken for another's."""
        return itsdangerous.URLSafeTimedSerializer(self._secret, salt=salt)

    def of(self, cookie: str | None) -> Session | None:
        """The session of a cookie, if it holds."""
        session = self.signed(cookie)
        return session if session is not None and self.role(session) else None

    def signed(self, cookie: str | None) -> Session | None:
        """The session of a cookie of ours, whether it holds or not."""
        try:
            return msgspec.convert(self._signer.loads(cookie or ""), Session)
        except (itsdangerous.BadData, msgspec.ValidationError, RecursionError):
            return None

    def role(self, session: Session) -> Role | None:
        """What a session's user is now; None: it doesn't hold any more, or that isn't known (`over` tells)."""
        if self._ended(session):
            return None
        if session.process:
            return "admin" if session.process == self.process else None
        if session.guest is not None:
            return session.guest.role if session.provider == self._provider and self._read() else None
        user = self._book.entries.get(session.user)
        return user.role if user is not None and user.changed_ms == session.changed_ms else None

    def over(self, session: Session) -> bool:
        """Whether a session is known not to hold any more. What the users tell isn't known before they are read."""
        if self.role(session) is not None:
            return False
        foreign = session.guest is not None and session.provider != self._provider
        return bool(session.process) or foreign or self._ended(session) or self.current

    @property
    def current(self) -> bool:
        """False while it can't be known what changed of the users: then nobody may do more than look."""
        return self._known()

    def may(self, session: Session, needed: Role) -> bool:
        """Whether a session may do what a role is needed for, at this moment."""
        role = self.role(session)
        return role is not None and may(role, needed) and (self.current or needed == "viewer")

    def _ended(self, session: Session) -> bool:
        lasts_s = self._settings.session_s
        if session.guest is not None:
            lasts_s = min(lasts_s, self._settings.oidc.session_s)
        return session.id in self._book.ended or time.time() * 1000 > session.begun_ms + lasts_s * 1000

    def end(self, session: Session) -> tuple[str, bytes]:
        """Ends a session here; returns key and value of the record that makes it known after a restart."""
        self._book.ended[session.id] = int(time.time() * 1000)
        return SESSION + session.id, b"{}"

    def forgotten(self) -> list[str]:
        """Keys of ended sessions that have run out by now: their records may go."""
        limit = (time.time() - self._settings.session_s) * 1000
        return [SESSION + each for each, ended_ms in self._book.ended.items() if ended_ms < limit]


def _digest(oidc: OidcSettings) -> str:
    """Of what decides who is let in, and as what: sessions of guests end when that changes."""
    decisive = [oidc.issuer, oidc.client_id, oidc.role_claim, list(oidc.roles.items()), oidc.default_role]
    return hashlib.sha256(json.dumps(decisive).encode()).hexdigest()[:32]
