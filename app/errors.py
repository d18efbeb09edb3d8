"""Every error the application raises on purpose.

    HeadraceError
    ├── SettingsError             a setting is wrong; names the field, what was given, what is allowed
    ├── BrokerError               the embedded or an external Kafka can't serve us
    ├── StateError                local state or its changelog can't be trusted; says what to do
    │   ├── StateDamaged          the local copy can't be read: it is set aside and rebuilt from the changelog
    │   ├── ChangelogLost         the changelog was deleted and made again: written anew from the local copy
    │   └── StateDiskFull         there is no room for the local copy: tried again until there is
    ├── OutputError               an output can't be written (too large, refused)
    ├── SinkError                 a sink's database can't be used like this; says what to do
    │   └── SinkUnavailable       retryable: not reachable, or busy
    └── ModelError                a model call failed; `retryable` decides what happens next
        ├── ModelUnavailable      retryable: time-out, reset, 429, 5xx, not reachable
        └── ModelRefused          not retryable: 400, 401, 403, 404, quota used up

The class and its attributes decide what is done; nothing matches on message text.
"""

__all__ = [
    "BrokerError",
    "ChangelogLost",
    "HeadraceError",
    "ModelError",
    "ModelRefused",
    "ModelUnavailable",
    "OutputError",
    "SettingsError",
    "SinkError",
    "SinkUnavailable",
    "StateDamaged",
    "StateDiskFull",
    "StateError",
]


class HeadraceError(Exception):
    """Base class. `retryable` is True when the same attempt may succeed later."""

    retryable: bool = False
    retry_after_s: float | None = None


class SettingsError(HeadraceError):
    """A setting is wrong. Raised at start, before anything is read or written."""


class BrokerError(HeadraceError):
    """Kafka can't be started or reached, or lacks what we need."""

    retryable = True


class StateError(HeadraceError):
    """State and input don't fit together (recreated input, lost state, foreign folder)."""


class StateDamaged(StateError):
    """A local copy can't be read. Retryable: it is set aside when it is opened again, and rebuilt."""

    retryable = True


class ChangelogLost(StateError):
    """A changelog holds less than was written to it. Retryable: the lane begins again and writes it anew."""

    retryable = True


class StateDiskFull(StateError):
    """The disk of the local copies is full. Retryable: work goes on when there is room."""

    retryable = True


class OutputError(HeadraceError):
    """An output can't be written."""


class SinkError(HeadraceError):
    """A sink's database can't be used like this: its tables, rights, or what it is given."""


class SinkUnavailable(SinkError):
    """The database isn't reachable, or doesn't manage now."""

    retryable = True


class ModelError(HeadraceError):
    """A model call failed.

    Args:
        message: what happened, without prompt or answer text.
        status: the HTTP status, if there was an answer.
        retry_after_s: how long the provider asks to be left alone, in seconds.
    """

    def __init__(self, message: str, *, status: int | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s


class ModelUnavailable(ModelError):
    """Time-out, connection error, 429 or 5xx: the same call may succeed later."""

    retryable = True


class ModelRefused(ModelError):
    """400, 401, 403, 404 or an exhausted account: the same call will fail again."""
