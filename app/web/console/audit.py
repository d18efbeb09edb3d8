"""What people do in the console, in the topic `console-audit`: written before it is done, or it isn't done."""

import json
import logging
import time
from collections.abc import Mapping

from aiokafka.errors import KafkaError

from app.errors import HeadraceError
from app.web.console.context import Console, Visit

__all__ = ["NotAudited", "audit", "note", "note_anyway"]

log = logging.getLogger("headrace.web")


class NotAudited(HeadraceError):
    """The audit topic can't be written now. Retryable; what was to be audited must not be done."""

    retryable = True


async def audit(visit: Visit, action: str, target: str, detail: Mapping[str, object] | None = None) -> None:
    """Writes what the viewer is about to do, and waits until Kafka has acked it.

    Args:
        visit: who.
        action: a stable word, such as `redrive`.
        target: what it is done to, such as `dead-letter/3/1207`.
        detail: more of it: counts, reasons, what was before. Never payloads.

    Raises:
        NotAudited: it isn't known to be stored: don't do it.
    """
    session = visit.session
    who: dict[str, object] = {"role": visit.console.sessions.role(session)}
    if session.guest is not None:
        who["subject"] = session.guest.subject
    try:
        await note(visit.console, session.user, visit.address, action, target, {**who, **(detail or {})})
    except (KafkaError, TimeoutError) as error:
        log.warning("console: %s by %s isn't done: no audit (%s)", action, session.user, type(error).__name__)
        raise NotAudited(f"{action} {target} isn't done: the audit topic can't be written") from error


async def note(
    console: Console, user: str, address: str, action: str, target: str = "", detail: Mapping[str, object] | None = None
) -> None:
    """Writes one record.

    Raises:
        KafkaError: it isn't known to be stored.
        TimeoutError: likewise.
    """
    record = {
        "at_ms": int(time.time() * 1000), "user": user, "address": address, "action": action, "target": target,
        "detail": dict(detail or {}),
    }  # fmt: skip
    value = json.dumps(record, ensure_ascii=False, default=str).encode("utf-8", "replace")
    await console.writer.send_aside(console.settings.topic("console-audit"), user.encode(), value)


async def note_anyway(
    console: Console, user: str, address: str, action: str, target: str = "", detail: Mapping[str, object] | None = None
) -> None:
    """Writes one record of what happens whether it can be written or not: logins, their refusal, logouts."""
    try:
        await note(console, user, address, action, target, detail)
    except (KafkaError, TimeoutError) as error:  # looking at what is wrong must be possible then
        log.warning("console: %s of %r isn't in the audit topic (%s)", action, target or user, type(error).__name__)
