"""A real worker on a real broker: what goes in, what comes out, and where the rest is."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Fleet
from tests.helpers import topics
from tests.helpers.processes import wait_until

pytestmark = pytest.mark.integration

CONFIG = """
[[sources]]
name = "raw"
topic = "{prefix}raw"

[[noise]]
name = "beats"
when = [{{ field = "event_type", op = "equals", value = "heartbeat" }}]

[[tasks]]
name = "kind"
[[tasks.categories]]
id = "a"
description = "a"
[[tasks.categories]]
id = "b"
description = "b"
[[tasks.rules]]
name = "all"
category = "a"
when = [{{ field = "event_type", op = "exists" }}]
"""


def an_event(event_id: Any, kind: str = "order", **more: Any) -> bytes:
    return json.dumps(
        {"event_id": event_id, "event_type": kind, "event_time": 1_790_000_000_000, "payload": {"n": 1}, **more}
    ).encode()


async def settled(fleet: Fleet, worker: Any, group: str = "headrace") -> None:
    """All input of raw and rekeyed is committed."""

    async def backlog() -> int:
        left = 0
        for topic in ("raw", "rekeyed"):
            ends = await topics.end_offsets(fleet.bootstrap, fleet.prefix + topic)
            stood = await topics.committed(fleet.bootstrap, fleet.prefix + group, fleet.prefix + topic)
            left += sum(max(0, end - stood.get(p, 0)) for p, end in ends.items() if topic == "raw" or end)
        return left

    for _ in range(200):
        # the rekeyed topic ends in transaction markers, which nobody commits past
        ends = await topics.end_offsets(fleet.bootstrap, f"{fleet.prefix}raw")
        stood = await topics.committed(fleet.bootstrap, fleet.prefix + group, f"{fleet.prefix}raw")
        if all(stood.get(p, 0) == end for p, end in ends.items()):
            hops = await topics.read(fleet.bootstrap, f"{fleet.prefix}rekeyed")
            done = await topics.committed(fleet.bootstrap, fleet.prefix + group, f"{fleet.prefix}rekeyed")
            if all(done.get(r.partition, 0) > r.offset for r in hops):
                return
        assert worker.process.poll() is None, worker.log.read_text()[-3000:]
    raise AssertionError(f"backlog of {await backlog()} left")


async def outcome(fleet: Fleet, name: str) -> list[Any]:
    return await topics.read(fleet.bootstrap, fleet.prefix + name)


async def start(
    fleet: Fleet, records: list[tuple[bytes | None, bytes | None]], config: str = CONFIG, **env: str
) -> Any:
    await topics.create(fleet.bootstrap, f"{fleet.prefix}raw")
    await topics.produce(fleet.bootstrap, f"{fleet.prefix}raw", records)
    worker = fleet.worker(config.format(prefix=fleet.prefix), **env)
    worker.start()
    wait_until(lambda: worker.ready_times() or worker.process.poll() is not None, 60, "ready")
    await settled(fleet, worker)
    return worker


async def test_one_result_per_event_and_every_other_record_is_accounted_for(fleet: Fleet) -> None:
    good = [(b"u%d" % (n % 7), an_event(f"e{n}")) for n in range(500)]
    repeated = good[:100]
    noise = [(b"u1", an_event(f"h{n}", "heartbeat")) for n in range(50)]
    broken = [(b"u2", b'{"event_id": "x'), (b"u3", an_event("", "order")), (b"u4", None), (b"u5", b"")]
    await start(fleet, [*good, *repeated, *noise, *broken])
    results = [json.loads(r.value) for r in await outcome(fleet, "ai-results")]
    assert Counter(r["event_id"] for r in results) == Counter(f"e{n}" for n in range(500))
    assert {(r["tier"], r["category"], r["why"]) for r in results} == {("rule", "a", "all")}
    assert len(await outcome(fleet, "sink-noise")) == 50
    dead = await outcome(fleet, "dead-letter")
    assert Counter(r.value for r in dead) == Counter(value for _, value in broken)


async def test_the_raw_bytes_and_headers_pass_on_unchanged(fleet: Fleet) -> None:
    raw = b'{ "z": 1, "event_id":"e1" , "event_type":"order","event_time":1790000000000, "unknown": {"b":2,"a":1.50} }'
    await topics.create(fleet.bootstrap, f"{fleet.prefix}raw")
    await topics.produce(
        fleet.bootstrap, f"{fleet.prefix}raw", [(b"u1", raw)], headers=[("note", None), ("a", b"1"), ("a", b"2")]
    )
    worker = fleet.started(CONFIG.format(prefix=fleet.prefix))
    await settled(fleet, worker)
    (record,) = await outcome(fleet, "clean-events")
    assert (record.value, record.key) == (raw, b"u1")
    assert list(record.headers)[:3] == [("note", None), ("a", b"1"), ("a", b"2")]
    assert dict(record.headers)["headrace.event-id"] == b"e1"


async def test_four_empty_values_are_four_reasons(fleet: Fleet) -> None:
    await start(fleet, [(b"k", None), (b"k", b""), (b"k", b"null"), (b"k", b"{}")])
    dead = await outcome(fleet, "dead-letter")
    reasons = [dict(r.headers)["headrace.reason"] + b"/" + dict(r.headers)["headrace.field"] for r in dead]
    assert len(set(reasons)) == 4
    assert [r.value for r in dead] == [None, b"", b"null", b"{}"]
    headers = dict(dead[0].headers)
    assert headers["__connect.errors.topic"] == f"{fleet.prefix}raw".encode()
    assert headers["__connect.errors.offset"] == b"0"


async def test_copies_without_a_key_meet_in_one_partition(fleet: Fleet) -> None:
    copies: list[tuple[bytes | None, bytes | None]] = [(None, an_event("e1")), (b"", an_event("e1"))] * 20
    await start(fleet, copies)
    results = await outcome(fleet, "ai-results")
    assert [json.loads(r.value)["event_id"] for r in results] == ["e1"]
    assert json.loads(results[0].value)["source"]["topic"] == f"{fleet.prefix}raw"


async def test_two_ids_that_differ_in_the_last_digit_are_two_events(fleet: Fleet) -> None:
    await start(fleet, [(b"u", an_event(9007199254740993)), (b"u", an_event(9007199254740992))])
    ids = {json.loads(r.value)["event_id"] for r in await outcome(fleet, "ai-results")}
    assert ids == {"9007199254740993", "9007199254740992"}


async def test_every_file_of_the_json_test_suite_has_an_outcome_and_the_worker_lives(
    fleet: Fleet, shared: Path
) -> None:
    files = sorted((shared / "json-test-suite" / "test_parsing").glob("*.json"))
    assert len(files) == 318
    bodies = {f.name: f.read_bytes() for f in files}
    worker = await start(fleet, [(name.encode(), body) for name, body in bodies.items()])
    dead = {r.key.decode(): dict(r.headers)["headrace.reason"] for r in await outcome(fleet, "dead-letter")}
    assert set(dead) == set(bodies)  # none of them is an event
    assert [name for name, reason in dead.items() if name.startswith("y_") and reason == b"invalid-json"] == []
    assert worker.stop() == 0


async def test_huge_and_deep_values_are_dead_letters_and_others_go_on(fleet: Fleet) -> None:
    deep = (
        b'{"event_id":"d","event_type":"t","event_time":1790000000000,"payload":' + b"[" * 10_000 + b"]" * 10_000 + b"}"
    )
    big = an_event("big", text="x" * 1_020_000)
    large_but_fine = an_event("fine", text="y" * 900_000)
    await start(fleet, [(b"a", deep), (b"a", big), (b"a", large_but_fine), (b"a", an_event("small"))])
    ids = {json.loads(r.value)["event_id"] for r in await outcome(fleet, "ai-results")}
    assert ids == {"fine", "small"}
    reasons = {dict(r.headers)["headrace.reason"] for r in await outcome(fleet, "dead-letter")}
    assert reasons == {b"too-deep", b"too-large"}


async def test_a_restart_takes_no_event_twice_and_a_lost_folder_is_rebuilt(fleet: Fleet) -> None:
    worker = await start(fleet, [(b"u%d" % n, an_event(f"e{n}")) for n in range(200)])
    assert worker.stop() == 0
    await topics.produce(fleet.bootstrap, f"{fleet.prefix}raw", [(b"u%d" % n, an_event(f"e{n}")) for n in range(300)])
    other = fleet.worker(CONFIG.format(prefix=fleet.prefix))  # an empty folder: State comes from the changelog
    other.start()
    await settled(fleet, other)
    ids = Counter(json.loads(r.value)["event_id"] for r in await outcome(fleet, "ai-results"))
    assert ids == Counter(f"e{n}" for n in range(300))


async def test_a_first_start_has_its_changelogs_before_it_joins_the_group(fleet: Fleet) -> None:
    """Else the group learns of them with the next metadata, a minute later, and rebalances."""
    worker = await start(fleet, [(b"u1", an_event("e1"))])
    await settled(fleet, worker)
    log = worker.log.read_text()
    assert "ready; partitions of this worker" in log
    assert "Ignoring missing topic" not in log


async def test_a_second_worker_on_the_folder_is_refused_by_name(fleet: Fleet) -> None:
    first = await start(fleet, [(b"u", an_event("e1"))])
    second = fleet.worker(CONFIG.format(prefix=fleet.prefix))
    second.env["HEADRACE_DATA_DIR"] = first.env["HEADRACE_DATA_DIR"]
    second.start()
    assert second.process is not None
    assert second.process.wait(30) != 0
    said = second.log.read_text()
    assert str(first.pid) in said
    assert first.env["HEADRACE_DATA_DIR"] in said


async def test_a_recreated_input_stops_its_partitions_and_says_so(fleet: Fleet) -> None:
    from aiokafka.admin import AIOKafkaAdminClient

    worker = await start(fleet, [(b"u%d" % n, an_event(f"e{n}")) for n in range(50)])
    assert worker.stop() == 0
    admin = AIOKafkaAdminClient(bootstrap_servers=fleet.bootstrap)
    await admin.start()
    await admin.delete_topics([f"{fleet.prefix}raw"])
    await admin.close()
    await topics.create(fleet.bootstrap, f"{fleet.prefix}raw")
    worker.start()
    wait_until(lambda: worker.log.read_text().count("is STOPPED") >= 4, 60, "stopped partitions are named")
    assert "recreated or cut" in worker.log.read_text()
