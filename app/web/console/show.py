"""How numbers are written. What isn't known is a dash: it isn't zero."""

__all__ = ["UNKNOWN", "bytes_", "count", "rate", "seconds", "share", "usd"]

UNKNOWN = "–"
MICRO = 0.01


def count(value: float | None) -> str:
    """A whole number with its thousands."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def rate(value: float | None) -> str:
    """So many a second: three digits of it."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def usd(value: float | None) -> str:
    """US dollars, down to what one call costs."""
    if value is None:
        return UNKNOWN
    return f"${value:,.2f}" if value >= MICRO or not value else f"${value:.2g}"


def share(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0%}"


def seconds(value: float | None) -> str:
    """A duration in the unit that suits it."""
    if value is None:
        return UNKNOWN
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if value >= 2 * size:
            return f"{value / size:.0f} {unit}"
    return f"{value:.0f} s"


def bytes_(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    for size, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if value >= size:
            return f"{value / size:.1f} {unit}"
    return f"{value:.0f} B"
