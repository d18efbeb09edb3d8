"""The key of a model request: equal texts of a task meet in one partition."""

import hashlib
import unicodedata

__all__ = ["normalised", "request_key"]


def normalised(text: str) -> str:
    """NFKC, lower case, white space folded: what counts as the same text."""
    return " ".join(unicodedata.normalize("NFKC", text).lower().split())


def request_key(task: str, text: str) -> bytes:
    """16 bytes, hex: of task and normalised text."""
    return hashlib.blake2b(f"{task}\0{normalised(text)}".encode(), digest_size=16).hexdigest().encode()
