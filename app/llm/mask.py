"""Masks personal data and secrets in a text before it leaves this process; reversible here, and only here.

Found by form and check digit, not by a model: e-mail addresses, phone numbers (`phonenumbers`), payment cards (Luhn),
IBANs and national ids (`python-stdnum`), and secrets by their usual shapes. What has no check digit to tell it by (a
name, an address) stays. Between two readings of a number the wider one wins: rather one order number masked too much.
"""

import importlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

__all__ = ["Masked", "mask"]

FULL_WIDTH = {0xFF01 + n: 0x21 + n for n in range(94)} | {0x3000: 0x20}
"""Digits and letters of Chinese input methods; one character for one, so that places stay the same."""

EDGE, END = r"(?<![0-9A-Za-z])", r"(?![0-9A-Za-z])"
"""Not `\\b`: Chinese characters count as letters there, and `电话13800138000` would have no edge."""

EMAIL = re.compile(r"[A-Za-z0-9._%+'-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+")
DIGITS = re.compile(EDGE + r"\d+(?:[ \-.]\d+)*" + END)
CARD_GROUPS = 8
IBAN = re.compile(EDGE + r"[A-Z]{2}\d{2}(?: ?[A-Z0-9]){11,30}" + END, re.IGNORECASE)
SECRETS = (
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
    re.compile(EDGE + r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+"),  # JWT
    re.compile(EDGE + r"(?:sk|pk|rk)[-_][A-Za-z0-9_-]{16,}"),
    re.compile(EDGE + r"(?:gh[pousr]_|github_pat_|glpat-|xox[abprs]-|hf_|npm_|pypi-)[A-Za-z0-9_-]{10,}"),
    re.compile(EDGE + r"(?:AKIA|ASIA)[A-Z0-9]{16}" + END),
    re.compile(EDGE + r"AIza[A-Za-z0-9_-]{35}"),
    re.compile(r"(?<=[Bb]earer )[A-Za-z0-9._~+/=-]{12,}"),
)
SAID = re.compile(
    r"(?:password|passwd|pwd|pin|secret|token|api[_ -]?key|密码|口令|验证码|密钥)"
    r"(?:\s*(?:is|:|=|：|是|为)\s*)+[\"'“]?([^\s\"'”,，。;；]{4,})",
    re.IGNORECASE,
)
"""`password: hunter2`, `密码是abc123`: the word stays, what it names goes."""

IDS: tuple[tuple[str, str], ...] = (
    ("cn.ric", r"\d{17}[\dXx]"),
    ("us.ssn", r"\d{3}-\d{2}-\d{4}"),
    ("gb.nhs", r"\d{3} \d{3} \d{4}"),
    ("de.idnr", r"\d{2} ?\d{3} ?\d{3} ?\d{3}"),
    ("fr.nir", r"[12] ?\d{2} ?\d{2} ?\d[\dAB] ?\d{3} ?\d{3} ?\d{2}"),
    ("es.dni", r"\d{8}-?[A-Za-z]"),
    ("it.codicefiscale", r"[A-Za-z]{6}\d{2}[A-Za-z]\d{2}[A-Za-z]\d{3}[A-Za-z]"),
    ("in_.aadhaar", r"\d{4} ?\d{4} ?\d{4}"),
    ("br.cpf", r"\d{3}\.?\d{3}\.?\d{3}-?\d{2}"),
    ("kr.rrn", r"\d{6}-\d{7}"),
    ("nl.bsn", r"\d{4}\.?\d{2}\.?\d{3}"),
)
"""Modules of python-stdnum, and the form that makes a number worth its check."""

Span = tuple[int, int, str]


@dataclass(frozen=True, slots=True)
class Masked:
    """A text without what it shouldn't show, and the way back."""

    text: str
    values: dict[str, str] = field(default_factory=dict, repr=False)
    """Placeholder -> what stood there."""

    def restore(self, text: str) -> str:
        """Puts the values back into a text that repeats placeholders."""
        if not self.values:
            return text
        found = re.compile("|".join(map(re.escape, self.values)))
        return found.sub(lambda match: self.values[match[0]], text)

    def restore_all(self, fields: Mapping[str, object]) -> dict[str, object]:
        """Puts the values back into every text of a JSON object."""
        return {name: self._restored(value) for name, value in fields.items()}

    def _restored(self, value: object) -> object:
        if isinstance(value, str):
            return self.restore(value)
        if isinstance(value, list):
            return [self._restored(inner) for inner in value]
        return self.restore_all(value) if isinstance(value, dict) else value


def mask(text: str, regions: Sequence[str]) -> Masked:
    """Replaces what is found by `[EMAIL_1]` and the like; the same value gets the same placeholder.

    Args:
        text: of an event.
        regions: ISO country codes in which phone numbers without a country code are read.
    """
    plain = text.translate(FULL_WIDTH)
    spans = _without_overlap(sorted(_spans(plain, tuple(regions)), key=lambda s: (s[0], s[0] - s[1])))
    if not spans:
        return Masked(text)
    values: dict[str, str] = {}
    placeholders: dict[tuple[str, str], str] = {}
    parts, at = [], 0
    for start, end, kind in spans:
        value = text[start:end]
        if (kind, value) not in placeholders:
            number = sum(k == kind for k, _ in placeholders) + 1
            while (placeholder := f"[{kind}_{number}]") in text or placeholder in values:
                number += 1
            placeholders[kind, value] = placeholder
            values[placeholder] = value
        parts += [text[at:start], placeholders[kind, value]]
        at = end
    return Masked("".join([*parts, text[at:]]), values)


def _without_overlap(spans: list[Span]) -> list[Span]:
    """Overlapping finds become one, named by the first."""
    kept: list[Span] = []
    for start, end, kind in spans:
        if kept and start < kept[-1][1]:
            kept[-1] = (kept[-1][0], max(end, kept[-1][1]), kept[-1][2])
        else:
            kept.append((start, end, kind))
    return kept


def _spans(text: str, regions: tuple[str, ...]) -> Iterator[Span]:
    for pattern in SECRETS:
        yield from ((*match.span(), "SECRET") for match in pattern.finditer(text))
    yield from ((*match.span(1), "SECRET") for match in SAID.finditer(text))
    yield from ((*match.span(), "EMAIL") for match in EMAIL.finditer(text))
    yield from _ibans(text)
    digits = sum(char.isdigit() for char in text)
    if digits < 7:
        return  # no number below is that short, and most texts end here
    for match in DIGITS.finditer(text):
        yield from ((match.start() + a, match.start() + b, "CARD") for a, b in _cards(match[0]))
    for pattern, is_valid in _national_ids():
        yield from ((*match.span(1), "ID") for match in pattern.finditer(text) if is_valid(match[1]))
    yield from _phones(text, regions)


def _ibans(text: str) -> Iterator[Span]:
    """Words that follow look like more of it, so shorter readings are tried as well."""
    for match in IBAN.finditer(text):
        said = match[0]
        for end in range(len(said), 14, -1):
            if said[end - 1] != " " and _is_iban(said[:end]):
                yield (match.start(), match.start() + end, "IBAN")
                break


def _is_iban(text: str) -> bool:
    from stdnum import iban

    return bool(iban.is_valid(text))


def _cards(run: str) -> Iterator[tuple[int, int]]:
    """Groups of digits that make a card number together; other numbers may stand right beside it."""
    groups = [match.span() for match in re.finditer(r"\d+", run)]
    for first, (start, _) in enumerate(groups):
        count = 0
        for begin, end in groups[first : first + CARD_GROUPS]:
            count += end - begin
            if 12 <= count <= 19 and _luhn(run[start:end]):
                yield start, end


def _luhn(text: str) -> bool:
    digits = [int(char) for char in reversed(text) if char.isdigit()]
    doubled = [n if place % 2 == 0 else n * 2 - 9 * (n > 4) for place, n in enumerate(digits)]
    return sum(doubled) % 10 == 0 and any(digits)


@lru_cache(1)
def _national_ids() -> list[tuple[re.Pattern[str], Callable[[str], bool]]]:
    return [
        # As a look-ahead, so that a number is found that begins inside another one's form.
        (re.compile(f"{EDGE}(?=({form}){END})"), importlib.import_module(f"stdnum.{module}").is_valid)
        for module, form in IDS
    ]


def _phones(text: str, regions: tuple[str, ...]) -> Iterator[Span]:
    import phonenumbers

    for region in regions or (None,):
        for match in phonenumbers.PhoneNumberMatcher(text, region, leniency=phonenumbers.Leniency.VALID):
            yield (match.start, match.end, "PHONE")
