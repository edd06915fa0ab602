"""The web console, mounted at /console."""

from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from millstream.console.mounting import ConsoleMount
from millstream.console.navigation import BASE
from millstream.gateway.http.errors import error_answer
from millstream.gateway.http.parts import GatewayParts

_NOT_FOUND = f"""<!doctype html>
<html lang="en"><title>Not found · Millstream</title>
<h1>There is no such page</h1>
<p>Go on from the <a href="{BASE}">console's overview</a>; <a href="/docs">/docs</a> lists what there is besides.</p>
</html>
"""
_NO_SCRIPTS = {"Content-Security-Policy": "default-src 'none'", "X-Content-Type-Options": "nosniff"}


def console_family(parts: GatewayParts) -> Sequence[BaseRoute]:
    """No routes: a whole app below a prefix."""
    console = ConsoleMount(parts.cluster, parts.registry)
    parts.closing.callback(console.close)
    parts.lifespans.append(console.lifespan)
    parts.mounts[BASE] = _Signposted(console)
    return ()


class _Signposted:
    """Who asks for a page that there is not is shown the way, which NiceGUI does not."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_missing = False

        async def sending(message: Message) -> None:
            nonlocal is_missing
            if message["type"] == "http.response.start":
                is_missing = message["status"] == 404
            if not is_missing:
                await send(message)

        await self._app(scope, receive, sending)
        if is_missing:
            await _not_found(scope)(scope, receive, send)


def _not_found(scope: Scope) -> Response:
    if "text/html" in Headers(scope=scope).get("accept", ""):
        return HTMLResponse(_NOT_FOUND, 404, _NO_SCRIPTS)
    return error_answer(scope["path"], 404, 404, "the console has no such page", f"GET {BASE} is its overview")
