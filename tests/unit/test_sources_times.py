"""Event times: units, zones, the hour that clocks pass twice, years that aren't there."""

from datetime import UTC, datetime
from typing import Any

import pytest

from app.errors import SettingsError
from models.events import Bad, Event
from tests.helpers.records import NOW_MS, envelope, record, source


def ms(*moment: int) -> int:
    return int(datetime(*moment, tzinfo=UTC).timestamp() * 1000)  # type: ignore[misc, arg-type]


def time_of(value: object, *, at_ms: int = NOW_MS, **mapping: Any) -> int | str:
    event = source(**mapping).read(record(envelope(event_time=value), at_ms=at_ms))
    if isinstance(event, Event):
        return event.event_time_ms
    assert event.field == "event_time"
    assert "event_time" in event.message
    return event.reason


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1_796_000_000, 1_796_000_000),
        (1_796_000_000_000, 1_796_000_000_000),
        ("1796000000000", 1_796_000_000_000),
        (1_796_000_000_000_000, "bad-time"),
        (1_796_000_000_000_000_000, "bad-time"),
        (10**400, "bad-time"),
        (0, 0),
        (-1, "bad-time"),
        ("0001-01-01T00:00:00Z", "bad-time"),
        ("1969-12-31T23:59:59Z", "bad-time"),
        ("2026-11-30", "bad-time"),
        ("2026-02-30T00:00:00Z", "bad-time"),
        ("yesterday", "bad-time"),
        ("", "bad-time"),
        ("2026-11-29T10:00:00Z", ms(2026, 11, 29, 10)),
        ("2026-11-29t10:00:00.1239z", ms(2026, 11, 29, 10) + 123),
        ("2026-11-29T10:00:00.123456789+01:00", ms(2026, 11, 29, 9) + 123),
        ("2026-11-29 10:00:00-0230", ms(2026, 11, 29, 12, 30)),
        ("2016-12-31T23:59:60Z", ms(2017, 1, 1)),
        ("2026-11-29T10:00:00", ms(2026, 11, 29, 10)),
    ],
)
def test_times_without_a_unit_are_ms_or_rfc_3339(value: object, expected: int | str) -> None:
    assert time_of(value) == expected


@pytest.mark.parametrize(
    ("unit", "value", "expected"),
    [
        ("s", 1_796_000_000, 1_796_000_000_000),
        ("s", 1_796_000_000.25, 1_796_000_000_250),
        ("us", 1_796_000_000_123_456, 1_796_000_000_123),
        ("ns", 1_796_000_000_123_456_789, 1_796_000_000_123),
        ("ns", "1796000000123456789", 1_796_000_000_123),
        ("s", 1_796_000_000_000, "bad-time"),
        ("ms", "2026-11-29T10:00:00Z", "bad-time"),
        ("rfc3339", 1_796_000_000_000, "bad-time"),
        ("rfc3339", "2026-11-29T10:00:00Z", ms(2026, 11, 29, 10)),
    ],
)
def test_a_stated_unit_is_kept_to(unit: str, value: object, expected: int | str) -> None:
    assert time_of(value, time_unit=unit) == expected


def test_too_far_ahead_is_measured_from_the_record() -> None:
    year_ms = 366 * 86_400_000
    assert time_of(NOW_MS + year_ms) == NOW_MS + year_ms
    assert time_of(NOW_MS + year_ms + 1) == "bad-time"
    assert time_of(NOW_MS, at_ms=NOW_MS - year_ms - 1) == "bad-time"


@pytest.mark.parametrize(
    ("local", "expected"),
    [
        ("2026-10-25 01:30:00", ms(2026, 10, 24, 23, 30)),
        ("2026-10-25 02:30:00", ms(2026, 10, 25, 0, 30)),  # passes twice; taken the first time, in summer time
        ("2026-10-25 03:30:00", ms(2026, 10, 25, 2, 30)),
        ("2026-03-29 02:30:00", ms(2026, 3, 29, 1, 30)),  # never comes; moved on to 03:30 summer time
    ],
)
@pytest.mark.parametrize("unit", ["rfc3339", "strptime"])
def test_local_times_around_the_change_of_clocks(local: str, expected: int, unit: str) -> None:
    form = {"time_format": "%Y-%m-%d %H:%M:%S"} if unit == "strptime" else {}
    assert time_of(local, timezone="Europe/Berlin", time_unit=unit, **form) == expected


@pytest.mark.parametrize(
    ("line_time", "sent", "expected"),
    [
        ("Mar 27 13:06:56", (2015, 4, 1), ms(2015, 3, 27, 13, 6, 56)),
        ("Dec 31 23:59:59", (2026, 1, 1), ms(2025, 12, 31, 23, 59, 59)),
        ("Jan  1 00:00:01", (2025, 12, 31), ms(2026, 1, 1, 0, 0, 1)),
        ("Feb 29 12:00:00", (2028, 3, 1), ms(2028, 2, 29, 12)),
        ("Feb 29 12:00:00", (2026, 3, 1), "bad-time"),
        ("Foo 29 12:00:00", (2026, 3, 1), "bad-time"),
    ],
)
def test_a_line_without_a_year_gets_the_nearest(line_time: str, sent: tuple[int, ...], expected: int | str) -> None:
    lines = source(format="text", pattern="syslog", fingerprint=["line"], event_time="time")
    event = lines.read(record(f"{line_time} host sshd[1]: hello".encode(), at_ms=ms(*sent)))
    if isinstance(expected, int):
        assert isinstance(event, Event)
        assert event.event_time_ms == expected
    else:
        assert isinstance(event, Bad)
        assert event.reason == "bad-time"
        assert event.field == "time"


@pytest.mark.parametrize(
    ("mapping", "names"),
    [
        ({"timezone": "Europe/Berlim"}, "timezone"),
        ({"timezone": "../etc/passwd"}, "timezone"),
        ({"time_unit": "strptime"}, "time_format"),
        ({"time_format": "%Y"}, "time_format"),
        ({"time_unit": "strptime", "time_format": "%Q"}, "time_format"),
    ],
)
def test_a_wrong_setting_is_refused_at_start(mapping: dict[str, Any], names: str) -> None:
    with pytest.raises(SettingsError, match=f"source src, {names}"):
        source(**mapping)
