r"""From a model's text to checked answers: number to category, and nothing that isn't certain.

An item is answered when its number stands in the answer once (or several times with the same label) and its label is
one of the task's categories. Everything else is missing and is asked again: a wrong category that is believed costs
more than another call. Never by position.

With fields to extract, an answer is an object of category and fields, and both must be right.

Read are, in this order: a JSON object of number and label, a JSON array of `"7:label"` or of small objects, lines
`7: label`. Code fences and remarks around them and thoughts (`<think>`) are dropped first.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence

from app.settings_extract import LABEL_KEYS, NUMBER_KEYS

__all__ = ["Fields", "parse_answers", "parse_with_fields", "parts_of"]

Fields = dict[str, object]

END_MARKS = " \t\r\n.,;:!?*`'\"()[]<>。，；：！？、“”‘’「」《》（）【】"
"""What models put around a label."""


_THOUGHT = re.compile(r"<(think|thinking|thought|reasoning)>.*?</\1>", re.DOTALL | re.IGNORECASE)
_THOUGHT_END = re.compile(r"</(?:think|thinking|thought|reasoning)>", re.IGNORECASE)
_THOUGHT_START = re.compile(r"<(?:think|thinking|thought|reasoning)>", re.IGNORECASE)
_NUMBER = re.compile(r"\s*(?:#|no\.?|item|message)?\s*([0-9]{1,4})(?:\.0+)?\s*[.):：]?\s*", re.IGNORECASE)
_PAIR = re.compile(
    r"(\s*(?:#|no\.?|item|message)?\s*[0-9]{1,4}(?:\.0+)?)\s*(?:[:：=)]|\.|-|->|→)\s*(.*)", re.IGNORECASE
)
_LINE = re.compile(r"[-*\s]*" + _PAIR.pattern, re.IGNORECASE)
_OPEN_KEY = re.compile(r'\s*("(?:[^"\\]|\\.)*")\s*:\s*(?=["{])')
_OPEN_END = re.compile(r"\s*[,}]")
_OPEN_ITEM = re.compile(r'\s*("(?:[^"\\]|\\.)*")\s*([,\]])')
_OPEN_LEVEL = re.compile(r'\s*("(?:[^"\\]|\\.)*")\s*:\s*(?=[\[{])')

Said = tuple[int, str, object]
"""Number, label, and the value that the label was read from."""


class _Pairs(list[tuple[str, object]]):
    """An object as its pairs: a dict would hide that a number came twice."""


_decoder = json.JSONDecoder(object_pairs_hook=_Pairs)


def parse_answers(text: str, n: int, categories: Sequence[str], finish_reason: str = "") -> dict[int, str]:
    """The certain answers, by number from 1 to n; numbers that are missing are to be asked again.

    Args:
        text: what the model said.
        n: how many items were asked.
        categories: the allowed labels; matched in any case and with end marks around.
        finish_reason: `length` says that the text was cut: its last, half answer is not used.
    """
    return {number: label for number, (label, _) in _certain(text, n, categories, finish_reason).items()}


def parse_with_fields(
    text: str, n: int, categories: Sequence[str], fits: Callable[[int, Fields], Fields | None], finish_reason: str = ""
) -> dict[int, tuple[str, Fields]]:
    """The certain answers that also hold the fields to extract.

    Args:
        text: what the model said.
        n: how many items were asked.
        categories: the allowed labels.
        fits: takes an item's number and the fields as they were said; returns them as they are to be used, None where
            they are wrong.
        finish_reason: see `parse_answers`.
    """
    answers = {}
    for number, (label, said) in _certain(text, n, categories, finish_reason, with_fields=True).items():
        fields = fits(number, json.loads(said))
        if fields is not None:
            answers[number] = (label, fields)
    return answers


def parts_of(text: str, finish_reason: str = "") -> dict[int, str]:
    """What was said under each number, as it was said; several times under one number, in lines.

    Args:
        text: what the model said.
        finish_reason: see `parse_answers`.
    """
    parts: dict[int, list[str]] = {}
    for number, _, value in _said(_without_thoughts(text), cut=finish_reason == "length"):
        parts.setdefault(number, []).append(value if isinstance(value, str) else _written(value))
    return {number: "\n".join(said) for number, said in parts.items()}


def _written(value: object) -> str:
    """As JSON, also with a key that came twice."""
    if isinstance(value, _Pairs):
        return "{" + ", ".join(f"{_written(key)}: {_written(inner)}" for key, inner in value) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_written, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _certain(
    text: str, n: int, categories: Sequence[str], finish_reason: str, with_fields: bool = False
) -> dict[int, tuple[str, str]]:
    """Label and fields (as JSON) of the numbers that were said once, or each time alike."""
    known = {category.casefold(): category for category in categories}
    said = _said(_without_thoughts(text), cut=finish_reason == "length")
    found: dict[int, set[tuple[str | None, str | None]]] = {}
    for number, label, value in said:
        fields = _fields(value) if with_fields else "{}"
        found.setdefault(number, set()).add((known.get(label.strip(END_MARKS).casefold()), fields))
    answers = {}
    for number, all_said in sorted(found.items()):
        (label_said, fields), *others = all_said
        if 1 <= number <= n and not others and label_said is not None and fields is not None:
            answers[number] = (label_said, fields)
    return answers


def _fields(value: object) -> str | None:
    """What an answer's object says beside its category; None where it is none, or says something twice."""
    if not isinstance(value, _Pairs):
        return None
    try:
        plain = _plain(_Pairs(pair for pair in value if pair[0].casefold() not in (*NUMBER_KEYS, *LABEL_KEYS)))
    except _SaidTwiceError:
        return None
    return json.dumps(plain, sort_keys=True)


class _SaidTwiceError(Exception):
    """An object has a key twice."""


def _plain(value: object) -> object:
    if isinstance(value, _Pairs):
        made = {key: _plain(inner) for key, inner in value}
        if len(made) != len(value):
            raise _SaidTwiceError
        return made
    return [_plain(inner) for inner in value] if isinstance(value, list) else value


def _without_thoughts(text: str) -> str:
    """Drafts hold other labels than the answer. Some servers cut off the opening tag, a cut answer lacks the end."""
    text = _THOUGHT.sub(" ", text)
    text = _THOUGHT_END.split(text)[-1]
    return _THOUGHT_START.split(text)[0]


def _said(text: str, cut: bool) -> list[Said]:
    whole, rest = _json_values(text)
    said = [pair for value in whole for pair in _pairs(value)]
    if rest and (cut or not said):
        said.extend(_unfinished(rest))
    if said or "{" in text or '["' in text:
        # JSON that held nothing of use isn't read again as lines: its strings may be the messages' own words.
        return said
    return _lines(text, cut)


def _json_values(text: str) -> tuple[list[object], str]:
    """Every whole object or array on the top level, and the tail from the first that has no end."""
    values: list[object] = []
    at = 0
    while (start := _start(text, at)) >= 0:
        try:
            value, at = _decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            return values, text[start:]
        values.append(value)
    return values, ""


def _start(text: str, at: int) -> int:
    found = re.compile(r"\{|\[(?=\s*[\[{\"])").search(text, at)
    return found.start() if found else -1


def _pairs(value: object) -> Iterator[Said]:
    """What an object or array says, at most one level down."""
    if isinstance(value, _Pairs):
        yield from _object(value)
        for _, inner in value:
            if isinstance(inner, _Pairs):
                yield from _object(inner)
            elif isinstance(inner, list):
                yield from _array(inner)
    elif isinstance(value, list):
        yield from _array(value)


def _object(pairs: _Pairs) -> Iterator[Said]:
    for key, value in pairs:
        number = _number(key)
        if number is not None:
            # A value that is no label still counts: it contradicts a second one.
            yield number, value if isinstance(value, str) else _label_of(value), value


def _array(values: list[object]) -> Iterator[Said]:
    for value in values:
        if isinstance(value, str):
            yield from _numbered(value)
        elif isinstance(value, _Pairs):
            numbers = [_number(inner) for key, inner in value if key.casefold() in NUMBER_KEYS]
            if len(numbers) == 1 and numbers[0] is not None:
                yield numbers[0], _label_of(value), value
            elif not numbers:
                yield from _object(value)


def _label_of(value: object) -> str:
    labels = [v for k, v in value if k.casefold() in LABEL_KEYS] if isinstance(value, _Pairs) else []
    return labels[0] if len(labels) == 1 and isinstance(labels[0], str) else ""


def _number(value: object) -> int | None:
    """Reads `7`, `7.0`, `"7"`, `"#7"`, `"7."`; anything else is no number of an item."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return int(value) if 0 < value < 10_000 and value == int(value) else None
    found = _NUMBER.fullmatch(value) if isinstance(value, str) else None
    return int(found[1]) if found else None


def _numbered(text: str) -> Iterator[Said]:
    if (found := _PAIR.fullmatch(text.strip())) and (number := _number(found[1])) is not None:
        yield number, found[2], found[2]


def _unfinished(text: str) -> list[Said]:
    """The finished pairs of an object or array that was cut, read from its start.

    Token by token, not by search: a message's own words inside a string stay inside it.
    """
    said: list[Said] = []
    at = 1
    while text[0] == "{" and (level := _OPEN_LEVEL.match(text, at)) and _number(_string(level[1])) is None:
        text, at = text[level.end() :], 1
    while True:
        if text[0] == "{" and (key := _OPEN_KEY.match(text, at)):
            try:
                value, end = _decoder.raw_decode(text, key.end())
            except (ValueError, RecursionError):
                return said
            if (closed := _OPEN_END.match(text, end)) is None:
                return said
            at = closed.end()
            if (number := _number(_string(key[1]))) is not None:
                said.append((number, value if isinstance(value, str) else _label_of(value), value))
        elif text[0] == "[" and (item := _OPEN_ITEM.match(text, at)):
            said.extend(_numbered(_string(item[1])))
            at = item.end()
        else:
            return said


def _string(quoted: str) -> str:
    try:
        return str(json.loads(quoted))
    except ValueError:
        return ""


def _lines(text: str, cut: bool) -> list[Said]:
    """Lines `7: label`. Their numbers must rise: a message that is repeated with its line breaks breaks the order."""
    rows = text.splitlines()
    if cut and rows:
        rows.pop()
    said = []
    for row in rows:
        if (found := _LINE.fullmatch(row.strip())) and (number := _number(found[1])) is not None:
            said.append((number, found[2], found[2]))
    numbers = [number for number, _, _ in said]
    return said if numbers == sorted(numbers) else []
