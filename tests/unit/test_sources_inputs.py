"""Files to records: bytes kept, lines numbered, keys found."""

import io
import json
from pathlib import Path

import pytest

from app.errors import SettingsError
from app.settings import Settings, SourceSettings
from app.sources.inputs import Item, Unusable, keyer, read_items
from tests.helpers.records import NOW_MS, envelope


def stream(data: bytes, how: str) -> list[Item | Unusable]:
    return list(read_items(None, how, io.BytesIO(data)))  # type: ignore[arg-type]


def test_lines_go_out_byte_for_byte_with_their_numbers() -> None:
    data = b'{"a": 1 }\r\n\n{broken \n  \xff\r\r\nlast'
    expected = [("line 1", b'{"a": 1 }'), ("line 3", b"{broken "), ("line 4", b"  \xff\r"), ("line 5", b"last")]
    for how in ("jsonl", "text"):
        assert [(item.where, item.value) for item in stream(data, how) if isinstance(item, Item)] == expected


def test_csv_rows_become_objects_of_strings_and_bad_rows_are_named() -> None:
    items = stream('\ufefftext,n\n"two\nlines, ""quoted""",1\n\nonly\n退款,2\n'.encode(), "csv")
    assert [json.loads(item.value) for item in items if isinstance(item, Item)] == [
        {"text": 'two\nlines, "quoted"', "n": "1"},
        {"text": "退款", "n": "2"},
    ]
    assert [item for item in items if isinstance(item, Unusable)] == [
        Unusable("line 5", "1 columns where the header has 2")
    ]


def test_a_long_csv_cell_passes_and_latin_1_is_named() -> None:
    (long,) = stream(b"a\n" + b"x" * 200_000 + b"\n", "csv")
    assert isinstance(long, Item)
    assert isinstance(stream(b"a\ncaf\xe9\n", "csv")[-1], Unusable)


def test_a_json_file_is_one_record_and_a_folder_all_of_its(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "two.json").write_bytes(b"[\n1]\n")
    (tmp_path / "one.json").write_bytes(b"")
    (tmp_path / "LICENSE").write_bytes(b"no record")
    assert [item.value for item in read_items(tmp_path) if isinstance(item, Item)] == [b"[\n1]\n", b""]
    assert [item.value for item in read_items(tmp_path / "b" / "two.json") if isinstance(item, Item)] == [b"[\n1]\n"]
    (tmp_path / "log.txt").write_bytes(b"a\nb\n")
    assert [item.where for item in read_items(tmp_path / "log.txt")][1].endswith("log.txt line 2")


ENVELOPE = SourceSettings(name="src", topic="events")
TEXT = SourceSettings(name="src", topic="events", format="text", pattern=r"(?P<a>\w) (?P<b>\w)", fingerprint=["line"])


@pytest.mark.parametrize(
    ("path", "source", "value", "key"),
    [
        ("", ENVELOPE, envelope(entity_id="u1"), b"u1"),
        ("", ENVELOPE, envelope(), b"e1"),
        ("", ENVELOPE, b"{broken", None),
        ("", None, envelope(), None),
        ("payload.x", ENVELOPE, envelope(payload={"x": 5}), b"5"),
        ("payload.x", ENVELOPE, envelope(), None),
        ("text", None, b'{"text":"q"}', b"q"),
        ("b", TEXT, b"x y", b"y"),
    ],
)
def test_keys(path: str, source: SourceSettings | None, value: bytes, key: bytes | None) -> None:
    assert keyer(path, source, Settings())(Item("line 1", value), NOW_MS) == key


def test_a_key_that_cannot_be_is_refused_before_anything_is_sent() -> None:
    for path, source in (("a[", None), ("c", TEXT)):
        with pytest.raises(SettingsError):
            keyer(path, source, Settings())
