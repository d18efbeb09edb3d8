"""Event times: numbers in a stated unit, RFC 3339 text, or a strptime format, all to ms since the epoch.

Times that carry no zone get the source's. An hour that clocks pass twice is taken the first time, one that they skip is
moved forward by the gap (PEP 495, fold=0). A format without a year gets the year that brings the time nearest to the
record's timestamp. Nothing before 1970 or too far ahead of the record's timestamp passes: a wrong unit shows at once.
"""

import functools
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from app.errors import SettingsError
from app.settings import SourceSettings

__all__ = ["BadTime", "TimeReader", "compile_time"]

TimeReader = Callable[[object, int], int]
"""Takes a value and the record's timestamp (ms), gives ms since the epoch; raises BadTime."""

_RFC3339 = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:[.,](\d+))?\s*(?:([Zz])|([+-])(\d\d):?(\d\d))?", re.ASCII
)
_NUMBER = re.compile(r"[+-]?\d{1,30}(\.\d{1,30})?", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_UNITS = {"ms": (1, 1), "auto": (1, 1), "s": (1000, 1), "us": (1, 1000), "ns": (1, 1_000_000)}
"""Unit to factor and divisor, so that integers stay exact."""
_WITH_YEAR = re.compile(r"%(?:[YyGcxs])")


class BadTime(ValueError):
    """A value that is no time of this source; the message says why, without the value."""


def compile_time(source: SourceSettings, max_future_ms: int) -> TimeReader:
    """A reader for a source's times.

    Raises:
        SettingsError: unknown zone, or time_unit and time_format don't fit together. Not retryable.
    """
    zone = _zone(source)
    unit = source.time_unit
    if (unit == "strptime") != bool(source.time_format):
        raise SettingsError(
            f"source {source.name}, time_format: needed with time_unit strptime and only there, given "
            f"{source.time_format!r} with {unit}"
        )
    if unit == "strptime":
        read: TimeReader = _strptime(source, zone)
    elif unit == "rfc3339":
        read = lambda value, _: _rfc3339(value, zone)  # noqa: E731 - one of three small readers
    else:
        read = _number_or_text(unit, zone)

    def bounded(value: object, record_ms: int) -> int:
        at_ms = read(value, record_ms)
        now_ms = record_ms if record_ms >= 0 else int(time.time() * 1000)
        if at_ms < 0:
            raise BadTime("lies before 1970; leave the field out where there is no time, or check time_unit")
        if at_ms > now_ms + max_future_ms:
            raise BadTime(
                f"lies {(at_ms - now_ms) // 86_400_000} days ahead of the record's timestamp; check time_unit ({unit}) "
                "and the producer's clock (ingest.max_future_s)"
            )
        return at_ms

    return bounded


def _zone(source: SourceSettings) -> ZoneInfo:
    try:
        return ZoneInfo(source.timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise SettingsError(
            f"source {source.name}, timezone: {source.timezone!r} is no IANA zone; write it like Europe/Berlin"
        ) from None


def _number_or_text(unit: str, zone: ZoneInfo) -> TimeReader:
    factor, divisor = _UNITS[unit]

    def read(value: object, record_ms: int) -> int:
        if isinstance(value, str):
            if _NUMBER.fullmatch(value):
                value = float(value) if "." in value else int(value)
            elif unit == "auto":
                return _rfc3339(value, zone)
            else:
                raise BadTime(f"is text that is no number; time_unit is {unit}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BadTime("is neither a number nor text")
        try:
            return int(value * factor // divisor)
        except (OverflowError, ValueError):
            raise BadTime("is no number that a time can be") from None

    return read


def _rfc3339(value: object, zone: ZoneInfo) -> int:
    found = _RFC3339.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise BadTime("isn't RFC 3339, like 2026-11-30T10:00:00Z")
    year, month, day, hour, minute, second, fraction, zulu, sign, off_hours, off_minutes = found.groups()
    leap = second == "60"  # RFC 3339 allows it; it counts as the second after :59
    micros = int((fraction or "0")[:6].ljust(6, "0"))
    try:
        local = datetime(int(year), int(month), int(day), int(hour), int(minute), 59 if leap else int(second), micros)  # noqa: DTZ001
        if leap:
            local += timedelta(seconds=1)
        if zulu is None and sign is None:
            return _ms(local.replace(tzinfo=zone))
        offset = timedelta(hours=int(off_hours or 0), minutes=int(off_minutes or 0))
        return _ms(local.replace(tzinfo=UTC)) - (offset // _MS) * (-1 if sign == "-" else 1)
    except (ValueError, OverflowError):
        raise BadTime("names a day or an hour that there isn't") from None


def _ms(moment: datetime) -> int:
    return (moment - _EPOCH) // _MS


def _strptime(source: SourceSettings, zone: ZoneInfo) -> TimeReader:
    form = source.time_format
    has_year = _WITH_YEAR.search(form.replace("%%", "")) is not None
    # 2000 is a leap year, so that 29 February can be read before the year is known.
    full = form if has_year else f"%Y {form}"
    try:
        datetime.strptime(datetime(2000, 1, 1, tzinfo=UTC).strftime(full), full)  # noqa: DTZ007 - only tries it
    except ValueError as error:
        raise SettingsError(f"source {source.name}, time_format: {form!r} can't be used ({error})") from None

    @functools.lru_cache(maxsize=4096)  # lines of one second share their time, and strptime takes 8 us
    def parsed(text: str) -> datetime:
        moment = datetime.strptime(text if has_year else f"2000 {text}", full)  # noqa: DTZ007 - given its zone below
        return moment if moment.tzinfo else moment.replace(tzinfo=zone)

    def read(value: object, record_ms: int) -> int:
        if not isinstance(value, str) or len(value) > 100:
            raise BadTime("isn't text in the source's time_format")
        try:
            moment = parsed(value)
            return _ms(moment) if has_year else _nearest_year(moment, record_ms)
        except (ValueError, OverflowError):
            raise BadTime("doesn't fit the source's time_format") from None

    return read


def _nearest_year(moment: datetime, record_ms: int) -> int:
    year = (_EPOCH + max(0, record_ms) * _MS).year
    found = []
    for candidate in (year - 1, year, year + 1):
        try:
            found.append(_ms(moment.replace(year=candidate)))
        except ValueError:
            continue  # 29 February in a year that has none
    if not found:
        raise BadTime("names 29 February, and no year near the record's timestamp has one")
    return min(found, key=lambda at_ms: abs(at_ms - record_ms))
