"""Fixtures that all tests share: a real Kafka for the session, fresh names and folders for each test."""

import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.broker.kafka import EmbeddedKafka
from tests.helpers.debian import needed
from tests.helpers.postgres import PostgresServer, programs
from tests.helpers.processes import Worker

SHARED = Path(__file__).parents[2] / "shared"


def pytest_configure() -> None:
    """Whoever starts the tests with `&` in a script has SIGINT ignored, also in all that they start: Ctrl-C is tested too."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """A broker of this session, on a free port."""
    broker = EmbeddedKafka(tmp_path_factory.mktemp("kafka"))
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server of this session."""
    server = PostgresServer(needed(programs, "postgresql"))
    try:
        server.start()
        yield server
    finally:
        server.end()


@pytest.fixture
def prefix() -> str:
    """A topic prefix of this test's own."""
    return f"t{uuid.uuid4().hex[:8]}-"


@pytest.fixture
def shared() -> Path:
    """The folder with real data; a user's clone hasn't got it."""
    if not (SHARED / "data").is_dir():
        if os.environ.get("CI"):
            pytest.fail(f"{SHARED} must be there in CI")
        pytest.skip("the real data isn't beside this checkout")
    return SHARED / "data"


class Fleet:
    """Workers of one test; all are ended with it."""

    def __init__(self, folder: Path, bootstrap: str, prefix: str) -> None:
        self.folder, self.bootstrap, self.prefix = folder, bootstrap, prefix
        self.workers: list[Worker] = []

    def worker(self, config: str | Path | None = None, **env: str) -> Worker:
        """A worker that isn't started yet."""
        base = {
            "HEADRACE_KAFKA__BOOTSTRAP_SERVERS": self.bootstrap,
            "HEADRACE_KAFKA__TOPIC_PREFIX": self.prefix,
            "HEADRACE_RESULTS__KEEP_S": "0",  # two stages less in each worker, for the tests that don't look at them
            "HEADRACE_REVIEWS__KEEP_S": "0",
        }
        if config is not None:
            path = self.folder / "headrace.toml"
            path.write_text(config.read_text() if isinstance(config, Path) else config)
            base["HEADRACE_CONFIG"] = str(path)
        worker = Worker(self.folder / f"worker-{len(self.workers)}", {**base, **env})
        self.workers.append(worker)
        return worker

    def started(self, config: str | Path | None = None, **env: str) -> Worker:
        worker = self.worker(config, **env)
        worker.start()
        worker.wait_ready()
        return worker

    def end(self) -> None:
        for worker in self.workers:
            worker.kill()


@pytest.fixture
def fleet(tmp_path: Path, kafka: EmbeddedKafka, prefix: str) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path, kafka.bootstrap, prefix)
    yield fleet
    fleet.end()
