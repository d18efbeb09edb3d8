"""Log lines: what a client says thousands of times a second is written now and then."""

import logging

from app.logs import FLOODS_S, NoFloods


def written(floods: NoFloods, name: str, message: str, *args: object) -> str | None:
    record = logging.LogRecord(name, logging.ERROR, "", 0, message, args, None)
    return record.getMessage() if floods.filter(record) else None


def test_a_flood_is_one_line_and_then_one_with_its_size() -> None:
    now = 100.0
    floods = NoFloods(lambda: now)
    lines = [written(floods, "aiokafka.client", "no node %d", n) for n in range(1000)]
    assert [line for line in lines if line] == ["no node 0"]
    now += FLOODS_S
    assert written(floods, "aiokafka.client", "no node %d", 7) == "no node 7 (and 999 more like it)"
    assert written(floods, "aiokafka.client", "another") == "another"


def test_our_own_lines_are_all_written() -> None:
    floods = NoFloods(lambda: 0.0)
    assert [written(floods, "headrace.delivery", "stopped") for _ in range(3)] == ["stopped"] * 3
