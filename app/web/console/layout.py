"""What is around every page: header, navigation, keys, theme and language."""

import contextlib
import json
from collections.abc import Iterator

from nicegui import ui
from nicegui.page import page as nicegui_page

from app.web.console.audit import note_anyway
from app.web.console.context import Visit, visiting
from app.web.console.pagelist import PAGES, Page
from app.web.console.roles import allowed
from app.web.console.sessions import LOCAL_USER
from app.web.console.texts import LANGUAGES

__all__ = ["ConsolePage", "frame"]

YEAR_S = 365 * 86_400

SET_COOKIE = "document.cookie = '{name}={value}; path=/; max-age=" + str(YEAR_S) + "; samesite=lax'; location.reload()"

ZONE = """
(() => {
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || 'UTC';
  if (zone === %s || sessionStorage.getItem('zone') === zone) return;
  sessionStorage.setItem('zone', zone);
  document.cookie = 'headrace_zone=' + zone + '; path=/; max-age=%d; samesite=lax';
  location.reload();
})();
"""
"""The browser's zone is known from the second page on, so the first one is loaded anew once."""

KEYS = """
(() => {
  const paths = %s;
  let waits = 0;
  document.addEventListener('keydown', (event) => {
    const at = event.target;
    if (event.ctrlKey || event.metaKey || event.altKey || at.isContentEditable
        || /^(INPUT|TEXTAREA|SELECT)$/.test(at.tagName) || at.closest('.cm-editor, .q-dialog')) return;
    const now = Date.now();
    if (event.key === '?') document.querySelector('[data-help]')?.click();
    else if (event.key === 'g') waits = now + 1500;
    else if (now < waits && paths[event.key]) { waits = 0; location.href = paths[event.key]; }
    else waits = 0;
  });
})();
"""
"""In the browser: a key needs no round trip, and none is taken while somebody types."""

STYLE = """
body { --nicegui-default-padding: 1rem; }
.nicegui-content { max-width: 1600px; margin: 0 auto; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.2rem, 1fr)); gap: .75rem; }
.num { font-variant-numeric: tabular-nums; }
.mono { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; font-size: .85em; }
.q-table td.mono { max-width: 40rem; overflow: hidden; text-overflow: ellipsis; }
@media (max-width: 700px) { .wide-only { display: none !important; } }
"""


class ConsolePage(nicegui_page):
    """A page in the viewer's language and theme."""

    def resolve_language(self) -> str:  # type: ignore[override]  # Quasar's names are a long Literal of NiceGUI's
        visit = visiting.get()
        return LANGUAGES[visit.language] if visit else "en-US"

    def resolve_dark(self) -> bool | None:
        visit = visiting.get()
        return visit.dark if visit else None


@contextlib.contextmanager
def frame(visit: Visit, here: Page) -> Iterator[None]:
    """Draws the frame; what is drawn inside the `with` is the page's content."""
    shown = [page for page in PAGES if visit.may(page.role)]
    ui.page_title(f"{visit.t('page_' + here.name)} · headrace")
    ui.add_head_html(f"<style>{STYLE}</style>")
    ui.add_body_html(f"<script>{ZONE % (json.dumps(visit.zone.key), YEAR_S)}</script>")
    ui.add_body_html(f"<script>{KEYS % json.dumps({page.key: visit.link(page.path) for page in shown})}</script>")
    ui.colors(primary="#1565c0")
    drawer = ui.left_drawer(value=None, bordered=True).classes("q-pa-none").props("width=200 breakpoint=900")
    with drawer, ui.list().classes("self-stretch").props("padding"):
        for page in shown:
            _entry(visit, page, current=page is here)
    with ui.header(elevated=False, bordered=True).classes("items-center q-py-xs bg-primary text-white"):
        ui.button(icon="menu", on_click=drawer.toggle).props("flat round dense color=white").props("data-mark=menu")
        ui.label("headrace").classes("text-h6")
        ui.space()
        ui.label(visit.t("zone", zone=visit.zone.key)).classes("wide-only text-caption")
        _theme(visit)
        _language(visit)
        _keys(visit, shown)
        _user(visit)
    with ui.column().classes("w-full"):
        if not visit.console.sessions.current:
            ui.label(visit.t("stale_users")).classes("text-negative")
        yield


def _entry(visit: Visit, page: Page, current: bool) -> None:
    with (
        ui.item()
        .props(f'clickable href="{visit.link(page.path)}" {"active" if current else ""}')
        .props(f"data-mark=nav-{page.name}")
    ):
        with ui.item_section().props("avatar"):
            ui.icon(page.icon)
        with ui.item_section():
            ui.item_label(visit.t(f"page_{page.name}"))


def _theme(visit: Visit) -> None:
    following, icon = {None: ("0", "brightness_auto"), False: ("1", "light_mode"), True: ("", "dark_mode")}[visit.dark]
    button = (
        ui.button(icon=icon).props("flat round dense color=white").tooltip(visit.t("theme")).props("data-mark=theme")
    )
    button.on("click", js_handler=f"() => {{ {SET_COOKIE.format(name='headrace_dark', value=following)} }}")


def _language(visit: Visit) -> None:
    other = "en" if visit.language == "zh" else "zh"
    button = ui.button(visit.t("language")).props("flat dense no-caps color=white").props("data-mark=language")
    button.on("click", js_handler=f"() => {{ {SET_COOKIE.format(name='headrace_language', value=other)} }}")


def _keys(visit: Visit, shown: list[Page]) -> None:
    with ui.dialog() as dialog, ui.card():
        ui.label(f"{visit.t('help')}: {visit.t('help_go')}").classes("text-subtitle1")
        for page in shown:
            with ui.row().classes("items-center"):
                ui.badge(page.key).props("outline")
                ui.label(visit.t(f"page_{page.name}"))
    ui.button(icon="keyboard", on_click=dialog.open).props("flat round dense color=white data-help").classes(
        "wide-only"
    )


def _user(visit: Visit) -> None:
    role = visit.console.sessions.role(visit.session) or "viewer"

    @allowed("viewer")
    async def log_out() -> None:
        await visit.console.end_session(visit.session)
        await note_anyway(visit.console, visit.session.user, visit.address, "logout")

    name = "local" if visit.session.user == LOCAL_USER else visit.session.user
    with ui.button(icon="account_circle").props("flat dense no-caps color=white").props("data-mark=user"), ui.menu():
        ui.item(f"{name} · {visit.t('role_' + role)}")
        ui.separator()
        ui.menu_item(visit.t("log_out"), log_out).props("data-mark=log-out")
