"""State as its changelog says, without a worker: for commands that export, import, reset and divide it."""

import shutil
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, TypeAlias

from aiokafka.protocol.admin import DescribeGroupsRequest_v0, DescribeGroupsRequest_v1, DescribeGroupsRequest_v2
from aiokafka.protocol.api import Request
from aiokafka.structs import TopicPartition

from app.delivery.changelog import Copy, changelog_reader
from app.delivery.database import Database
from app.delivery.local_copies import LocalCopies
from app.delivery.maps import Map, PackedMap
from app.delivery.stage import Stage
from app.delivery.state import StateRows
from app.delivery.transaction import new_producer
from app.errors import StateError
from app.kafka import admin
from app.settings import ROLES, Settings

__all__ = ["OfflineState", "keep_out", "packed_rows", "read_state", "writer"]


class _Folders(LocalCopies):
    def __init__(self, root: Path, name: str, changelog: str) -> None:
        super().__init__()
        self._where = root, name, changelog

    @property
    def _place(self) -> tuple[Path, str, str]:
        return self._where


class OfflineState(StateRows):
    """A State read from its changelog into a folder of its own."""

    def __init__(self, root: Path, name: str, changelog: str, maps: Iterable[Map[Any]]) -> None:
        self.name, self.changelog = name, changelog
        self.hold_maps(maps)
        self._folders = _Folders(root, name, changelog)

    @property
    def store(self) -> LocalCopies:
        return self._folders


@asynccontextmanager
async def read_state(
    settings: Settings, stage: Stage, partitions: Iterable[int], told: Any = None
) -> AsyncIterator[OfflineState]:
    """Reads partitions of a stage's State; the copy is gone afterwards.

    Args:
        settings: of this deployment.
        stage: whose State.
        partitions: which.
        told: hears of changelog offsets and rows as they are read.
    """
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    root = Path(mkdtemp(prefix="tables-", dir=settings.data_dir))
    state = OfflineState(root, stage.state.name, stage.changelog, stage.state.maps.values())
    try:
        copies = [Copy(state, TopicPartition(stage.changelog, partition)) for partition in partitions]
        async with changelog_reader(settings.kafka, told) as reader:
            await reader.measure(copies)
            for copy in copies:
                copy.locate()
            await reader.catch_up(copies)
        yield state
    finally:
        state.store.close()
        shutil.rmtree(root, ignore_errors=True)


def packed_rows(database: Database, of: PackedMap[Any]) -> Iterator[tuple[bytes, list[tuple[bytes, bytes]]]]:
    """The records of a packed map, each with those of its rows that it still owns."""
    for record, packed in database.scan(of.records):
        rows = of.unpack(packed)
        now = database.get_many([of.prefix + key for key, _ in rows])
        yield record, [row for row, found in zip(rows, now, strict=True) if found == row[1]]


_Structs: TypeAlias = DescribeGroupsRequest_v0 | DescribeGroupsRequest_v1 | DescribeGroupsRequest_v2


class _DescribeGroup(Request[_Structs]):  # type: ignore[misc]  # aiokafka has no types
    """DescribeGroups up to version 2: aiokafka 0.14 reads an answer of version 3 as one of version 2, and fails."""

    API_KEY = 15

    def __init__(self, group: str) -> None:
        self._group = group

    def build(self, request_struct_class: type[_Structs]) -> _Structs:
        return request_struct_class([self._group])


async def keep_out(settings: Settings) -> None:
    """Makes sure that no worker of any role runs.

    Raises:
        StateError: one does; names it.
    """
    async with admin(settings.kafka) as client:
        for group in map(settings.group, ROLES):
            node = await client.find_coordinator(group)
            answer = await client._send_request_to_node(node, _DescribeGroup(group))
            for _, _, state, _, _, members in answer.groups:
                if members:
                    who = ", ".join(f"{client_id} at {host}" for _, client_id, host, _, _ in members[:5])
                    raise StateError(
                        f"{len(members)} workers of group {group} are alive ({state}: {who}); stop them all first. One that "
                        f"was killed counts for {settings.kafka.session_timeout_s:.0f} s more"
                    )


@asynccontextmanager
async def writer(settings: Settings, stage: Stage, partition: int) -> AsyncIterator[Any]:
    """The producer of a partition's lane: a worker that still has the partition can't write from here on."""
    producer = await new_producer(settings, stage.transactional_id(partition))
    try:
        yield producer
    finally:
        await producer.stop()
