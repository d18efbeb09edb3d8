"""Real files that nobody here wrote: each line and each file has its outcome."""

import csv
import json
from pathlib import Path

import pytest

from app.sources.inputs import read_items
from models.events import Bad, Event
from tests.helpers.records import envelope, record, source

APRIL_2015_MS = 1_427_900_000_000


def suite(shared: Path) -> list[Path]:
    files = sorted((shared / "json-test-suite" / "test_parsing").glob("*.json"))
    assert len(files) == 318
    return files


def test_json_test_suite_as_whole_records(shared: Path) -> None:
    for reader in (source(), source(format="json", event_id="nowhere", event_type="=x"), source(format="cloudevents")):
        for file in suite(shared):
            outcome = reader.read(record(file.read_bytes()))
            assert isinstance(outcome, Bad), file.name
            if file.name.startswith("y_"):
                assert outcome.reason in ("not-an-object", "missing-field", "bad-cloudevent"), (file.name, outcome)
            elif file.name.startswith("n_"):
                assert outcome.reason in ("invalid-json", "not-utf8", "too-deep", "empty-value"), (file.name, outcome)


@pytest.mark.parametrize("name", ["payload", "unknown"])
@pytest.mark.parametrize("fields", [(), ("payload", "unknown")])
def test_json_test_suite_inside_an_envelope(shared: Path, name: str, fields: tuple[str, ...]) -> None:
    """Also in a field that the fast way skips. A payload of two values closes the envelope early: no n_ file does."""
    reader = source(*fields)
    for file in suite(shared):
        value = envelope()[:-1] + b',"' + name.encode() + b'":' + file.read_bytes() + b"}"
        outcome = reader.read(record(value))
        if file.name.startswith("y_"):
            assert isinstance(outcome, Event), (file.name, outcome)
            outcome.text.encode()
        elif file.name.startswith("n_"):
            assert isinstance(outcome, Bad), file.name
            assert outcome.reason in ("invalid-json", "not-utf8", "too-deep"), (file.name, outcome)
        elif "number" in file.name:
            assert isinstance(outcome, Event), (file.name, outcome)


def test_every_access_log_line_is_an_event(shared: Path) -> None:
    reader = source(
        "method", "status", format="text", pattern="combined", fingerprint=["line"], event_time="time", entity="clientip"
    )  # fmt: skip
    lines = (shared / "access-log" / "apache_logs.txt").read_bytes().splitlines()
    events = [reader.read(record(line)) for line in lines]
    good = [event for event in events if isinstance(event, Event)]
    assert len(good) == len(lines) == 10_000
    assert {event.fields["method"] for event in good} >= {"GET", "POST", "HEAD", "OPTIONS"}
    assert sum(event.fields["status"] == "404" for event in good) == 213
    assert len({event.entity for event in good}) == 1753
    assert min(event.event_time_ms for event in good) == 1_431_857_100_000  # 17 May 2015 10:05:00 UTC


def test_every_auth_log_line_is_an_event_of_2015(shared: Path) -> None:
    reader = source(format="text", pattern="syslog", fingerprint=["line"], event_time="time", event_type="program")
    lines = (shared / "auth-log" / "auth.log").read_bytes().splitlines()
    events = [reader.read(record(line, at_ms=APRIL_2015_MS)) for line in lines]
    good = [event for event in events if isinstance(event, Event)]
    assert len(good) == len(lines) == 7121
    assert {event.event_type for event in good} >= {"sshd", "sudo", "CRON", "useradd", "systemd-logind"}
    times = [event.event_time_ms for event in good]
    assert times == sorted(times)
    assert times[0] == 1_427_461_616_000  # 27 March 2015 13:06:56 UTC


def test_banking77_rows_are_questions(shared: Path) -> None:
    reader = source(format="json", fingerprint=["text"], event_type="=question", text="text")
    path = shared / "banking77" / "test.csv"
    with path.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    events = [reader.read(record(item.value)) for item in read_items(path) if hasattr(item, "value")]
    assert [event.text for event in events if isinstance(event, Event)] == [row["text"] for row in rows]
    assert len(rows) == 3080


def test_cloudevents_data_in_both_modes(shared: Path) -> None:
    files = sorted((shared / "cloudevents").rglob("*.json"))
    assert len(files) == 19
    reader = source("data.message.messageId", format="cloudevents")
    for number, file in enumerate(files):
        data = file.read_bytes()
        identity = {"id": str(number), "source": "/x", "type": file.parent.name}
        headers = [(f"ce_{name}", text.encode()) for name, text in {**identity, "specversion": "1.0"}.items()]
        binary = reader.read(record(data, headers=[*headers, ("content-type", b"application/json"), ("note", None)]))
        whole = json.dumps({**identity, "specversion": "1.0", "data": json.loads(data)}).encode()
        structured = reader.read(record(whole))
        assert isinstance(binary, Event), (file.name, binary)
        assert isinstance(structured, Event), (file.name, structured)
        assert binary.fields == structured.fields
        assert (
            (binary.event_id, binary.event_type)
            == (structured.event_id, structured.event_type)
            == (
                str(number),
                file.parent.name,
            )
        )


def test_webhooks_are_told_apart_by_their_whole_body(shared: Path) -> None:
    reader = source("sender.login", format="json", fingerprint=["@"], event_type="=hook", entity="repository.full_name")
    items = list(read_items(shared / "webhooks"))
    events = [reader.read(record(item.value)) for item in items if hasattr(item, "value")]
    good = [event for event in events if isinstance(event, Event)]
    assert len(good) == len(items) == 270
    bodies = {json.dumps(json.loads(item.value), sort_keys=True) for item in items if hasattr(item, "value")}
    assert len({event.event_id for event in good}) == len(bodies)
    assert any(event.entity == "Codertocat/Hello-World" for event in good)
