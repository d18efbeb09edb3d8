"""Whatever way a changelog is read back, the local copy is the same (app.delivery.state)."""

import itertools
import tempfile
from pathlib import Path
from typing import Any, ClassVar

from hypothesis import given, settings
from hypothesis import strategies as st

from app.delivery.database import Database
from app.delivery.maps import Map, PackedMap
from app.delivery.outbox import Outbox
from app.delivery.state import State, View

PLAIN: Map[int] = Map("plain", b"p", int)
PACKED: PackedMap[int] = PackedMap("packed", b"k", b"K", int, bucket_s=10)
KEYS = [b"a", b"b", b"c", b"d", b"e"]


class OneCopy:
    """A State of one partition without Faust, opened normally or for bulk writing."""

    _packed: ClassVar = {b"K": PACKED}
    _expire = staticmethod(State._expire)
    apply, apply_bulk, settle = State.apply, State.apply_bulk, State.settle

    def __init__(self, path: Path, *, bulk: bool = False) -> None:
        self.path = path
        self._database = Database(path, bulk=bulk)
        self.store: Any = self

    def reopen(self, partition: int, *, bulk: bool = False) -> None:
        self._database.close()
        self._database = Database(self.path, bulk=bulk)

    def database(self, partition: int) -> Database:
        return self._database

    def rows(self) -> dict[bytes, bytes]:
        return dict(self._database.scan(b"p")) | dict(self._database.scan(b"k")) | dict(self._database.scan(b"K"))


steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from(KEYS), st.integers(0, 9)),
        st.tuples(st.just("delete"), st.sampled_from(KEYS)),
        st.tuples(st.just("pack"), st.sets(st.sampled_from(KEYS), min_size=1), st.integers(0, 5)),
        st.tuples(st.just("expire"), st.integers(0, 30)),
    ),
    max_size=25,
)


def run(work: list[Any], live: OneCopy) -> list[tuple[bytes, bytes | None]]:
    """Does the steps as a lane does, writing locally what it commits; returns the changelog."""
    changelog: list[tuple[bytes, bytes | None]] = []
    view: Any = View(live, 0)  # type: ignore[arg-type]
    records: list[bytes] = []
    for number, step in enumerate(work):
        out = Outbox(0)
        if step[0] == "put":
            out.put(PLAIN, step[1], step[2])
        elif step[0] == "delete":
            out.delete(PLAIN, step[1])
        elif step[0] == "pack":
            out.put_packed(PACKED, step[2] * 10_000, number, [(k, b"%d" % number) for k in sorted(step[1])])
            records.append(PACKED.record(step[2] * 10_000, number))
        elif records:
            record = records.pop(step[1] % len(records))
            packed = live.database(0).get(record) or b""
            keys = [key for key, _ in PACKED.unpack(packed)]
            out.expire_packed(PACKED, record, packed, view.get_raw(PACKED, keys))
        live.database(0).write(out.local.items(), number)
        changelog += out.changelog.items()
    return changelog


def replay(
    copy: OneCopy, changelog: list[tuple[bytes, bytes | None]], cuts: list[int], *, bulk: bool, begin: int = 0
) -> None:
    """Applies a changelog in pieces, from `begin` on."""
    bounds = sorted({begin, *[c for c in cuts if begin < c < len(changelog)], len(changelog)})
    for low, high in itertools.pairwise(bounds):
        (copy.apply_bulk if bulk else copy.apply)(0, changelog[low:high], high - 1)  # type: ignore[arg-type, misc]


@settings(max_examples=60, deadline=None)
@given(steps, st.lists(st.integers(1, 60), max_size=5), st.integers(0, 60), st.booleans())
def test_any_split_any_replayed_prefix_and_bulk_writing_give_what_the_lane_wrote(
    work: list[Any], cuts: list[int], again: int, crash: bool
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        live = OneCopy(folder / "live")
        changelog = run(work, live)
        expected = live.rows()
        live._database.close()

        plain = OneCopy(folder / "plain")
        replay(plain, changelog, cuts, bulk=False)
        replay(plain, changelog, cuts, bulk=False, begin=min(again, len(changelog)))
        assert plain.rows() == expected
        plain._database.close()

        bulk = OneCopy(folder / "bulk", bulk=True)
        replay(bulk, changelog, cuts, bulk=True)
        if crash:  # ended before it settled: the next process does
            bulk.reopen(0)
        bulk.settle(0)  # type: ignore[arg-type, misc]
        assert bulk.rows() == expected
        assert list(bulk.database(0).scan(b"\x00late")) == []
        bulk._database.close()
