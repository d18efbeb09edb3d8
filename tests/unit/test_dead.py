"""Headers of dead letters."""

from app.logic.dead import dead_headers
from models.events import Bad
from tests.helpers.records import record

BAD = Bad(reason="bad-time", field="event_time", message="event_time lies before 1970")


def test_a_dead_letter_says_where_it_was_and_why() -> None:
    headers = dead_headers(record(b"{}"), BAD, "ingest-raw-events")
    assert dict(headers) == {
        "__connect.errors.topic": b"events",
        "__connect.errors.partition": b"3",
        "__connect.errors.offset": b"17",
        "__connect.errors.connector.name": b"headrace",
        "__connect.errors.task.id": b"3",
        "__connect.errors.stage": b"ingest-raw-events",
        "__connect.errors.class.name": b"app.sources",
        "__connect.errors.exception.class.name": b"bad-time",
        "__connect.errors.exception.message": b"event_time lies before 1970",
        "headrace.reason": b"bad-time",
        "headrace.field": b"event_time",
        "headrace.stage": b"ingest-raw-events",
    }


def test_original_headers_stand_in_front_unchanged_and_the_last_of_a_name_is_ours() -> None:
    original = [("note", None), ("empty", b""), ("headrace.reason", b"old"), *[("same", b"x")] * 500]
    headers = dead_headers(record(b"{}", headers=original), BAD, "s")
    assert headers[: len(original)] == original
    assert [value for name, value in headers if name == "headrace.reason"] == [b"old", b"bad-time"]


def test_a_field_with_odd_characters_still_makes_headers() -> None:
    headers = dict(dead_headers(record(None), Bad(reason="bad-field", field="支付\ud83d", message="x"), "s"))
    assert headers["headrace.field"] == "支付?".encode()
