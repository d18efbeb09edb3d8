"""`headrace produce`: files, standard input or the demo stream into a topic."""

import asyncio
import functools
import itertools
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import click
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, MessageSizeTooLargeError
from faust.cli.base import cli
from tqdm import tqdm

from app import topics
from app.commands.feed import Feed
from app.core import settings
from app.errors import BrokerError, HeadraceError
from app.kafka import client_kwargs, unreachable
from app.settings import SourceSettings
from app.sources.demo import demo_stream
from app.sources.inputs import Format, Item, ProbeRecord, Unusable, keyer, read_items
from app.sources.source import Source, compile_source
from models.events import Bad

__all__ = ["produce"]

RECORD_OVERHEAD_BYTES = 100
"""Of a record batch with one record: 61 bytes of batch header, the record's own fields, rounded up."""
SHOWN_REFUSALS = 20
"""More refused lines are only counted: a wrong file would fill the screen."""
LINGER_MS = 5
"""Records gather this long to share a request; a person doesn't see it."""


@dataclass(slots=True)
class Totals:
    """What became of the records."""

    sent: int = 0
    sent_bytes: int = 0
    refused: int = 0
    failed: int = 0
    first_failure: str = ""
    pending: set["asyncio.Future[object]"] = field(default_factory=set)

    def refuse(self, where: str, why: str) -> None:
        self.refused += 1
        if self.refused <= SHOWN_REFUSALS:
            tqdm.write(f"headrace: {where}: refused, {why}", file=sys.stderr)
        elif self.refused == SHOWN_REFUSALS + 1:
            tqdm.write("headrace: further refused records are only counted", file=sys.stderr)

    def acked(self, size: int, future: "asyncio.Future[object]") -> None:
        """Called when the broker has the record, or won't have it."""
        self.pending.discard(future)
        error = None if future.cancelled() else future.exception()
        if future.cancelled() or error is not None:
            self.failed += 1
            self.first_failure = self.first_failure or (f"{type(error).__name__}: {error}" if error else "cut off")
        else:
            self.sent += 1
            self.sent_bytes += size


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What the user asked for."""

    files: tuple[Path, ...]
    topic: str
    source: SourceSettings | None
    format: Format | None
    key: str
    rate: float | None
    loop: bool
    check: bool
    demo: bool
    seed: int
    count: int | None


@cli.command("produce", short_help="Send files, standard input or a demo stream to a topic.")
@click.argument("files", nargs=-1, type=click.Path(exists=True, path_type=Path, allow_dash=True))
@click.option("--topic", help="Topic as Kafka names it. Default: the topic of the first source in the settings.")
@click.option(
    "--format",
    "format_",
    type=click.Choice(["jsonl", "csv", "text", "file"]),
    help="Default: by the file's name, else jsonl. file: one record, all its bytes (folders and .json files).",
)
@click.option("--key", default="", help="Path, column or group of the key. Default: the entity by the topic's source.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Records a second. Default: all at once.")
@click.option("--count", type=click.IntRange(min=1), help="Stop after this many records.")
@click.option("--loop", is_flag=True, help="Begin again at the end, until Ctrl-C. Repeats count as duplicates.")
@click.option("--check", is_flag=True, help="Refuse what the topic's source can't read, with line and reason.")
@click.option("--demo", is_flag=True, help="The demo stream of a shop instead of files. Needs no more options.")
@click.option("--seed", type=int, help="Of the demo stream. Default: another one each time, which is shown.")
def produce(
    files: tuple[Path, ...],
    topic: str | None,
    format_: Format | None,
    key: str,
    rate: float | None,
    count: int | None,
    loop: bool,
    check: bool,
    demo: bool,
    seed: int | None,
) -> None:
    """Send records to a topic: FILES (or - for standard input), or the demo stream.

    JSONL and text lines go out byte for byte, broken ones too; a CSV row becomes a JSON object of strings; a .json file
    is one record, and a folder stands for all .json files in it. Exit status 1: some were refused or failed.

    \b
    Examples:
      headrace produce events.jsonl --check
      headrace produce access.log --topic access-log --rate 100
      headrace produce questions.csv --topic questions --key text
      tail -F app.log | headrace produce - --format text --topic app-log
      headrace produce --demo --count 10000 --seed 7
    """  # noqa: D301 - the mark that keeps click from wrapping the examples
    name, source = _target(topic)
    chosen = int(time.time()) if seed is None else seed
    job = Job(
        files=files, topic=name, source=source, format=format_, key=key, rate=rate, loop=loop, check=check,
        demo=demo, seed=chosen, count=count,
    )  # fmt: skip
    _check_usage(job)
    try:
        status = asyncio.run(_run(job))
    except HeadraceError as error:
        click.echo(f"headrace: {error}", err=True)
        status = 2
    raise SystemExit(status)


def _target(topic: str | None) -> tuple[str, SourceSettings | None]:
    """The topic, and the source that reads it, if one does."""
    if topic is not None:
        return topic, next((s for s in settings.sources if settings.source_topic(s) == topic), None)
    if not settings.sources:
        raise click.UsageError("no source is declared: give --topic")
    return settings.source_topic(settings.sources[0]), settings.sources[0]


def _check_usage(job: Job) -> None:
    if job.demo == bool(job.files):
        raise click.UsageError("give either FILES (- for standard input) or --demo")
    if job.demo and (job.key or job.loop or job.format):
        raise click.UsageError("--key, --loop and --format go with FILES, not with --demo")
    if job.loop and Path("-") in job.files:
        raise click.UsageError("--loop can't begin standard input again; write it to a file first")
    if job.check and job.source is None:
        raise click.UsageError(f"--check: no source is declared for topic {job.topic}")


async def _run(job: Job) -> int:
    """Sends all; returns the exit status.

    Raises:
        BrokerError: no broker, or no such topic. Retryable.
    """
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    records = _records(job)
    producer = await _producer(job)
    totals, began = Totals(), time.monotonic()
    check = compile_source(job.source, settings, with_text=False) if job.check and job.source else None
    if job.demo:
        click.echo(f"headrace: demo stream, seed {job.seed}, to {job.topic}", err=True)
    try:
        with tqdm(total=job.count, unit=" records", file=sys.stderr, disable=not sys.stderr.isatty()) as bar:
            await _send_all(job, producer, records, check, totals, stopped, bar.update)
    finally:
        await producer.stop()
    return _report(totals, time.monotonic() - began, job.topic)


async def _producer(job: Job) -> AIOKafkaProducer:
    kafka = settings.kafka
    if job.source is not None and kafka.manage_topics == "create":
        await topics.ensure(settings)
    if job.topic not in await topics.counts(settings, [job.topic]):
        raise BrokerError(f"topic {job.topic} doesn't exist at {kafka.bootstrap_servers}; make it, or see --topic")
    producer = AIOKafkaProducer(
        **client_kwargs(kafka),
        acks="all",
        enable_idempotence=True,
        linger_ms=LINGER_MS,
        compression_type=None if kafka.compression == "none" else kafka.compression,
        max_request_size=kafka.max_message_bytes,
    )
    try:
        await producer.start()
    except (KafkaError, OSError, TimeoutError) as error:
        await producer.stop()
        raise await unreachable(kafka, error) from error
    return producer


def _records(job: Job) -> Iterator[tuple[Item | Unusable, bytes | None]]:
    """Items with their keys. What is wrong with --key shows here, before anything is sent."""
    if job.demo:
        step_ms = 1000 / job.rate if job.rate else 20.0
        demo = demo_stream(job.seed, int(time.time() * 1000), step_ms)
        pairs: Iterator[tuple[Item | Unusable, bytes | None]] = (
            (Item(f"record {number}", record.value), record.key) for number, record in enumerate(demo, 1)
        )
    else:
        make_key = keyer(job.key, job.source, settings)
        rounds = itertools.count() if job.loop else range(1)
        items = (item for _ in rounds for path in job.files for item in _read(path, job.format))
        pairs = ((item, make_key(item, int(time.time() * 1000)) if isinstance(item, Item) else None) for item in items)
    return itertools.islice(pairs, job.count)


def _read(path: Path, chosen: Format | None) -> Iterator[Item | Unusable]:
    try:
        if path != Path("-"):
            yield from read_items(path, chosen)
            return
        # A reader of our own: Python aborts at exit when a thread still waits inside sys.stdin's.
        with open(sys.stdin.fileno(), "rb", closefd=False) as stream:
            yield from read_items(None, chosen, stream)
    except OSError as error:
        yield Unusable(str(path), f"can't be read ({error.strerror})")


async def _send_all(
    job: Job,
    producer: AIOKafkaProducer,
    records: Iterator[tuple[Item | Unusable, bytes | None]],
    check: Source | None,
    totals: Totals,
    stopped: asyncio.Event,
    step: Callable[[], object],
) -> None:
    began = time.monotonic()
    waits = Path("-") in job.files
    number = 0
    async for item, key in _pull(records, stopped, threaded=waits):
        if job.rate and not await _paced(began + number / job.rate, stopped):
            break
        number += 1
        step()
        why = item.why if isinstance(item, Unusable) else _objection(item, key, check)
        if why or isinstance(item, Unusable):
            totals.refuse(item.where, why)
            continue
        try:
            future = await producer.send(job.topic, item.value, key=key)
        except MessageSizeTooLargeError:
            totals.refuse(item.where, _too_large(item, key))
            continue
        except KafkaError as error:
            totals.failed += 1
            totals.first_failure = f"{type(error).__name__}: {error}"
            break
        totals.pending.add(future)
        future.add_done_callback(functools.partial(totals.acked, len(item.value)))
    if totals.pending:
        await asyncio.wait(totals.pending, timeout=settings.kafka.request_timeout_s)


async def _pull(
    records: Iterator[tuple[Item | Unusable, bytes | None]], stopped: asyncio.Event, threaded: bool
) -> AsyncIterator[tuple[Item | Unusable, bytes | None]]:
    """The records, until told to stop. Standard input is read in a thread: it may be silent for hours."""
    if threaded:
        async for pair in Feed(records, stopped):
            yield pair
        return
    for number, pair in enumerate(records):
        if stopped.is_set():
            return
        if number % 100 == 0:
            await asyncio.sleep(0)  # acks and Ctrl-C get their turn
        yield pair


async def _paced(due: float, stopped: asyncio.Event) -> bool:
    """Waits until a record is due; False when told to stop meanwhile."""
    wait_s = due - time.monotonic()
    if wait_s > 0:
        with suppress(TimeoutError):
            await asyncio.wait_for(stopped.wait(), wait_s)
    return not stopped.is_set()


def _objection(item: Item, key: bytes | None, check: Source | None) -> str:
    size = len(item.value) + len(key or b"") + RECORD_OVERHEAD_BYTES
    if size > settings.kafka.max_message_bytes:
        return _too_large(item, key)
    if check is None:
        return ""
    event = check.read(ProbeRecord(item.value, int(time.time() * 1000), key))
    return f"{event.reason}: {event.message}" if isinstance(event, Bad) else ""


def _too_large(item: Item, key: bytes | None) -> str:
    size = len(item.value) + len(key or b"")
    return f"{size} bytes, more than kafka.max_message_bytes ({settings.kafka.max_message_bytes}) allows"


def _report(totals: Totals, seconds: float, topic: str) -> int:
    lost = totals.failed + len(totals.pending)
    rate = totals.sent / seconds if seconds > 0 else 0.0
    click.echo(
        f"sent {totals.sent} records ({totals.sent_bytes} bytes) to {topic} in {seconds:.1f} s, {rate:.0f}/s; "
        f"refused {totals.refused}; failed {lost}"
    )
    if lost:
        cause = totals.first_failure or "no answer in time"
        click.echo(f"headrace: the broker didn't take {lost} records ({cause})", err=True)
    return 1 if totals.refused or lost else 0
