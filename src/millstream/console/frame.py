"""The frame of every page: navigation, header, theme, keyboard shortcuts, error banner; and the decorator for pages.

    @console_page("/topics", title="Topics")
    def topics(frame: Frame) -> None:
        table = DataTable(...)
        frame.live(lambda snapshot: table.update(...))

All data from the cluster is shown as text, in labels, cells and attributes, and never as HTML or Markdown.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, ParamSpec, TypeVar
from urllib.parse import urlencode

from fastapi import Request
from nicegui import ui

from millstream.console.console import BASE, ENTRIES, Entry, UserError, current_console
from millstream.console.formats import clock
from millstream.console.live.problems import Severity, problems_of
from millstream.console.live.snapshot import Snapshot
from millstream.console.messages.reading import RecordReader
from millstream.console.url_state import begin_url_state
from millstream.console.visitor import VISITOR, Action, Visitor, anonymous
from millstream.raw_client import WireError
from millstream.registry.decoding import Decoder
from millstream.registry.errors import RegistryError

P = ParamSpec("P")
T = TypeVar("T")
E = TypeVar("E", bound=ui.element)
_CHECK_EVERY_SECONDS = 0.2
_SIGN_OF_LIFE_SECONDS = 2.0
"""A page hears something of the gateway at least this often, so it can say when the gateway is gone (console.js)."""
THEME_COOKIE = "millstream_theme"
_HEAD = """
<link rel="stylesheet" href="{base}/assets/console.css">
<script defer src="{base}/assets/console.js"></script>
"""
# Only the browser knows the theme of the system. It also stores the choice of the user, in a cookie.
_SWITCH_THEME = f"""() => {{
    const dark = !document.body.classList.contains("body--dark");
    const name = dark ? "dark" : "light";
    document.cookie = `{THEME_COOKIE}=${{name}}; path={BASE}; max-age=31536000; samesite=strict`;
    emit(dark);
}}"""
_KEYS = (
    ("g then a letter", "open a page; the letter is shown beside its name"),
    ("/", "filter the table"),
    ("j, k", "next or previous row; Enter opens it"),
    ("y", "copy the link to this view"),
    ("c", "copy the name in the selected row"),
    ("d", "switch between dark and light"),
    ("?", "show the keys"),
    ("Esc", "close the dialog"),
)
_log = logging.getLogger("millstream.console")


class Frame:
    """One open page. `parameters` are those of its URL when it was opened, `url` the state of the page in its URL."""

    def __init__(
        self,
        visitor: Visitor,
        entry: Entry,
        parameters: Mapping[str, str],
        theme: str,
        origin: str = "",
        base: str = BASE,
    ) -> None:
        """`origin`: the address of the gateway, as the browser has it. `base`: the path of the console of this
        cluster."""
        self.visitor = visitor
        self.origin = origin
        console = self.console = visitor.console
        self.parameters = parameters
        self.url = begin_url_state(parameters, base)
        self._entry = entry
        self._callbacks: list[Callable[[Snapshot], None]] = []
        self._seen = -1
        self.is_open = True
        """False when the browser has left the page."""
        self._sent_at = 0.0
        self._client = ui.context.client
        self._lay_out(theme)
        console.watcher.opened(self)
        visitor.hold()
        self._client.on_delete(self._left)
        ui.timer(_CHECK_EVERY_SECONDS, self._refresh)

    @property
    def snapshot(self) -> Snapshot:
        return self.console.watcher.snapshot

    def live(self, show: Callable[[Snapshot], None]) -> None:
        """Calls `show` now and after each poll of the cluster."""
        self._callbacks.append(show)
        show(self.snapshot)

    def _left(self) -> None:
        self.is_open = False
        self.console.watcher.left(self)
        self.visitor.release()

    def may(self, action: Action) -> bool:
        """Whether to offer it. `act` checks again."""
        return self.visitor.role >= action.role

    def offer(self, action: Action, element: E) -> E:
        """Hides the element from users who may not do this. A hidden element takes no events."""
        element.set_visibility(self.may(action))
        return element

    def reader(self) -> RecordReader:
        """Reads records as this user may see them."""
        return RecordReader(self.console.cluster, self.visitor.mask_of, Decoder(self.console.registry).decode)

    async def act(self, action: Action, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Changes something, in a thread. UserError if the role of the user is not enough. All changes go through here,
        because the browser may send any event, also of a button that is not shown."""
        note = partial(self.visitor.note, action)
        try:
            self.visitor.check(action)
        except UserError:
            note("denied", args)
            raise
        try:
            done = await self.run(work, *args, **kwargs)
        except Exception:
            note("failure", args)
            raise
        note("success", args)
        return done

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs blocking work that reads, in a thread, so that pages stay responsive. Changes: `act`."""
        self.visitor.check()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.console.workers, partial(work, *args, **kwargs))

    @contextmanager
    def reporting(self, what: str) -> Iterator[None]:
        """Shows errors of the block in the banner; for internal errors, a number to find in the log."""
        try:
            yield
        except asyncio.CancelledError:
            raise
        except (WireError, RegistryError, UserError) as error:
            self.show_error(f"{what}: {error}")
        except Exception:
            number = secrets.token_hex(4)
            _log.exception("page_failed incident=%s", number)
            self.show_error(f"{what}: internal error in the console. Search the gateway's log for incident {number}.")

    def show_error(self, text: str) -> None:
        self._banner_text.set_text(text)
        self._banner.set_visibility(True)

    def hide_error(self) -> None:
        self._banner.set_visibility(False)

    def notify(self, text: str) -> None:
        """Shows a short notification."""
        with self._client:
            ui.notify(text, type="positive", position="bottom-right", timeout=4000)

    def poll_now(self) -> None:
        """Polls the cluster at once, after a change."""
        self.console.watcher.poll_soon()

    async def confirm(self, title: str, names: Sequence[str], *, action: str, more: str = "") -> bool:
        """Asks for confirmation and lists what will be deleted. The focus is on Cancel, so Enter does not confirm."""
        with self._client, ui.dialog() as dialog, ui.card().classes("ms-dialog"):
            ui.label(title).classes("ms-dialog-title")
            with ui.element("ul").classes("ms-names"):
                for name in names[:20]:
                    with ui.element("li"):
                        ui.label(name).classes("ms-mono")
                if len(names) > 20:
                    with ui.element("li"):
                        ui.label(f"and {len(names) - 20:,} more")
            if more:
                ui.label(more).classes("ms-muted")
            with ui.row().classes("ms-actions"):
                ui.button("Cancel", on_click=lambda: dialog.submit(False)).props("flat autofocus no-caps")
                ui.button(action, on_click=lambda: dialog.submit(True)).props(
                    "unelevated color=negative no-caps data-testid=confirm"
                )
        agreed = await dialog
        if not dialog.is_deleted:  # with the page, if the user has left it
            dialog.delete()
        return bool(agreed)

    # Layout

    def _lay_out(self, theme: str) -> None:
        # By the path of the cluster: another cluster may be down, or not accept the user.
        ui.add_head_html(_HEAD.format(base=self.url.base))
        dark = ui.dark_mode({"dark": True, "light": False}.get(theme))
        ui.page_title(" · ".join(filter(None, (self._entry.title, self.visitor.cluster, "Millstream"))))
        several = len(self.visitor.clusters) > 1
        with ui.header().classes("ms-header" + (" ms-has-clusters" if several else "")).props("bordered=false"):
            menu = (
                ui.button(icon="menu", color=None)
                .props('flat dense round aria-label="Navigation"')
                .classes("ms-only-narrow")
                .tooltip("Navigation")
            )
            with ui.link(target="/").classes("ms-brand"):
                ui.element("span").classes("ms-logo")
                ui.label("Millstream")
            if several:
                self._add_clusters()
            self._cluster_id = ui.label("").classes("ms-muted ms-mono ms-cluster-id").props("data-testid=cluster-id")
            ui.space()
            with ui.link(target="/").classes("ms-plain"):
                self._health = ui.label("").classes("ms-pill").props("data-testid=health")
            self._clock = ui.label("").classes("ms-muted ms-clock")
            if self.visitor.name:
                ui.label(f"{self.visitor.name} · {self.visitor.role}").classes("ms-muted").props("data-testid=user")
            if self.visitor.can_sign_out:
                with ui.element("a").classes("ms-plain").props(f'href="{BASE}/sign-out" data-testid=sign-out'):
                    ui.label("Sign out")
            ui.button(icon="link", color=None).props(
                'flat dense round data-testid=copy-link aria-label="Copy link"'
            ).on("click", js_handler="() => millstreamCopy(location.href)").tooltip("Copy the link to this view (y)")
            switch = ui.button(icon="contrast", color=None).props(
                'flat dense round data-theme aria-label="Dark or light"'
            )
            switch.tooltip("Dark or light (d)")
            switch.on("click", lambda event: dark.set_value(bool(event.args)), js_handler=_SWITCH_THEME)
            ui.button(icon="keyboard", color=None, on_click=self._help).props(
                'flat dense round data-help aria-label="Keys"'
            ).classes("ms-not-narrow").tooltip("Keys (?)")
        with (
            ui.left_drawer(value=False, fixed=True)
            .classes("ms-drawer")
            .props("width=216 breakpoint=900 show-if-above") as drawer,
            ui.element("nav").props('aria-label="Pages"').classes("ms-nav"),
        ):
            menu.on_click(drawer.toggle)
            for entry in ENTRIES:
                here = entry.path == self._entry.path
                with (
                    ui.link(target=entry.path)
                    .classes("ms-nav-item" + (" ms-here" if here else ""))
                    .props(f"data-go={entry.key}" + (" aria-current=page" if here else ""))
                ):
                    ui.icon(entry.icon)
                    ui.label(entry.title)
                    ui.label(f"g {entry.key}").classes("ms-key")
        with ui.element("div").classes("ms-banner").props("role=alert data-testid=banner") as self._banner:
            ui.icon("error_outline")
            self._banner_text = ui.label("")
            ui.space()
            ui.button(icon="close", color=None, on_click=lambda: self._banner.set_visibility(False)).props(
                "flat dense round"
            )
        self._banner.set_visibility(False)
        with ui.element("div").classes("ms-stale").props("role=status data-testid=stale") as self._stale:
            ui.icon("cloud_off")
            self._stale_text = ui.label("")
        self._stale.set_visibility(False)
        self._show_state(self.snapshot)

    def _add_clusters(self) -> None:
        """The selection of the cluster: links to the same page of the others. What a page shows in its URL is left out,
        because another cluster has other topics and groups."""
        with (
            ui.button(self.visitor.cluster, icon="dns", color=None)
            .props('flat dense no-caps icon-right=arrow_drop_down data-testid=cluster aria-label="Cluster"')
            .classes("ms-cluster"),
            ui.menu().props("data-testid=clusters"),
        ):
            for name in self.visitor.clusters:
                here = name == self.visitor.cluster
                with ui.element("a").classes("ms-cluster-item" + (" ms-here" if here else "")) as link:
                    link.props["href"] = f"{BASE}/clusters/{name}{self._entry.path}"
                    if here:
                        link.props["aria-current"] = "true"
                    ui.label(name)

    def _help(self) -> None:
        with self._client, ui.dialog() as dialog, ui.card().classes("ms-dialog"):
            ui.label("Keys").classes("ms-dialog-title")
            with ui.element("dl").classes("ms-keys").props("data-testid=keys"):
                for keys, meaning in (*_KEYS, *((f"g {each.key}", each.title) for each in ENTRIES)):
                    with ui.element("dt"):
                        ui.label(keys).classes("ms-key")
                    with ui.element("dd"):
                        ui.label(meaning)
        dialog.on("hide", dialog.delete)
        dialog.open()

    # Updates

    def _refresh(self) -> None:
        if not self._client.has_socket_connection:
            return  # what changes meanwhile is sent with the next connection
        snapshot = self.snapshot
        now = time.monotonic()
        if snapshot.number == self._seen or not self._is_signed_in():
            if now - self._sent_at > _SIGN_OF_LIFE_SECONDS:
                self._sent_at = now
                self._client.run_javascript("0")
            return
        self._seen = snapshot.number
        self._sent_at = now
        self._show_state(snapshot)
        for show in self._callbacks:
            with self.reporting("This page cannot be updated"):
                show(snapshot)

    def _is_signed_in(self) -> bool:
        if self.visitor.is_valid():
            return True
        self.show_error("Your session has ended. Load the page again to sign in.")
        return False

    def _show_state(self, snapshot: Snapshot) -> None:
        self._cluster_id.set_text(snapshot.cluster_id)
        self._clock.set_text("" if not snapshot.number else clock(snapshot.at))
        found = problems_of(snapshot)
        worst = max((problem.severity for problem in found), default=None)
        text, tone = "Healthy", "good"
        if not snapshot.number:
            text, tone = "Connecting…", "dim"
        elif worst is Severity.CRITICAL:
            text, tone = next(each.what for each in found if each.severity is worst), "bad"
        elif worst is Severity.WARNING:
            text, tone = next(each.what for each in found if each.severity is worst), "warn"
        if self._health.text != text:
            self._health.set_text(text)
            self._health.props["title"] = text  # on a narrow screen it is cut
        self._health.classes(remove="ms-good ms-warn ms-bad ms-dim", add=f"ms-{tone}")
        stale = snapshot.error is not None and snapshot.number > 0
        self._stale.set_visibility(stale)
        if stale:
            self._stale_text.set_text(f"No broker responds. The page shows the last known state. {snapshot.error}")


def go(path: str, **query: str) -> None:
    ui.navigate.to(path + (f"?{urlencode(query)}" if query else ""))


def console_page(path: str, *, title: str = "", within: str | None = None) -> Callable[[Callable[[Frame], Any]], Any]:
    """Decorator that makes a function a page. `within` is the path of its navigation entry, by default its own."""
    entry = next(each for each in ENTRIES if each.path == (within or path))

    def decorate(build: Callable[[Frame], Any]) -> Any:
        @ui.page(path, title=f"{title or entry.title} · Millstream", response_timeout=15.0)
        def page(request: Request) -> Any:
            parameters = {**request.query_params, **request.path_params}
            visitor: Visitor = request.scope.get(VISITOR) or anonymous(current_console())
            origin = f"{request.url.scheme}://{request.headers.get('host', '127.0.0.1:8081')}"
            base = request.scope.get("root_path", BASE)
            frame = Frame(visitor, entry, parameters, request.cookies.get(THEME_COOKIE, ""), origin, base)
            with ui.element("main").classes("ms-main"):
                return build(frame)

        return build

    return decorate
