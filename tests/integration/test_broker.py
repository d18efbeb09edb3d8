"""`headrace broker` and `EmbeddedKafka`: how they start, refuse, stop and die."""

import contextlib
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from aiokafka.errors import KafkaError

from app.broker import kafka as embedded
from app.broker.kafka import EmbeddedKafka
from app.errors import BrokerError
from tests.helpers.broker import BrokerProcess
from tests.helpers.processes import free_port, wait_until
from tests.helpers.topics import create, produce, read

pytestmark = pytest.mark.integration

Start = Callable[..., BrokerProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts brokers that are ended with the test."""
    started: list[BrokerProcess] = []

    def one(*arguments: str, name: str = "broker", **rest: object) -> BrokerProcess:
        process = BrokerProcess(tmp_path / name, *(arguments or ("--port", "0")), **rest)  # type: ignore[arg-type]
        started.append(process)
        return process

    yield one
    for process in started:
        process.end()


def on_small_disk(options: str, folder: Path) -> tuple[str, ...]:
    """A command line that runs the rest of itself with `folder` on a small disk of its own; skips where that can't be."""
    folder.mkdir()
    before = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c")
    before += (f'mount -t tmpfs -o {options} none {folder} && exec "$@"', "sh")
    if not shutil.which("unshare") or subprocess.run([*before, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody mount a disk in a namespace")
    return before


async def test_says_one_ready_line_and_then_takes_records(start: Start) -> None:
    address = start().ready()
    await create(address, "orders")
    await produce(address, "orders", [(b"k", b"v")])
    assert [r.value for r in await read(address, "orders")] == [b"v"]


async def test_restart_keeps_records_and_cluster(tmp_path: Path) -> None:
    broker = EmbeddedKafka(tmp_path)
    broker.start()
    await create(broker.bootstrap, "orders")
    await produce(broker.bootstrap, "orders", [(b"k", b"kept")])
    broker.stop()
    again = EmbeddedKafka(tmp_path)
    again.start()
    try:
        assert [r.value for r in await read(again.bootstrap, "orders")] == [b"kept"]
    finally:
        again.kill()


async def test_killed_broker_starts_again_with_what_was_acknowledged(tmp_path: Path) -> None:
    broker = EmbeddedKafka(tmp_path)
    broker.start()
    await create(broker.bootstrap, "orders")
    await produce(broker.bootstrap, "orders", [(b"k", b"%d" % n) for n in range(100)])
    broker.kill()
    again = EmbeddedKafka(tmp_path)
    again.start()
    try:
        assert len(await read(again.bootstrap, "orders")) == 100
    finally:
        again.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_kafka_in_order(start: Start, number: int) -> None:
    broker = start()
    broker.ready()
    java = broker.java()
    assert broker.stop(number) == 0
    assert not java.is_running()
    assert (broker.data_dir / "logs" / ".kafka_cleanshutdown").exists()


def test_killed_parent_leaves_no_kafka(start: Start) -> None:
    broker = start()
    broker.ready()
    java = broker.java()
    broker.process.kill()
    broker.process.wait()
    gone, _ = psutil.wait_procs([java], timeout=15)
    assert gone


def test_kafka_that_dies_ends_the_command_with_its_status(start: Start) -> None:
    broker = start()
    broker.ready()
    broker.java().kill()
    assert broker.ended() == 1
    assert "Kafka ended with status -9" in broker.said


def test_taken_port_is_said_at_once(start: Start) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        broker = start("--port", str(port))
        assert broker.ended() == 1
    assert f"port {port} on 127.0.0.1" in broker.said
    assert "is taken" in broker.said
    assert broker.out.read_bytes() == b""


def test_second_broker_on_a_folder_names_folder_and_holder(start: Start) -> None:
    first = start()
    first.ready()
    second = start("--port", "0", name="second", data_dir=first.data_dir)
    assert second.ended() == 1
    assert f"data folder {first.data_dir} is in use" in second.said
    assert f"process id {first.process.pid}" in second.said
    assert first.process.poll() is None


def test_default_port_is_that_of_the_bootstrap_servers(start: Start, tmp_path: Path) -> None:
    port = free_port()
    broker = BrokerProcess(tmp_path / "own", HEADRACE_KAFKA__BOOTSTRAP_SERVERS=f"127.0.0.1:{port}")
    try:
        assert broker.ready() == f"127.0.0.1:{port}"
    finally:
        broker.end()


def test_read_only_disk_is_said(start: Start, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    broker = start("--port", "0", before=on_small_disk("ro,size=300m", disk), data_dir=disk / "kafka")
    assert broker.ended() == 1
    assert "is on a read-only disk; choose another with --data-dir" in broker.said


def test_nearly_full_disk_is_said_before_kafka_starts(start: Start, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    broker = start("--port", "0", before=on_small_disk("size=50m", disk), data_dir=disk / "kafka")
    assert broker.ended() == 1
    assert f"the disk of {disk}/kafka is full: " in broker.said


async def test_disk_that_fills_up_ends_the_command_and_is_named(start: Start, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    broker = start("--port", "0", before=on_small_disk("size=300m", disk), data_dir=disk / "kafka")
    address = broker.ready()
    seen_from_here = Path(f"/proc/{broker.process.pid}/root{disk}")
    with (seen_from_here / "filler").open("wb") as filler:
        try:
            while True:
                filler.write(b"x" * (1 << 16))
                filler.flush()
        except OSError:
            pass
    with contextlib.suppress(KafkaError):
        await create(address, "orders")  # each partition wants index files of 10 MiB
    assert broker.ended(60) == 1
    assert "the disk is full" in broker.said


async def test_advertised_host_is_told_to_clients_and_needn_t_be_known_to_the_broker(tmp_path: Path) -> None:
    broker = EmbeddedKafka(tmp_path, advertised_host="kafka.example.invalid")
    broker.start()
    try:
        assert broker.bootstrap == f"kafka.example.invalid:{broker.port}"
        await create(broker.internal, "orders")
        await produce(broker.internal, "orders", [(b"k", b"v")])
        assert len(await read(broker.internal, "orders")) == 1
    finally:
        broker.stop()


def test_without_advertised_host_only_this_machine_can_connect(kafka: EmbeddedKafka) -> None:
    listening = {c.laddr.ip for c in psutil.Process(kafka.pid).net_connections("tcp") if c.status == "LISTEN"}
    assert {ip.removeprefix("::ffff:") for ip in listening} == {"127.0.0.1"}


def test_start_asks_no_network_when_the_cache_is_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the resolver was asked")

    monkeypatch.setattr("app.broker.jars._resolve", refuse)
    broker = EmbeddedKafka(tmp_path)
    broker.start()
    broker.stop()


def test_interrupted_fetch_leaves_nothing_that_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE_DIR", str(tmp_path))

    def half(work: Path) -> None:
        (work / "jars").mkdir()
        (work / "jars" / "kafka.jar").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr("app.broker.jars._resolve", half)
    with pytest.raises(KeyboardInterrupt):
        embedded.jars()
    assert list(tmp_path.iterdir()) == []


def test_cache_that_can_t_be_written_names_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HEADRACE_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(BrokerError, match="set HEADRACE_CACHE_DIR"):
        embedded.jars()


def test_broker_stopped_while_starting_leaves_nothing(start: Start) -> None:
    broker = start()
    wait_until(lambda: (broker.data_dir / "stdout.log").exists(), 60, "Kafka launched")
    children = psutil.Process(broker.process.pid).children()
    assert (
        broker.stop(seconds=60) == 0
    )  # a Kafka that is just starting may take its whole time to stop, and is killed then
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive
    assert broker.out.read_bytes() == b""
