"""One settings tree: file, then environment; a mistake names the field, what was given and what is allowed."""

from pathlib import Path

import pytest

from app.errors import SettingsError
from app.settings import load


def written(folder: Path, text: str) -> Path:
    path = folder / "headrace.toml"
    path.write_text(text)
    return path


def test_the_environment_wins_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_LLM__MODEL", "from-env")
    settings = load(written(tmp_path, '[llm]\nmodel = "from-file"\nconcurrency = 3\n'))
    assert (settings.llm.model, settings.llm.concurrency) == ("from-env", 3)


def test_the_tree_is_frozen(tmp_path: Path) -> None:
    settings = load(written(tmp_path, ""))
    with pytest.raises(ValueError, match="frozen"):
        settings.llm.model = "other"


def test_a_list_in_the_file_takes_the_place_of_the_built_in_one(tmp_path: Path) -> None:
    settings = load(written(tmp_path, '[[sources]]\nname = "orders"\ntopic = "shop.orders"\n'))
    assert [s.name for s in settings.sources] == ["orders"]
    assert [t.name for t in settings.tasks] == ["shop"]


def test_only_the_built_in_source_takes_the_prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_KAFKA__TOPIC_PREFIX", "p-")
    mine = load(written(tmp_path, '[[sources]]\nname = "orders"\ntopic = "shop.orders"\n'))
    assert mine.source_topic(mine.sources[0]) == "shop.orders"
    built_in = load(written(tmp_path, ""))
    assert built_in.source_topic(built_in.sources[0]) == "p-raw-events"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[kafka]\npartitions = 0\n", ["kafka.partitions", "0", "greater than or equal to 1"]),
        ("[kafka]\npartitons = 4\n", ["kafka.partitons", "no such setting"]),
        ('[kafka]\nsecurity_protocol = "TLS"\n', ["kafka.security_protocol", "TLS", "SASL_SSL"]),
        ('[kafka]\nsecurity_protocol = "SASL_SSL"\n', ["kafka.username"]),
        ('[kafka]\npassword = "x"\n', ["kafka.password", "HEADRACE_KAFKA__PASSWORD"]),
        ("[kafka\n", ["not valid TOML"]),
        ('[web]\nhost = "0.0.0.0"\n', ["web.host", "HEADRACE_WEB__TOKEN"]),
        ('[[sources]]\nname = "a"\ntopic = "t"\nstart = "yesterday"\n', ["sources.0.start", "yesterday", "RFC 3339"]),
        ('[[noise]]\nname = "n"\nsources = ["nope"]\nwhen = [{field = "text", value = "x"}]\n', ["nope", "raw-events"]),
        (
            '[[tasks]]\nname = "t"\ncategories = [{id = "a", description = "a"}, {id = "b", description = "b"}]\n'
            'rules = [{name = "r", category = "c", when = [{field = "text", value = "x"}]}]\n',
            ["rule r", "'c'", "a, b"],
        ),
    ],
)
def test_a_mistake_names_the_field_and_what_is_allowed(tmp_path: Path, text: str, named: list[str]) -> None:
    with pytest.raises(SettingsError) as caught:
        load(written(tmp_path, text))
    for word in named:
        assert word in str(caught.value), str(caught.value)


def test_an_unknown_environment_variable_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADRACE_KAFKAA__PARTITIONS", "4")
    with pytest.raises(SettingsError, match="HEADRACE_KAFKAA__PARTITIONS"):
        load(written(tmp_path, ""))


def test_a_secret_is_never_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADRACE_LLM__API_KEY", "sk-very-secret")
    assert "sk-very-secret" not in repr(load(written(tmp_path, "")))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"nowhere\.toml"):
        load(tmp_path / "nowhere.toml")
