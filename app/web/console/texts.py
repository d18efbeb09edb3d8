"""The console's own words, one file a language. Keys are the same in all; a test says so.

Placeholders are `{name}`. Texts hold no HTML.
"""

from typing import Literal

from app.web.console import texts_en, texts_zh

__all__ = ["LANGUAGES", "TEXTS", "Language", "chosen", "not_allowed", "text"]

Language = Literal["en", "zh"]
LANGUAGES: dict[Language, Literal["en-US", "zh-CN"]] = {"en": "en-US", "zh": "zh-CN"}
"""As Quasar and browsers call them."""

TEXTS: dict[Language, dict[str, str]] = {"en": texts_en.WORDS, "zh": texts_zh.WORDS}


def text(language: Language, key: str, **values: object) -> str:
    """A text with its values.

    Raises:
        KeyError: there is no such text.
    """
    found = TEXTS[language][key]
    return found.format(**values) if values else found


def not_allowed(language: Language, role: str) -> str:
    """What to say to whoever lacks a role that is needed."""
    return text(language, "not_allowed", role=text(language, f"role_{role}"))


def chosen(cookie: str | None, accepted: str) -> Language:
    """The language somebody chose, else the first of the browser's that there is, else English."""
    for asked in (cookie or "", *accepted.split(",")):
        code = asked.strip()[:2].lower()
        for language in LANGUAGES:
            if language == code:
                return language
    return "en"
