"""Builds the one Faust application. Imports no agent.

`app` is made when this module is imported, from the settings, without any input or output; Kafka is asked for the first
time when a worker starts (`App.on_first_start`).
"""

import gc
import logging
import socket
import ssl
import time
import warnings
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import IO, Any

import faust
from faust.types import AppT

from app import topics
from app.delivery import transport
from app.delivery.maps import Map
from app.delivery.member import forget_member, leave_for_predecessor
from app.delivery.runtime import Delivery
from app.delivery.stage import Logic, Stage
from app.delivery.state import BatchSchema, State
from app.errors import BrokerError, SettingsError, StateError
from app.folder_lock import FolderInUse, lock_folder
from app.kafka import ssl_context
from app.llm.ledger import Ledger
from app.settings import Settings, load

__all__ = ["App", "add_stage", "app", "settings"]

log = logging.getLogger("headrace")

PORTS_TRIED = 50
GC_THRESHOLD = (500_000, 20, 50)
"""A batch makes thousands of short-lived objects; the default of 700 looks through them again and again."""


class App(faust.App):
    """The Faust app, with the delivery layer attached."""

    delivery: Delivery
    settings: Settings
    started_at: float
    helpers: list[tuple[str, Callable[[], Coroutine[Any, Any, None]]]]
    """Name and task of what runs beside the stages as long as the worker does."""
    closers: list[Callable[[], Awaitable[None]]]
    """Called when the worker stops, after its lanes are closed."""
    reloadable: list[Callable[[Settings], Callable[[], None]]]
    """What can take other settings while it runs: prepares for them, or refuses; the returned function switches over."""
    ledger: Ledger
    """Counts what model calls use, and what they save."""
    _lock_file: IO[str] | None = None

    async def on_first_start(self) -> None:
        """Takes the data folder, makes or checks topics, and learns how many partitions each has."""
        self.started_at = time.time()
        gc.freeze()  # what is imported lives as long as the worker
        gc.set_threshold(*GC_THRESHOLD)
        self.lock_folder()
        await leave_for_predecessor(self.settings.kafka, Path(self.conf.datadir), self.conf.id)
        counts = await topics.ensure(self.settings)
        self.delivery.partitions.update(counts)
        for stage in self.delivery.stages.values():
            self._fit_state(stage.state, counts[stage.topic])
        await self._check_changelogs(counts)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Faust warns of late settings; the server binds after this
            self.conf.web_port = free_port(self.conf.web_bind, self.conf.web_port)
        await super().on_first_start()
        self.delivery.supervise()
        for name, helper in self.helpers:
            self.delivery.watch(helper(), name)

    async def on_stop(self) -> None:
        await self.delivery.stop()
        if self._lock_file is not None:
            forget_member(Path(self.conf.datadir))
        for close in self.closers:
            await close()
        await super().on_stop()

    @staticmethod
    def _fit_state(state: State, partitions: int) -> None:
        """State is split as its input is."""
        state.partitions = partitions
        state.changelog_topic.partitions = partitions

    async def _check_changelogs(self, counts: dict[str, int]) -> None:
        """State is split as its input is: a changelog of another partition count can't serve it.

        Missing ones are made here. Made later, as Faust would, they'd be news to the group a minute after: a rebalance.

        Raises:
            StateError: the input got more partitions since, or the changelog was made wrong.
            BrokerError: it is missing and we may not make it.
        """
        stages = self.delivery.stages.values()
        there = await topics.counts(self.settings, [stage.changelog for stage in stages])
        missing: list[topics.Topic] = []
        for stage in stages:
            have, need = there.get(stage.changelog), counts[stage.topic]
            if have is None:
                missing.append(
                    topics.Topic(
                        name=stage.changelog, key="row", value="row", written_by=stage.name, partitions=need,
                        config={"cleanup.policy": "compact"},
                    )
                )  # fmt: skip
            if have is None and self.settings.kafka.manage_topics == "check":
                raise BrokerError(
                    f"changelog {stage.changelog} is missing and kafka.manage_topics is `check`; make it with {need} "
                    "partitions and cleanup.policy=compact"
                )
            if have is not None and have != need:
                raise StateError(
                    f"{stage.topic} has {need} partitions, its State {have} ({stage.changelog}): partitions were added, and "
                    f"repeated ids would no longer meet. Stop all workers and run `headrace tables repartition {need}`; or "
                    "begin anew with another kafka.topic_prefix"
                )
        if missing:
            await topics.make(self.settings, missing)

    def lock_folder(self) -> None:
        """One worker a data folder.

        Raises:
            StateError: another worker has it; names the folder and its process.
        """
        folder = Path(self.conf.datadir)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            self._lock_file = lock_folder(folder / "worker.lock")
        except FolderInUse as error:
            raise StateError(
                f"data folder {folder} is in use by the worker with process id {error.holder}; give this one a folder of "
                "its own, for example HEADRACE_DATA_DIR=data/worker-2"
            ) from None


def free_port(host: str, wanted: int) -> int:
    """The wanted port, or the next free one above it; 0 is any.

    Raises:
        SettingsError: 50 ports in a row are taken.
    """
    for port in range(wanted, min(wanted + PORTS_TRIED, 65536)) if wanted else [0]:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise SettingsError(f"web.port: {wanted} to {wanted + PORTS_TRIED - 1} on {host} are all taken; set another")


def build(settings: Settings) -> App:
    """Makes the Faust app from the settings. No input or output."""
    transport.register()
    delivery = Delivery(settings)
    kafka = settings.kafka
    context: ssl.SSLContext | None = ssl_context(kafka)
    built = App(
        settings.group(settings.role),
        broker=[f"kafkabatch://{server.strip()}" for server in kafka.bootstrap_servers.split(",")],
        broker_credentials=None,
        ssl_context=context,
        store="headrace://",
        TableManager="app.delivery.restore.TableManager",
        datadir=str(settings.data_dir / "worker"),
        autodiscover=False,
        topic_disable_leader=True,
        topic_allow_declare=kafka.manage_topics == "create",
        topic_partitions=kafka.partitions,
        topic_replication_factor=kafka.replication,
        table_standby_replicas=kafka.standby_replicas,
        stream_buffer_maxsize=64,  # batches, not events: lanes bound what they hold by credit
        broker_session_timeout=kafka.session_timeout_s,
        broker_heartbeat_interval=kafka.heartbeat_s,
        broker_rebalance_timeout=max(60.0, kafka.session_timeout_s * 2),
        broker_request_timeout=kafka.request_timeout_s,
        broker_max_poll_interval=kafka.max_poll_interval_s,
        producer_request_timeout=kafka.request_timeout_s,
        web_bind=settings.web.host,
        web_host=settings.web.host,
        web_port=settings.web.port,
        web_cors_options=None,
        logging_config=logging_config(settings),
    )
    built.settings, built.delivery, built.helpers, built.closers = settings, delivery, [], []
    built.ledger = Ledger(settings)
    delivery.decided = built.ledger.decided
    built.reloadable = [built.ledger.prepare]
    delivery.attach(built)
    delivery.raw_topics.update(topic.name for topic in topics.topics(settings) if topic.raw)
    return built


def logging_config(settings: Settings) -> dict[str, Any]:
    """Our own set-up: Faust's makes the root logger DEBUG at any level above info."""
    level = settings.log.level.upper()
    text = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    formatter = {"()": "app.logs.JsonFormatter"} if settings.log.format == "json" else {"format": text}
    quiet = {"level": "WARNING" if level != "DEBUG" else "DEBUG"}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"default": formatter},
        "filters": {"floods": {"()": "app.logs.NoFloods"}, "traces": {"()": "app.logs.NoTraces"}},
        "handlers": {
            "stderr": {"class": "logging.StreamHandler", "formatter": "default", "filters": ["floods", "traces"]}
        },
        "root": {"level": level, "handlers": ["stderr"]},
        "loggers": {
            "faust": quiet,
            "mode": quiet,
            "aiokafka": {"level": "ERROR"},
            "aiohttp.access": {"level": "WARNING"},
            "authlib": {"level": "WARNING"},  # it writes PKCE's verifiers at debug
        },
    }


def add_stage(
    app: AppT, *, name: str, topic: str, logic: Logic, maps: list[Map[Any]], start: str = "earliest", help: str = ""
) -> Stage:
    """Declares a stage: its State, and a Faust agent that hands the topic's batches to the lanes.

    Args:
        app: the application.
        name: `<stage>` or `<stage>-<source>`; names the State, its changelog and its transactional ids.
        topic: full name of the input topic.
        logic: what decides.
        maps: what the State holds.
        start: where a new group begins.
        help: shown by `headrace tables` and `headrace agents`.
    """
    assert isinstance(app, App)
    delivery = app.delivery
    changelog = f"{delivery.settings.topic('headrace')}-{name}-changelog"
    state = State(
        app, name=name, maps=maps, changelog=changelog, partitions=delivery.settings.kafka.partitions, help=help
    )
    app.tables.add(state)
    stage = delivery.add(Stage(delivery, name=name, topic=topic, state=state, logic=logic, start=start))
    channel = app.topic(topic, schema=BatchSchema(), key_type=bytes, value_type=bytes)

    async def run(stream: Any) -> None:
        async for event in stream.noack().events():
            message = event.message
            delivery.accept(message.topic, message.partition, event.value)
            event.ack()

    run.__doc__ = help
    app.agent(channel, name=f"agents.{name}")(run)
    return stage


settings = load()
app = build(settings)
