"""Where a local copy goes on reading, and whether it belongs to its changelog (app.delivery.changelog)."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from aiokafka.structs import TopicPartition

from app.delivery.changelog import ChangelogReader, Copy, is_foreign
from app.delivery.database import COPY_OF
from app.delivery.maps import Map
from app.delivery.member import forget_member, note_member
from app.delivery.offline import OfflineState
from app.delivery.restore import Progress
from app.delivery.state import APPLIED, Applied
from models.events import Received

PLAIN: Map[int] = Map("plain", b"p", int)


def marker(offset: int, life: str) -> bytes:
    return msgspec.msgpack.encode(Applied(offset, 1, 2, life))


def record(offset: int, key: bytes, value: bytes | None) -> Received:
    return Received("c", 0, offset, 0, key, value)


@pytest.fixture
def copy(tmp_path: Path) -> Any:
    state = OfflineState(tmp_path, "s", "c", [PLAIN])
    yield Copy(state, TopicPartition("c", 0), start=0, end=100)
    state.store.close()


def filled(copy: Copy) -> Copy:
    """Two transactions: offsets 0 to 2, and 3 to 5 (the last of each is its commit marker)."""
    copy.state.apply(0, [(b"pa", b"\x01"), (APPLIED, marker(9, "mine"))], 2)
    copy.state.apply(0, [(b"pb", b"\x02"), (APPLIED, marker(19, "mine"))], 5)
    return copy


def test_a_new_copy_reads_all(copy: Copy) -> None:
    copy.start = 7
    copy.locate()
    assert (copy.next, copy.unsure) == (7, None)


def test_a_copy_is_read_from_its_own_last_transaction_on(copy: Copy) -> None:
    filled(copy).locate()
    assert copy.next == 3


def test_however_much_was_read_at_once_the_next_start_begins_at_the_last_marker(copy: Copy) -> None:
    records = [record(n, b"p%d" % n, b"\x01") for n in range(40)]
    copy.apply([*records, record(40, APPLIED, marker(9, "mine")), record(42, b"pz", b"\x01")], 43)
    copy.locate()
    assert copy.next == 40
    copy.apply([record(44, b"py", b"\x01")], 45)  # no marker in it
    copy.locate()
    assert copy.next == 40


def test_what_the_copy_has_is_dropped_once_the_marker_agrees(copy: Copy) -> None:
    filled(copy).locate()
    tail = [record(3, b"pb", b"\x02"), record(4, APPLIED, marker(19, "mine")), record(6, b"pc", b"\x03")]
    assert copy.sure(tail[:1], at_end=False) == []
    assert [r.offset for r in copy.sure(tail[1:], at_end=False) or []] == [6]


def test_the_marker_of_another_life_says_that_the_copy_is_foreign(copy: Copy) -> None:
    filled(copy).locate()
    assert copy.sure([record(3, APPLIED, marker(4, "theirs"))], at_end=False) is None


def test_a_copy_at_the_end_without_a_marker_behind_it_is_taken(copy: Copy) -> None:
    filled(copy).locate()
    assert copy.sure([record(7, b"pc", b"\x03")], at_end=True) == [record(7, b"pc", b"\x03")]


def test_a_copy_without_work_in_it_reads_all_again(copy: Copy) -> None:
    """A lane that was stopped could have written there without having read what is before."""
    copy.state.apply(0, [(b"pa", b"\x01")], 50)
    copy.locate()
    assert copy.next == 0


def test_a_copy_of_another_changelog_says_so(copy: Copy) -> None:
    assert is_foreign(copy) == ""
    copy.state.database(0).note(COPY_OF, b"other-changelog/3")
    assert is_foreign(copy) == "other-changelog/3"


@pytest.mark.parametrize(("position", "offsets"), [(3, [0, 1, 2]), (9, [0, 8])])
async def test_a_standby_whose_changelog_is_read_from_its_start_again_is_rebuilt(
    copy: Copy, position: int, offsets: list[int]
) -> None:
    """The topic was deleted and made anew: what was deleted from State meanwhile has no tombstone in it."""
    sought: list[int] = []
    consumer: Any = SimpleNamespace(seek=lambda tp, offset: sought.append(offset))
    filled(copy).next = 6
    await ChangelogReader(consumer)._take(copy, [record(n, b"pz", b"\x01") for n in offsets], position)
    assert (copy.next, sought) == (0, [0])
    assert copy.state.database(0).changelog_offset is None, "the old copy is read on"


def test_progress_that_was_cut_off_is_over() -> None:
    progress = Progress()
    progress.begin(10)
    progress.tell(4, 4000)
    assert (progress.running, progress.done, progress.rows) == (True, 4, 4000)
    assert progress.left_s > 0
    progress.end()
    assert not progress.running


def test_an_assignment_doesn_t_fail_where_the_member_can_t_be_noted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "member").mkdir()  # as unwritable as on a full disk
    note_member(tmp_path, "group", "member-1")
    assert "waits for the group's session to end" in caplog.text


def test_a_member_is_noted_and_forgotten(tmp_path: Path) -> None:
    note_member(tmp_path, "group", "member-1")
    assert (tmp_path / "member").read_text().split() == ["group", "member-1"]
    forget_member(tmp_path)
    forget_member(tmp_path)
    assert not (tmp_path / "member").exists()
