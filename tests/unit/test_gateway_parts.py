"""Keys, rates and kept replies, each for itself."""

import hashlib
import json
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.web.gateway.bodies import split_lines, split_list
from app.web.gateway.rates import Rates
from app.web.gateway.replies import Replies, digest
from app.web.keys import KeyRing, new_key
from app.web.problems import Problem


def record(key: str, value: bytes | None) -> Any:
    return SimpleNamespace(topic="api-keys", offset=0, key=key.encode(), value=value)


def test_a_key_is_stored_as_a_hash_and_found_by_its_token_only() -> None:
    token, key = new_key(["produce"], "shop", 1)
    stored = msgspec.json.encode(key)
    assert token.removeprefix(f"hr_{key.id}_").encode() not in stored
    assert key.sha256 == hashlib.sha256(token.encode()).hexdigest()
    ring = KeyRing()
    ring.apply(record(key.id, stored))
    assert ring.find(token) == key
    for wrong in ("", "hr_", token[:-1], token + "x", token[:-1] + "~", token.upper(), f"hr_{key.id}_{'A' * 43}"):
        assert ring.find(wrong) is None, wrong


def test_a_revoked_key_is_refused_as_soon_as_its_record_is_read() -> None:
    token, key = new_key(["read"], "", 1)
    ring = KeyRing()
    ring.apply(record(key.id, msgspec.json.encode(key)))
    ring.apply(record(key.id, msgspec.json.encode(msgspec.structs.replace(key, revoked_ms=2))))
    assert ring.find(token) is None
    assert key.id in ring.entries


@pytest.mark.parametrize("damage", [None, b"", b"{}", b"not json", b'{"id":"other"}'])
def test_a_damaged_record_takes_its_key_away(damage: bytes | None) -> None:
    token, key = new_key(["admin"], "", 1)
    ring = KeyRing()
    ring.apply(record(key.id, msgspec.json.encode(key)))
    ring.apply(record(key.id, damage))
    assert ring.find(token) is None


def test_a_record_of_one_key_cannot_speak_for_another() -> None:
    token, key = new_key(["admin"], "", 1)
    ring = KeyRing()
    ring.apply(record("another", msgspec.json.encode(key)))
    assert ring.find(token) is None


def test_admin_may_do_all_and_others_what_they_are_named() -> None:
    assert all(new_key(["admin"], "", 1)[1].allows(scope) for scope in ("produce", "read", "review", "admin"))
    key = new_key(["produce", "read"], "", 1)[1]
    assert [key.allows(scope) for scope in ("produce", "read", "review", "admin")] == [True, True, False, False]


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(1, 50)), max_size=60))
def test_over_any_time_no_key_gets_more_than_rate_and_burst_and_one_request(steps: list[tuple[float, int]]) -> None:
    now, taken, largest = 0.0, 0, 0
    rates = Rates(10.0, 2.0, lambda: now)
    for wait_s, events in steps:
        now += wait_s
        try:
            rates.admit("k")
        except Problem:
            continue
        rates.charge("k", events)
        taken, largest = taken + events, max(largest, events)
        assert taken <= 20 + 10 * now + largest + 1e-6


def test_after_the_time_it_was_told_a_key_is_let_in() -> None:
    now = 0.0
    rates = Rates(10.0, 1.0, lambda: now)
    rates.charge("k", 1000)
    with pytest.raises(Problem) as caught:
        rates.admit("k")
    now = float(caught.value.headers["Retry-After"])
    rates.admit("k")


def test_a_running_request_is_not_run_twice() -> None:
    replies = Replies(60, 10)
    assert replies.begin(b"k", b"body") is None
    with pytest.raises(Problem) as caught:
        replies.begin(b"k", b"body")
    assert caught.value.status == 409
    with pytest.raises(Problem) as caught:
        replies.begin(b"k", b"other")
    assert caught.value.status == 422
    replies.end(b"k", 202, b"done")
    kept = replies.begin(b"k", b"body")
    assert kept is not None
    assert (kept.status, kept.content) == (202, b"done")


def test_another_gateway_knows_the_reply_and_the_oldest_go_first() -> None:
    here, there = Replies(60, 2), Replies(60, 2)
    for name in (b"a", b"b", b"c"):
        here.begin(name, b"body")
        stored = here.end(name, 202, name)
        there.apply(SimpleNamespace(key=name, value=stored))  # type: ignore[arg-type]  # what is read of a record
    assert there.begin(b"a", b"body") is None
    for name in (b"b", b"c"):
        kept = there.begin(name, b"body")
        assert kept is not None
        assert kept.content == name
    there.apply(SimpleNamespace(key=b"d", value=b"damage"))  # type: ignore[arg-type]  # likewise


def test_a_reply_is_forgotten_after_its_time() -> None:
    replies = Replies(-1.0, 10)
    replies.begin(b"k", b"body")
    replies.end(b"k", 202, b"done")
    assert replies.begin(b"k", b"other") is None


def test_parts_of_a_digest_do_not_run_into_each_other() -> None:
    assert digest(b"ab", b"c") != digest(b"a", b"bc")


SCALARS = (
    st.none()
    | st.integers()
    | st.text(max_size=20)
    | st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2)
)


@given(st.lists(SCALARS | st.lists(SCALARS, max_size=3), min_size=1, max_size=20))
def test_a_list_is_split_into_what_it_holds(items: list[Any]) -> None:
    try:
        body = json.dumps(items, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return
    assert [json.loads(part) for part in split_list(body, 10_000, 100)] == items
    lines = b"\n".join(json.dumps(item).encode() for item in items) + b"\r\n\n"
    assert [json.loads(part) for part in split_lines(lines, 10_000)] == items
