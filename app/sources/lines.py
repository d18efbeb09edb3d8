"""Plain text, one line a record, to a document of named groups; `line` is always the whole line."""

import re
from dataclasses import dataclass

from app.errors import SettingsError
from app.settings import SourceSettings
from app.sources.paths import names_of
from models.events import Bad

__all__ = ["LineReader", "named_pattern"]


@dataclass(frozen=True, slots=True)
class NamedPattern:
    """A line format that many systems write."""

    regex: str
    time_format: str
    """Of the group `time`; used when time_unit is auto."""


NAMED = {
    # Apache's and nginx's `combined`; `common` lacks the last two. A request may be anything a scanner sent, also `-`.
    "combined": NamedPattern(
        r"(?P<clientip>\S+) (?P<ident>\S+) (?P<user>.*?) \[(?P<time>[^\]]+)\] "
        r'"(?P<request>(?P<method>[A-Z]{1,20}) (?P<path>\S+)(?: (?P<protocol>HTTP/\S+))?|(?:[^"\\]|\\.)*)" '
        r'(?P<status>\d{3}) (?P<bytes>\d+|-)(?: "(?P<referrer>(?:[^"\\]|\\.)*)"(?: "(?P<agent>(?:[^"\\]|\\.)*)"?)?)?.*',
        "%d/%b/%Y:%H:%M:%S %z",
    ),
    # RFC 3164 as syslogd writes it to a file; the priority is there on the wire only.
    "syslog": NamedPattern(
        r"(?:<(?P<priority>\d{1,3})>)?(?P<time>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d) (?P<host>\S+) "
        r"(?:(?P<program>[^\s:\[]+)(?:\[(?P<pid>\d+)\])?: ?)?(?P<message>.*)",
        "%b %d %H:%M:%S",
    ),
    "line": NamedPattern(r".*", ""),
}


def named_pattern(source: SourceSettings) -> SourceSettings:
    """The source, with the time format of its named pattern where it says nothing else."""
    named = NAMED.get(source.pattern or "line")
    if named is None or not named.time_format or source.event_time != "time" or source.time_unit != "auto":
        return source
    return source.model_copy(update={"time_unit": "strptime", "time_format": named.time_format})


class LineReader:
    """Matches lines against a source's pattern.

    Raises:
        SettingsError: the pattern is no regular expression, or a mapped name isn't in it. Not retryable.
    """

    def __init__(self, source: SourceSettings) -> None:
        self.name = source.pattern or "line"
        named = NAMED.get(self.name)
        try:
            self._regex = re.compile(named.regex if named else source.pattern, re.DOTALL)
        except re.error as error:
            raise SettingsError(
                f"source {source.name}, pattern: not a regular expression ({error}), nor one of {', '.join(NAMED)}"
            ) from None
        _check_names(source, {*self._regex.groupindex, "line"})

    def read(self, value: bytes) -> dict[str, str | None] | Bad:
        """The groups of a line; a group that took no part is null."""
        try:
            line = value.decode().rstrip("\r\n")
        except UnicodeDecodeError as error:
            return Bad(reason="not-utf8", message=f"byte {error.start} isn't UTF-8; have the shipper send UTF-8")
        if not line:
            return Bad(reason="empty-value", message="an empty line")
        found = self._regex.fullmatch(line)
        if found is None:
            return Bad(reason="no-match", message=f"the line doesn't fit the pattern {self.name[:60]}")
        return {**found.groupdict(), "line": line}


def _check_names(source: SourceSettings, known: set[str]) -> None:
    used: list[tuple[str, str]] = [("fingerprint", path) for path in source.fingerprint]
    used += [(name, getattr(source, name)) for name in ("event_id", "event_time", "entity", "text", "trace_id")]
    used += [
        (name, getattr(source, name))
        for name in ("event_type", "source_system")
        if not getattr(source, name).startswith("=")
    ]
    for setting, path in used:
        for group in names_of(path) if path else ():
            if group not in known:
                raise SettingsError(
                    f"source {source.name}, {setting}: the pattern has no group {group!r}; "
                    f"it has {', '.join(sorted(known))}"
                )
