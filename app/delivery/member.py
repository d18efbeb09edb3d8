"""Lets a worker that starts again after a crash take the place of its former self at once.

A group waits for a member that vanished until its session times out, and keeps everybody else waiting with it. The data
folder is locked by one process, so the member that is noted in it is gone when another process holds the lock: the new
one tells the group so.
"""

import logging
from pathlib import Path

from aiokafka.errors import for_code
from aiokafka.protocol.group import LeaveGroupRequest

from app.kafka import KAFKA_FAILURES, admin
from app.settings import KafkaSettings

__all__ = ["forget_member", "leave_for_predecessor", "note_member"]

log = logging.getLogger("headrace.delivery")

FILE = "member"


def note_member(folder: Path, group: str, member: str) -> None:
    """Writes down which member of the group this process is. Nothing depends on it, so a full disk is no reason to fail."""
    try:
        (folder / FILE).write_text(f"{group}\n{member}\n", encoding="utf-8")
    except OSError as error:
        log.warning("a worker that follows in this data folder waits for the group's session to end: %s", error)


def forget_member(folder: Path) -> None:
    """The member leaves by itself."""
    (folder / FILE).unlink(missing_ok=True)


async def leave_for_predecessor(kafka: KafkaSettings, folder: Path, group: str) -> None:
    """Takes the folder's former process out of the group. Call it with the folder's lock held.

    Where it can't be done, the group finds out by itself when the session times out; nothing else depends on it.
    """
    path = folder / FILE
    if not path.exists():
        return
    noted = path.read_text(encoding="utf-8").split("\n")
    if len(noted) >= 2 and noted[0] == group and noted[1]:
        try:
            async with admin(kafka) as client:
                node = await client.find_coordinator(group)
                answer = await client._send_request_to_node(node, LeaveGroupRequest(group, noted[1]))
            error = for_code(answer.error_code)
            log.info("the worker that had this data folder is out of the group (%s)", error.__name__)
        except KAFKA_FAILURES as error:
            log.info("the worker that had this data folder stays in the group for its session: %s", error)
    forget_member(folder)
