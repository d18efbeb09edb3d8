"""Files that a task names: read with the settings, and refused with them."""

from pathlib import Path

import pytest

from app.errors import SettingsError
from app.settings import load
from app.settings_files import files_of

TOML = """
[[sources]]
name = "s"
topic = "s"

[[tasks]]
name = "t"
{more}
categories = [{{ id = "a", description = "A" }}, {{ id = "b", description = "B" }}]
"""


def written(folder: Path, more: str, **files: str) -> Path:
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    path = folder / "headrace.toml"
    path.write_text(TOML.format(more=more), encoding="utf-8")
    return path


def test_template_and_examples_come_from_files_beside_the_settings(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        'template_file = "p"\nexamples_file = "e"\nexamples = [{ text = "one", category = "a" }]',
        p="---\nversion: calm-2\n---\nBe calm.\n{categories}\n",
        e='{"text": "two\\u2028", "category": "b"}\n\n{"text": "三", "category": "a"}\n',
    )
    task = load(path).tasks[0]
    assert (task.template, task.prompt_version) == ("Be calm.\n{categories}\n", "calm-2")
    assert [(e.text, e.category) for e in task.examples] == [("one", "a"), ("two\u2028", "b"), ("三", "a")]
    assert files_of(path) == [path, tmp_path / "p", tmp_path / "e"]


@pytest.mark.parametrize(
    ("more", "files", "says"),
    [
        ('template_file = "none"', {}, "none can't be read"),
        ('template_file = "p"', {"p": "no hole"}, "{categories} is missing"),
        ('template_file = "p"', {"p": "---\nname: x\n---\n{categories}"}, "version: NAME"),
        ('template_file = "p"', {"p": "---\nversion: x\n---\n"}, "no template in it"),
        (
            'template_file = "p"\nprompt_version = "y"',
            {"p": "---\nversion: x\n---\n{categories}"},
            "different versions",
        ),
        ('template_file = "p"\ntemplate = "{{categories}}"', {"p": "{categories}"}, "only one of them"),
        ('examples_file = "e"', {"e": '{"text": "x", "category": "a"}\n{'}, "e, line 2: no JSON"),
        ('examples_file = "e"', {"e": '{"text": "x", "category": "c"}'}, "'c' isn't one of a, b"),
        ('examples_file = "e"', {"e": '{"text": "x", "category": "a"}\n' * 51}, "at most 50"),
    ],
)
def test_a_wrong_file_is_refused_with_its_name(tmp_path: Path, more: str, files: dict[str, str], says: str) -> None:
    with pytest.raises(SettingsError) as refused:
        load(written(tmp_path, more, **files))
    assert says in str(refused.value)
    assert len(str(refused.value)) < 1000
