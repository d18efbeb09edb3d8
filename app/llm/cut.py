"""Cuts a text to a number of tokens, at an end that a reader would choose: never inside a character.

Tokens are estimated, on the high side: three bytes of UTF-8 each, which is one Chinese character or three Latin letters.
A tokenizer would have to be each provider's own.
"""

import unicodedata

__all__ = ["TOKEN_BYTES", "cut", "tokens_of"]

TOKEN_BYTES = 3
"""Of an estimated token."""

LONGEST_CLUSTER = 32
"""Code points looked back for the begin of what is seen as one character. Longer heaps of marks are cut anywhere."""

ZERO_WIDTH_JOINER = "\u200d"
MARKS = frozenset({"Mn", "Me", "Mc"})


def tokens_of(text: str) -> int:
    """An estimate, rounded up."""
    return -(-len(text.encode("utf-8", "replace")) // TOKEN_BYTES)


def cut(text: str, max_tokens: int) -> tuple[str, int]:
    """The longest begin of a text within so many tokens, and how many code points are left out.

    Accents, emoji of several code points, flags and Hangul syllables stay whole. Lone surrogates, which UTF-8 can't
    carry, become `?`.
    """
    most_bytes = max_tokens * TOKEN_BYTES
    begin = text[: most_bytes + 1]
    data = begin.encode("utf-8", "replace")
    if len(data) <= most_bytes:
        return data.decode(), 0
    end = len(data[:most_bytes].decode("utf-8", "ignore"))
    end = _edge(text, end)
    return text[:end].encode("utf-8", "replace").decode(), len(text) - end


def _edge(text: str, end: int) -> int:
    """The last place, at most `end`, that is between two characters as readers see them."""
    for place in range(end, max(end - LONGEST_CLUSTER, 0), -1):
        if not _joined(text, place):
            return place
    return end if end > LONGEST_CLUSTER else 0


def _joined(text: str, place: int) -> bool:
    """Whether the code points around a place belong together: the common rules of UAX 29."""
    before, after = text[place - 1], text[place]
    return (
        unicodedata.category(after) in MARKS
        or ZERO_WIDTH_JOINER in (before, after)
        or "\U0001f3fb" <= after <= "\U0001f3ff"  # skin tones
        or "\U000e0020" <= after <= "\U000e007f"  # tags of regional flags
        or ("\u1100" <= before <= "\u11ff" and "\u1100" <= after <= "\u11ff")  # Hangul in parts
        or (before == "\r" and after == "\n")
        or (_is_flag(after) and _flags_before(text, place) % 2 == 1)
    )


def _is_flag(char: str) -> bool:
    return "\U0001f1e6" <= char <= "\U0001f1ff"


def _flags_before(text: str, place: int) -> int:
    count = 0
    while count < LONGEST_CLUSTER and count < place and _is_flag(text[place - 1 - count]):
        count += 1
    return count
