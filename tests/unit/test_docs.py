"""The docs say what the code does: every setting, metric, topic and reason, samples that load, commands that exist."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from app import metrics, topics
from app.logic.rules import NoiseRules, TaskRouter, condition_fields
from app.settings import Settings, load
from app.sinks.sql import POSITIONS, REJECTED
from app.sources.reasons import REASONS
from app.sources.source import compile_source

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
SAMPLES = sorted((DOCS / "samples").glob("*.toml"))

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"(?:^|[`(\s])headrace ([a-z]+)\b")
LINK = re.compile(r"\]\(([^)\s]+)\)")

NAMES_COMMANDS = """
import json, sys
import app.main
from faust.cli.faust import cli  # as app.main.main does
json.dump({name: command.callback.__module__ for name, command in cli.commands.items()}, sys.stdout)
"""
"""In a process of its own: importing app.main builds the application from the settings around."""


def blocks(language: str) -> list[tuple[str, str]]:
    """Page and line, and the text of every fenced block in a language."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in BLOCK.finditer(text):
            if match[1] == language:
                line = text.count("\n", 0, match.start()) + 1
                found.append((f"{page.relative_to(ROOT)}:{line}", match[2]))
    return found


def code_of(page: Path) -> str:
    """What a page shows as code: fenced console blocks and words in backticks."""
    text = page.read_text(encoding="utf-8")
    shown = [match[2] for match in BLOCK.finditer(text) if match[1] == "console"]
    shown += re.findall(r"`([^`\n]+)`", BLOCK.sub("", text))
    return "\n".join(line.split("#")[0] for part in shown for line in part.splitlines())


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def first_cells(text: str) -> dict[str, list[str]]:
    """The rows of all tables of a page, by the name in their first cell."""
    cells: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("| `"):
            row = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            cells[row[0].strip("`")] = row
    return cells


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Settings of whoever runs the tests must not reach the samples."""
    for name in [name for name in os.environ if name.startswith("HEADRACE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def compile_all(settings: Settings) -> None:
    """What a worker does with sources and rules when it starts; raises on the first mistake."""
    fields = condition_fields(settings)
    for source in settings.sources:
        compile_source(source, settings, fields, with_text=bool(settings.tasks))
    NoiseRules(settings)
    TaskRouter(settings)


def test_every_setting_is_in_configuration(generate: ModuleType) -> None:
    cells = first_cells(page("configuration.md"))
    names = [row[0] for prefix, model in generate.sections() for row in generate.rows(model, prefix)]
    assert len(names) > 90
    assert [name for name in names if name not in cells] == []


def test_every_setting_says_what_it_is_for(generate: ModuleType) -> None:
    rows = [row for prefix, model in generate.sections() for row in generate.rows(model, prefix)]
    assert [name for name, _, _, text in rows if not text] == []


def test_generated_part_is_current(generate: ModuleType) -> None:
    text = page("configuration.md")
    assert generate.rewritten(text) == text, "run `python docs/generate.py`"


def test_every_metric_is_in_operations_with_its_labels() -> None:
    cells = first_cells(page("operations.md"))
    for metric in metrics.ALL:
        row = cells[metric._name]
        assert re.findall(r"`(\w+)`", row[1]) == list(metric._labelnames), metric._name


def test_every_metric_named_in_the_docs_exists() -> None:
    known = {metric._name for metric in metrics.ALL} | {POSITIONS.name, REJECTED.name}  # tables of sinks
    named = {
        name.removesuffix("_total")
        for each in PAGES
        for name in re.findall(r"`(headrace_\w+)`", each.read_text(encoding="utf-8"))
    }
    assert named - known == set()


def test_metrics_file_lists_every_metric_of_the_module() -> None:
    defined = {id(value) for value in vars(metrics).values() if hasattr(value, "_labelnames")}
    assert defined == {id(metric) for metric in metrics.ALL}


def test_every_topic_is_in_operations() -> None:
    cells = first_cells(page("operations.md"))
    for topic in topics.OURS:
        assert topic.written_by.split()[0] in cells[topic.name][3], topic.name


def test_every_source_topic_of_the_demo_is_in_operations() -> None:
    cells = first_cells(page("operations.md"))
    assert [source.topic for source in load().sources if source.topic not in cells] == []


def test_every_dead_letter_reason_is_in_the_handbook() -> None:
    cells = first_cells(page("handbook.md"))
    assert [reason for reason in REASONS if reason not in cells] == []


def test_every_reason_that_the_code_gives_is_in_the_handbook() -> None:
    cells = first_cells(page("handbook.md"))
    given: set[str] = set()
    for path in [*(ROOT / "app").rglob("*.py"), *(ROOT / "agents").rglob("*.py")]:
        text = path.read_text(encoding="utf-8")
        given.update(re.findall(r'Bad\(\s*reason="([a-z0-9-]+)"', text))
        given.update(re.findall(r'"headrace\.reason", b"([a-z0-9-]+)"', text))
    assert {"missing-field", "output-too-large"} <= given
    assert given - cells.keys() == set()


def test_every_field_of_a_result_is_in_the_handbook() -> None:
    from models.results import Result, Review

    text = page("handbook.md")
    cells = first_cells(text)
    assert [name for name in Result.__struct_fields__ if name not in cells] == []
    review = text.split("## A review")[1].split("\n## ")[0]
    assert [name for name in Review.__struct_fields__ if f"`{name}`" not in review] == []


@pytest.mark.parametrize(("where", "text"), blocks("toml"), ids=[where for where, _ in blocks("toml")])
def test_toml_block_loads_and_compiles(where: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "sample.toml"
    path.write_text(text, encoding="utf-8")
    compile_all(load(path))


@pytest.mark.parametrize("path", SAMPLES, ids=[path.name for path in SAMPLES])
def test_sample_file_loads_and_compiles(path: Path) -> None:
    settings = load(path)
    compile_all(settings)
    assert [source.topic for source in settings.sources] != ["raw-events"]


def test_a_broken_block_would_be_found(tmp_path: Path) -> None:
    from app.errors import SettingsError

    path = tmp_path / "sample.toml"
    path.write_text('[[sources]]\nname = "x"\ntopic = "x"\nformat = "json"\nevent_id = "id"\n', encoding="utf-8")
    with pytest.raises(SettingsError, match="event_type"):
        compile_all(load(path))


def test_blocks_are_marked_with_a_language_that_the_tests_know() -> None:
    for each in PAGES:
        fences = re.findall(r"^```(.*)$", each.read_text(encoding="utf-8"), re.MULTILINE)
        assert len(fences) % 2 == 0, each.name
        assert set(fences[::2]) <= {"toml", "console", "text", "json"}, each.name


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Every command that the program knows, and the module that it comes from."""
    done = subprocess.run(
        [sys.executable, "-c", NAMES_COMMANDS],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=tmp_path_factory.mktemp("commands"),
        env={name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


def test_every_command_named_in_the_docs_exists(commands: dict[str, str]) -> None:
    named = {name for each in PAGES for name in COMMAND.findall(code_of(each))}
    assert {"worker", "trace", "tables"} <= named
    assert named - set(commands) == set()


def test_every_command_of_ours_is_in_the_docs(commands: dict[str, str]) -> None:
    named = {name for each in PAGES for name in COMMAND.findall(code_of(each))}
    ours = {name for name, module in commands.items() if module.startswith("app.commands")}
    assert ours - named == set()


def test_commands_of_faust_do_not_hide_ours(commands: dict[str, str]) -> None:
    files = {path.stem for path in (ROOT / "app" / "commands").glob("*.py")}
    hidden = {name: module for name, module in commands.items() if name in files and module != f"app.commands.{name}"}
    assert hidden == {}


def test_make_targets_named_in_the_docs_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {name for each in PAGES for name in re.findall(r"(?:^|\s)make ([a-z-]+)", code_of(each), re.MULTILINE)}
    assert {"run", "test"} <= named
    assert named - targets == set()


def test_environment_variables_named_in_the_docs_are_settings(generate: ModuleType) -> None:
    settings = {
        generate._variable(row[0]) for prefix, model in generate.sections() for row in generate.rows(model, prefix)
    }
    allowed = settings | {"HEADRACE_CONFIG", "HEADRACE_CACHE_DIR"}
    for each in PAGES:
        text = each.read_text(encoding="utf-8")
        named = {name for name in re.findall(r"\bHEADRACE_[A-Z][A-Z_]*[A-Z]\b", text) if not name.endswith("__FIELD")}
        assert named - allowed == set(), each.name


def test_links_between_pages_lead_somewhere() -> None:
    for each in PAGES:
        for link in LINK.findall(BLOCK.sub("", each.read_text(encoding="utf-8"))):
            if link.startswith("http"):
                continue
            target, _, anchor = link.partition("#")
            path = (each.parent / target).resolve() if target else each
            assert path.exists(), f"{each.name}: {link}"
            if anchor:
                headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", path.read_text(encoding="utf-8")), re.MULTILINE)
                slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
                assert anchor in slugs, f"{each.name}: {link}"
