"""The settings file, and what its tasks name: a prompt's template, examples. They are part of the settings once read."""

import json
import tomllib
from pathlib import Path
from typing import Any

from app.errors import SettingsError

__all__ = ["files_of", "read_file", "with_files"]

NAMES = ("template_file", "examples_file")


def read_file(path: Path) -> dict[str, Any]:
    """The tree of a settings file, as it stands there.

    Raises:
        SettingsError: it can't be read.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(
            f"{path}: can't be read ({error.strerror}); set HEADRACE_CONFIG to the right path"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: not valid TOML: {error}") from None


def files_of(path: Path) -> list[Path]:
    """The settings file and the files that its tasks name, whatever is in them; only itself while it can't be read."""
    try:
        tasks = read_file(path).get("tasks")
    except SettingsError:
        return [path]
    named = (
        [task.get(name) for task in tasks if isinstance(task, dict) for name in NAMES]
        if isinstance(tasks, list)
        else []
    )
    return [path, *(path.parent / each for each in named if isinstance(each, str))]


def with_files(tree: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The tree of a settings file with what its tasks' files hold.

    Args:
        tree: as TOML has it.
        folder: of the settings file; relative paths begin there.

    Raises:
        SettingsError: a file can't be read, or holds something else. Not retryable.
    """
    tasks = tree.get("tasks")
    if not isinstance(tasks, list):
        return tree
    return {**tree, "tasks": [_with_files(task, folder) if isinstance(task, dict) else task for task in tasks]}


def _with_files(task: dict[str, Any], folder: Path) -> dict[str, Any]:
    task = dict(task)
    where = f"task {task.get('name', '')}"
    if isinstance(named := task.get("template_file"), str):
        if task.get("template"):
            raise SettingsError(f"{where}: template and template_file: only one of them")
        path = folder / named
        version, template = _template(_text(path, where), path)
        if version and task.get("prompt_version", version) != version:
            raise SettingsError(f"{where}: {path} and prompt_version name different versions")
        task.update(template_file=path, template=template, prompt_version=version or task.get("prompt_version", ""))
    if isinstance(named := task.get("examples_file"), str):
        path = folder / named
        task.update(examples_file=path, examples=[*task.get("examples", ()), *_examples(_text(path, where), path)])
    return task


def _text(path: Path, where: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{where}: {path} can't be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{where}: {path} isn't UTF-8") from None


def _template(text: str, path: Path) -> tuple[str, str]:
    """The version that it names, and the rest."""
    version = ""
    if text.startswith("---\n"):
        head, mark, text = text[4:].partition("\n---\n")
        name, colon, version = head.partition(":")
        version = version.strip()
        if not mark or name.strip() != "version" or not colon or not version or "\n" in version:
            raise SettingsError(f"{path}: between the lines --- there is one line: `version: NAME`")
    if not text.strip():
        raise SettingsError(f"{path}: there is no template in it")
    return version, text


def _examples(text: str, path: Path) -> list[object]:
    found: list[object] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            found.append(json.loads(line))
        except ValueError as error:
            raise SettingsError(f"{path}, line {number}: no JSON ({error})") from None
    return found
