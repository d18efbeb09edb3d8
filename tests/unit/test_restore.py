"""Which copies a restore brings up to date, and which it leaves to their lanes (app.delivery.restore)."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.structs import TopicPartition

from app.delivery import presence, restore
from app.delivery.changelog import ChangelogReader, Copy
from app.delivery.maps import Map
from app.delivery.offline import OfflineState
from app.delivery.restore import Restore
from tests.helpers.cluster import Client

PLAIN: Map[int] = Map("plain", b"p", int)


class Consumer:
    """Of topics whose partitions are all empty."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.assigned: list[TopicPartition] = []

    async def beginning_offsets(self, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(tps, 0)

    end_offsets = beginning_offsets

    def assign(self, tps: list[TopicPartition]) -> None:
        self.assigned += tps

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Nothing is read."""

    def pause(self, tp: TopicPartition) -> None:
        """Likewise."""


@pytest.mark.parametrize("active", [True, False])
async def test_a_changelog_partition_that_is_missing_keeps_no_other_waiting(
    active: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic was made anew with fewer partitions; another isn't there at all."""
    states = {name: OfflineState(tmp_path, name, name, [PLAIN]) for name in ("less", "gone")}
    copies = [
        Copy(states[name], TopicPartition(name, n), active) for name, n in (("less", 0), ("less", 1), ("gone", 0))
    ]
    consumer, held, stood_by = Consumer(Client(less=1)), list[TopicPartition](), list[Copy]()

    @asynccontextmanager
    async def reader(kafka: object, told: object) -> AsyncIterator[ChangelogReader]:
        yield ChangelogReader(consumer)  # type: ignore[arg-type]  # as far as it is asked

    async def follow(self: ChangelogReader, copies: list[Copy]) -> None:
        stood_by.extend(copies)

    monkeypatch.setattr(presence, "AGAIN_S", 0.0)
    monkeypatch.setattr(restore, "changelog_reader", reader)
    monkeypatch.setattr(ChangelogReader, "follow", follow)
    delivery = SimpleNamespace(
        settings=SimpleNamespace(kafka=None), lane_of=lambda tp: SimpleNamespace(hold=lambda: held.append(tp))
    )
    its: Any = Restore.__new__(Restore)
    its.delivery, its.progress = delivery, restore.Progress()
    its.tables = SimpleNamespace(on_standbys_ready=lambda: None)
    if active:
        await its._restore(copies)
        assert held == [TopicPartition("less", 1), TopicPartition("gone", 0)]
    else:
        await its._stand_by(copies)
        assert (stood_by, held) == (copies[:1], [])
    assert consumer.assigned == [TopicPartition("less", 0)]
    for state in states.values():
        state.store.close()
