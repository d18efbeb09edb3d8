"""Which windows an event is in, which of them it missed, and which are due. Pure; times in ms since the epoch.

Windows are half-open, [start, start + size), and start at multiples of the hop. One closes when the watermark, the
highest event time less the grace, reaches its end.
"""

__all__ = ["first_open", "missed", "oldest_open"]


def missed(pane_ms: int, hop_ms: int, panes: int, watermark_ms: int) -> int:
    """How many of the windows over a pane are closed; they are its oldest ones.

    The oldest ends one hop after the pane's start, each further one a hop later.
    """
    return min(panes, max(0, (watermark_ms - pane_ms) // hop_ms))


def oldest_open(pane_ms: int, hop_ms: int, panes: int, late: int) -> int:
    """Start of the oldest window over a pane that is open when `late` of them are closed."""
    return pane_ms - (panes - 1 - late) * hop_ms


def first_open(watermark_ms: int, size_ms: int, hop_ms: int) -> int:
    """Start of the first window that isn't due: the smallest multiple of the hop whose window ends behind the watermark."""
    return ((watermark_ms - size_ms) // hop_ms + 1) * hop_ms
