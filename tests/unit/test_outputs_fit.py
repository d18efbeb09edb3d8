"""Records too large for their topic become dead letters before anything is sent; the rest stays as it was."""

from pathlib import Path
from typing import Any, cast

import pytest

from app.delivery.outbox import LARGE_BYTES, Outbox
from app.delivery.runtime import Delivery
from app.errors import OutputError
from app.settings import load


class FakeStage:
    name = "a-stage"


@pytest.fixture
def delivery(tmp_path: Path) -> Delivery:
    config = tmp_path / "headrace.toml"
    config.write_text("tasks = []\n")
    made = Delivery(load(config))
    made.raw_topics.add(made.dead_letter)
    return made


def fit(delivery: Delivery, out: Outbox) -> None:
    delivery.fit(out, cast(Any, FakeStage()))


def test_only_records_above_the_bound_make_an_outbox_look(delivery: Delivery) -> None:
    out, other = Outbox(0), Outbox(0)
    out.send("t", b"k", b"v" * (LARGE_BYTES // 2))
    assert not out.large
    other.send("t", b"k", b"v", [("h", b"x" * LARGE_BYTES)])  # headers count too
    assert other.large
    out.merge(other)
    assert out.large


def test_a_record_too_large_becomes_a_dead_letter_and_others_stay_in_order(delivery: Delivery) -> None:
    limit = delivery.settings.kafka.max_message_bytes
    out = Outbox(0)
    for value in (b"1", b"2" * limit, b"3"):
        out.send("t", b"k", value, [("mine", b"x")])
    fit(delivery, out)
    assert [value for _, value, _ in out.rows("t")] == [b"1", b"3"]
    ((key, value, headers),) = out.rows(delivery.dead_letter)
    assert (key, value) == (b"k", b"2" * limit)
    assert headers[0] == ("mine", b"x")
    assert dict(headers)["headrace.reason"] == b"output-too-large"
    assert dict(headers)["headrace.field"] == b"t"


def test_what_fits_nowhere_is_an_error_that_says_what_to_do(delivery: Delivery) -> None:
    out = Outbox(0)
    out.send("t", b"k", b"2" * (delivery.settings.kafka.max_message_bytes + (1 << 20)))
    with pytest.raises(OutputError, match=r"raise max\.message\.bytes"):
        fit(delivery, out)
