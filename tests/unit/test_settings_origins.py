"""Where settings came from; and that no secret is shown."""

import json
from pathlib import Path

import pytest

from app.errors import SettingsError
from app.settings import Settings, load
from app.settings_origins import HIDDEN, changed_since, in_force

FILE = """
[kafka]
partitions = 6
[llm]
base_url = "http://me:hunter2@models:8000/v1"
[[sources]]
name = "tickets"
topic = "tickets"
format = "json"
event_id = "id"
event_type = "=ticket"
event_time = "at"
"""


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    path = tmp_path / "headrace.toml"
    path.write_text(FILE)
    monkeypatch.setenv("HEADRACE_CONFIG", str(path))
    monkeypatch.setenv("HEADRACE_WEB__TOKEN", "a-secret-token")
    monkeypatch.setenv("HEADRACE_GATEWAY__PORT", "9000")
    return load()


def test_each_value_says_where_it_came_from(settings: Settings, tmp_path: Path) -> None:
    found = {each.name: each for each in in_force(settings)}
    assert (found["kafka.partitions"].value, found["kafka.partitions"].origin) == ("6", "file")
    assert found["kafka.partitions"].where == str(tmp_path / "headrace.toml")
    assert (found["gateway.port"].value, found["gateway.port"].where) == ("9000", "HEADRACE_GATEWAY__PORT")
    assert found["gateway.port"].origin == "environment"
    assert (found["gateway.host"].value, found["gateway.host"].origin) == ('"127.0.0.1"', "default")
    assert '"tickets"' in found["sources"].value
    assert found["sources"].origin == "file"
    assert all(each.description for name, each in found.items() if name.startswith("gateway."))


def test_no_secret_is_shown_only_whether_there_is_one(settings: Settings) -> None:
    found = {each.name: each for each in in_force(settings)}
    assert (found["web.token"].value, found["web.token"].origin) == (HIDDEN, "environment")
    assert (found["kafka.password"].value, found["kafka.password"].origin) == ("", "default")
    everything = repr(found)
    assert "a-secret-token" not in everything
    assert "hunter2" not in everything


def test_headers_and_addresses_of_providers_are_shown_without_their_secrets(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = """
[[llm.providers]]
name = "far"
base_url = "https://me:p/a?s@host@models.example/v1?key=k3y#frag-k3y"
headers = {x-goog-api-key = "g-k3y", cookie = "session=k3y", x-tenant = "$TENANT"}
proxy = "http://proxy.example:3128/?token=k3y"
"""
    (tmp_path / "headrace.toml").write_text(FILE + provider)
    shown = next(each.value for each in in_force(load()) if each.name == "llm.providers")
    for secret in ("k3y", "p/a", "s@host", "me:"):
        assert secret not in shown
    (told,) = json.loads(shown)
    assert told["headers"] == {"x-goog-api-key": HIDDEN, "cookie": HIDDEN, "x-tenant": "$TENANT"}
    assert told["base_url"] == f"https://{HIDDEN}@models.example/v1?{HIDDEN}"
    assert told["proxy"] == f"http://proxy.example:3128/?{HIDDEN}"


def test_a_changed_file_is_told_of_and_a_bad_one_too(settings: Settings, tmp_path: Path) -> None:
    assert changed_since(settings) == []
    (tmp_path / "headrace.toml").write_text(FILE.replace("partitions = 6", "partitions = 7"))
    assert changed_since(settings) == ["kafka"]
    (tmp_path / "headrace.toml").write_text("[kafka]\npartitions = 0\n")
    with pytest.raises(SettingsError, match="partitions"):
        changed_since(settings)
