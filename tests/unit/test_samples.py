"""The samples load, and real lines become what the samples say."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from app.logic.rules import NeedsModel, NoiseRules, RuleAnswer, TaskRouter, condition_fields
from app.settings import load
from app.sources.inputs import Item, read_items
from app.sources.source import compile_source
from models.events import Event
from tests.helpers.records import NOW_MS, SAMPLES, record


def outcomes(name: str, values: Iterable[bytes], at_ms: int = NOW_MS) -> list[str]:
    settings = load(SAMPLES / f"{name}.toml")
    reader = compile_source(settings.sources[0], settings, condition_fields(settings))
    noise, router = NoiseRules(settings), TaskRouter(settings)
    found = []
    for value in values:
        event = reader.read(record(value, at_ms=at_ms))
        assert isinstance(event, Event), event
        dropped = noise.match(event, reader.name)
        if dropped is not None:
            found.append(f"noise {dropped}")
            continue
        match router.route(event, reader.name):
            case RuleAnswer(category=category):
                found.append(category)
            case NeedsModel(skip_light=skip_light):
                found.append("deep" if skip_light else "models")
            case _:
                found.append("untasked")
    return found


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_each_sample_loads_and_compiles(path: Path) -> None:
    assert outcomes(path.stem, []) == []


def test_there_are_five_samples() -> None:
    stems = {path.stem for path in SAMPLES.glob("*.toml")}
    assert stems >= {"access-log", "auth-log", "banking77", "cloudevents", "github-webhooks"}


def access(request: str, status: int) -> bytes:
    return f'66.249.73.135 - - [17/May/2015:10:05:03 +0000] "{request}" {status} 99 "-" "curl"'.encode()


def test_access_log_lines_end_by_rule() -> None:
    lines = [
        access("GET /images/logo.png HTTP/1.1", 200),
        access("GET /images/logo.png HTTP/1.1", 404),
        access("GET /blog/tags/puppet?flav=rss20 HTTP/1.1", 200),
        access("GET / HTTP/1.1", 200),
        access("GET /files/logstash/logstash.jar HTTP/1.1", 200),
        access("OPTIONS * HTTP/1.0", 200),
        access("\\x16\\x03\\x01", 200),
    ]
    assert outcomes("access-log", lines) == ["noise static-files", "error", "feed", "page", "other", "other", "other"]


def test_auth_log_lines_end_by_rule() -> None:
    lines = [
        "sshd[21930]: Invalid user admin from 91.197.232.109",
        "sshd[1361]: Accepted publickey for ubuntu from 85.245.107.41 port 54259 ssh2: RSA SHA256:x",
        "sudo:   ubuntu : TTY=pts/0 ; PWD=/home/ubuntu ; USER=root ; COMMAND=/bin/su",
        "CRON[1]: pam_unix(cron:session): session opened for user root by (uid=0)",
        "sshd[1]: Server listening on 0.0.0.0 port 22.",
    ]
    values = [f"Nov 29 13:06:56 ip-10-77-20-248 {line}".encode() for line in lines]
    assert outcomes("auth-log", values) == ["failed-login", "login", "privilege", "noise cron-sessions", "other"]


def test_questions_go_to_the_models_and_stolen_cards_to_the_deep_one() -> None:
    values = [b'{"text":"How do I locate my card?"}', b'{"text":"My phone was Stolen"}', b'{"text":"?"}']
    assert outcomes("banking77", values) == ["models", "deep", "noise empty-questions"]


def test_cloudevents_are_sorted_by_type() -> None:
    values = [
        b'{"specversion":"1.0","id":"1","source":"s","type":"google.cloud.%s","data":{"status":"FAILURE"}}' % kind
        for kind in (b"storage.x", b"cloudbuild.x", b"audit.x", b"scheduler.x", b"pubsub.x")
    ]
    assert outcomes("cloudevents", values) == ["data", "build", "deep", "noise scheduler", "models"]


def test_real_files_need_models_only_where_words_are(shared: Path) -> None:
    files = {"access-log": "access-log/apache_logs.txt", "github-webhooks": "webhooks"}
    counts = {
        name: Counter(outcomes(name, (item.value for item in read_items(shared / path) if isinstance(item, Item))))
        for name, path in files.items()
    }
    assert counts["access-log"]["models"] == 0
    assert counts["access-log"]["noise static-files"] > 5000
    assert min(counts["access-log"][category] for category in ("page", "feed", "error", "other")) > 100
    assert 50 < counts["github-webhooks"]["models"] < 135
    lines = (item.value for item in read_items(shared / "auth-log" / "auth.log", "text") if isinstance(item, Item))
    auth = Counter(outcomes("auth-log", lines, 1_427_900_000_000))
    assert auth["models"] == 0
    assert auth["failed-login"] > 2000
