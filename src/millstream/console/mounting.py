"""The console as an ASGI app below /console. Imports NiceGUI at the first request, because that takes a second or two.

NiceGUI has one app, one event loop and one set of pages per process. So only one gateway of a process can serve the
console; a second one (in tests) responds with 503.
"""

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable

from anyio import to_thread
from starlette.datastructures import MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from millstream.console.console import Console, set_console
from millstream.console.live.watcher import Watcher
from millstream.raw_client import Cluster
from millstream.registry.registry import Registry

_POLICY = "; ".join(
    (
        "default-src 'self'",
        # NiceGUI needs inline scripts, and Vue compiles templates in the browser.
        "script-src 'self' 'unsafe-inline' 'unsafe-eval'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data:",
        "font-src 'self' data:",
        "connect-src 'self' ws: wss:",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}
_NO_RESPONSE = "No response returned."
"""What Starlette's BaseHTTPMiddleware says if the app ends without a response."""
_taken = threading.Lock()
_log = logging.getLogger("millstream.console")


class ConsoleMount:
    """Serves /console for one gateway. Call `close` after the event loop of the gateway has ended."""

    def __init__(
        self, cluster: Cluster, registry: Registry, own_certificate: Callable[[], float | None] = lambda: None
    ) -> None:
        """`own_certificate`: when the gateway's certificate expires."""
        self.console = Console(cluster, registry, Watcher(cluster, own_certificate))
        self._app: ASGIApp | None = None
        self._starting: asyncio.Future[ASGIApp] | None = None
        self._has_taken = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app or await self._started()
        await serve_or_leave(app, scope, receive, _with_headers(scope, send))

    @contextlib.asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Shuts NiceGUI down in its event loop."""
        try:
            yield
        finally:
            if self._app is not None:
                from millstream.console import nicegui_app

                await nicegui_app.shutdown()

    def close(self) -> None:
        self.console.close()
        if self._has_taken:
            set_console(None)
            self._has_taken = False
            _taken.release()

    async def _started(self) -> ASGIApp:
        """Starts the app at the first request. Concurrent requests wait for the same start."""
        if self._starting is None:
            self._starting = asyncio.ensure_future(self._start())
        return await asyncio.shield(self._starting)

    async def _start(self) -> ASGIApp:
        if not self._has_taken and not _taken.acquire(blocking=False):
            self._starting = None  # it may be free at the next request
            return _Unavailable(
                "another gateway in this process already serves the console",
                "run each gateway in a separate process: millstream gateway --bootstrap HOST:PORT",
            )
        self._has_taken = True
        set_console(self.console)
        try:
            app, startup = await to_thread.run_sync(_load)
            await startup()
        except ImportError as error:
            _log.warning("console_missing error=%s", error)
            return _Unavailable(
                f"the console needs the package {error.name}", "install it: pip install 'millstream[gateway]'"
            )
        except Exception:
            _log.exception("console_failed")
            self._starting = None
            return _Unavailable("the console could not be started", "see the gateway's log for the reason")
        self._app = app
        return app


def _load() -> tuple[ASGIApp, Callable[[], Awaitable[None]]]:
    # The console stores nothing on disk. Without this, NiceGUI would use the working directory.
    os.environ.setdefault("NICEGUI_STORAGE_PATH", os.devnull)
    from millstream.console import nicegui_app

    return nicegui_app.load(), nicegui_app.startup


async def serve_or_leave(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Calls the app. If the client closes the connection before the response begins, the request ends without an error:
    Starlette's middleware raises RuntimeError then, and the log would have a traceback for each page left early.
    """
    has_left = False

    async def receiving() -> Message:
        nonlocal has_left
        message = await receive()
        has_left = has_left or message["type"] == "http.disconnect"
        return message

    try:
        await app(scope, receiving, send)
    except RuntimeError as error:
        if not has_left or str(error) != _NO_RESPONSE:
            raise
        _log.debug("request_left path=%s", scope["path"])


class _Unavailable:
    def __init__(self, message: str, hint: str) -> None:
        self._said = {"error_code": 503, "message": message, "hint": hint}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1013})
        else:
            await JSONResponse(self._said, 503)(scope, receive, send)


def _with_headers(scope: Scope, send: Send) -> Send:
    if scope["type"] != "http":
        return send

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers[name] = value
        await send(message)

    return sending
