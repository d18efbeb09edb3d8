"""The demo stream."""

import json
from collections import Counter
from itertools import islice

from app.logic.rules import NeedsModel, NoiseRules, RuleAnswer, TaskRouter, condition_fields
from app.settings import Settings, load
from app.sources.demo import demo_stream, demo_texts
from app.sources.source import compile_source
from models.events import Bad
from tests.helpers.records import NOW_MS, record

COUNT = 20_000
RECORDS = list(islice(demo_stream(7, NOW_MS), COUNT))
SENT_MS = NOW_MS + COUNT * 20


def built_in() -> Settings:
    settings = load()
    assert settings.sources[0].name == "raw-events"
    return settings


def test_one_seed_is_one_stream_byte_for_byte() -> None:
    again = list(islice(demo_stream(7, NOW_MS), 500))
    assert again == RECORDS[:500]
    other = list(islice(demo_stream(8, NOW_MS), 500))
    assert not {r.value for r in other} & {r.value for r in again}


def test_repeats_broken_and_late_records_have_their_shares() -> None:
    kinds = Counter(r.kind for r in RECORDS)
    late = sum(r.late for r in RECORDS if r.kind != "duplicate")
    assert 0.045 < kinds["duplicate"] / COUNT < 0.055
    assert 0.007 < kinds["broken"] / COUNT < 0.013
    assert 0.015 < late / COUNT < 0.025


def test_each_record_is_what_it_says() -> None:
    settings = built_in()
    reader = compile_source(settings.sources[0], settings, condition_fields(settings))
    noise, router = NoiseRules(settings), TaskRouter(settings)
    seen: dict[str, bytes] = {}
    outcomes: Counter[str] = Counter()
    reasons = set()
    for sent in RECORDS:
        event = reader.read(record(sent.value, key=sent.key, at_ms=SENT_MS))
        if isinstance(event, Bad):
            assert sent.kind == "broken"
            reasons.add(event.reason)
        elif sent.kind == "duplicate":
            assert seen[event.event_id] == sent.value
        else:
            assert event.event_id not in seen
            seen[event.event_id] = sent.value
            assert event.entity == sent.key.decode()
            if noise.match(event, "raw-events"):
                assert sent.kind == "heartbeat"
                continue
            match router.route(event, "raw-events"):
                case RuleAnswer(category=category):
                    assert (sent.kind, sent.category) == ("structured", category)
                    outcomes["rule"] += 1
                case NeedsModel():
                    assert sent.kind == "message"
                    assert event.text == json.loads(sent.value)["payload"]["message"]
                    outcomes["model"] += 1
    assert reasons == {"invalid-json", "missing-field", "bad-time", "not-utf8"}
    assert 0.28 < outcomes["rule"] / outcomes.total() < 0.32


def test_texts_are_many_distinct_and_in_two_languages() -> None:
    texts = demo_texts()
    assert len({text for text, _ in texts}) == len(texts) > 200
    assert not any("{" in text for text, _ in texts)
    chinese = sum(any("\u4e00" <= c <= "\u9fff" for c in text) for text, _ in texts)
    assert 0.3 < chinese / len(texts) < 0.7
    assert set(Counter(category for _, category in texts)) == {"payment", "order", "logistics", "other"}
