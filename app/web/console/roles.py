"""Who may set off a handler of a page. Checked when it runs, not when its button was drawn."""

import functools
import inspect
import logging
from collections.abc import Callable
from typing import Any

from nicegui import ui

from app.web.console.audit import NotAudited
from app.web.console.context import visit_now
from app.web.users import Role

__all__ = ["allowed"]

log = logging.getLogger("headrace.web")

Handler = Callable[..., Any]


def allowed(role: Role) -> Callable[[Handler], Handler]:
    """Lets a handler run only if its page's viewer may do what the role is needed for, at that moment.

    A handler whose audit record can't be written is said to have done nothing: it must write that first.
    """

    def wrap(handler: Handler) -> Handler:
        @functools.wraps(handler)
        async def checked(*args: Any, **kwargs: Any) -> Any:
            visit = visit_now()
            if visit is None or not visit.may(role):
                if visit is not None:
                    log.warning("console: %s isn't allowed to %s", visit.session.user, handler.__qualname__)
                    ui.notify(visit.not_allowed(role), type="negative")
                return None
            try:
                result = handler(*args, **kwargs)
                return await result if inspect.isawaitable(result) else result
            except NotAudited:
                ui.notify(visit.t("not_audited"), type="negative")
                return None

        return checked

    return wrap
