"""Gives memory that was freed back to the system."""

import ctypes

__all__ = ["give_back"]


def give_back() -> None:
    """What a burst of work has freed stays with the process otherwise: glibc keeps it between what is still in use.

    Does nothing with another C library. Takes some 10 ms, without the interpreter's lock.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
