"""The NiceGUI app with all pages: configured once per process, started once per event loop."""

from importlib import import_module
from pathlib import Path

from fastapi.middleware.gzip import GZipMiddleware
from nicegui import app, core, ui
from nicegui.middlewares import SetCacheControlMiddleware
from nicegui.nicegui import _shutdown, _startup
from starlette.types import ASGIApp

_ASSETS = Path(__file__).parent / "static"
_PAGES = (
    "millstream.console.overview",
    "millstream.console.topics.page",
    "millstream.console.messages.page",
    "millstream.console.sql",
    "millstream.console.groups.page",
    "millstream.console.queues.page",
    "millstream.console.schemas.page",
    "millstream.console.pipelines",
    "millstream.console.quotas",
    "millstream.console.permissions",
    "millstream.console.clients",
    "millstream.console.cluster",
    "millstream.console.brokers",
    "millstream.console.reassignments",
    "millstream.console.mirrors",
    "millstream.console.connect",
)
"""Each module registers its page when it is imported."""
_loaded = False
RECONNECT_TIMEOUT_SECONDS = 60.0
"""How long a page may be disconnected before the gateway drops it. The page is then loaded again, and the input of open
dialogs is lost. NiceGUI waits 0.4 of this for the response to a ping."""


def load() -> ASGIApp:
    global _loaded
    if not _loaded:
        _configure()
        for module in _PAGES:
            import_module(module)
        _loaded = True
    return app


async def startup() -> None:
    await _startup()


async def shutdown() -> None:
    await _shutdown()


def _configure() -> None:
    app.config.add_run_config(
        reload=False,
        title="Millstream",
        viewport="width=device-width, initial-scale=1",
        favicon=_ASSETS / "millstream.svg",
        dark=None,
        language="en-US",
        binding_refresh_interval=None,  # bindings are not used
        reconnect_timeout=RECONNECT_TIMEOUT_SECONDS,
        message_history_length=500,
        tailwind=False,
        unocss=None,
        prod_js=True,
        show_welcome_message=False,
        cache_control_directives="public, max-age=31536000, immutable",
        markdown=False,
    )
    # The gateway has already checked the access. Pages of other sites get no CORS headers.
    core.sio.eio.cors_allowed_origins = []
    app.add_middleware(GZipMiddleware)
    app.add_middleware(SetCacheControlMiddleware)
    app.add_static_files("/assets", _ASSETS, max_cache_age=0)
    app.on_page_exception(_show_page_error)


def _show_page_error(error: Exception) -> None:
    """Shown instead of a page that failed. The stack trace is in the log."""
    ui.label("This page cannot be shown")
    ui.label("Internal error in the console. See the gateway's log for the reason. Reload the page to try again.")
