"""The gateway's ASGI app, put together from families of routes."""

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from starlette.applications import Starlette
from starlette.responses import RedirectResponse
from starlette.routing import BaseRoute, Mount
from starlette.types import ASGIApp, Receive, Scope, Send

from millstream.gateway.http.access import Access
from millstream.gateway.http.asked import Asked
from millstream.gateway.http.credentials import Credentials
from millstream.gateway.http.described import TEXT, Doc, mapping
from millstream.gateway.http.endpoints import Threads, endpoint
from millstream.gateway.http.errors import HANDLERS
from millstream.gateway.http.health import health_routes
from millstream.gateway.http.openapi_routes import openapi_routes
from millstream.gateway.http.parts import Lifespan
from millstream.gateway.schemas.context_paths import ContextPaths

CONSOLE = "/console"


def make_app(
    families: Sequence[Sequence[BaseRoute]],
    *,
    trouble: Callable[[], str | None],
    credentials: Credentials | None = None,
    loopback: bool = True,
    mounts: Mapping[str, ASGIApp] | None = None,
    lifespans: Sequence[Lifespan] = (),
) -> ASGIApp:
    """`trouble` says why the gateway is not ready, or None. Credentials that are None or empty let everybody in."""
    mounted = dict(mounts or {})
    routes = [_front_door(CONSOLE in mounted), *health_routes(trouble)]
    routes += [route for family in families for route in family]
    routes += openapi_routes(routes)
    app = Starlette(routes=routes, exception_handlers=HANDLERS, lifespan=_together(lifespans))
    app.router.redirect_slashes = False
    app.state.threads = Threads()
    behind = _Mounts(ContextPaths(app), mounted) if mounted else ContextPaths(app)
    return Access(behind, credentials or Credentials(), loopback=loopback)


def _front_door(has_console: bool) -> BaseRoute:
    """An object, as clients of a registry expect it; a person with a browser sees the console."""

    def serve(asked: Asked) -> object:
        if has_console and "text/html" in asked.accepts:
            return RedirectResponse(CONSOLE)
        return {"docs": "/docs"} | ({"console": CONSOLE} if has_console else {})

    doc = Doc(tag="Health", summary="Where to look next; browsers are sent to the console", answer=mapping(TEXT))
    return endpoint("GET", "/", serve, doc=doc, at_once=True)


def _together(lifespans: Sequence[Lifespan]) -> Callable[[Starlette], contextlib.AbstractAsyncContextManager[None]]:
    @contextlib.asynccontextmanager
    async def all_of_them(app: Starlette) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            for lifespan in lifespans:
                await stack.enter_async_context(lifespan())
            yield

    return all_of_them


class _Mounts:
    """Whole apps below a prefix, requests and websockets alike; the rest goes to the routes."""

    def __init__(self, app: ASGIApp, mounts: Mapping[str, ASGIApp]) -> None:
        self._app = app
        self._mounts = [(prefix, Mount(prefix, app=mounted)) for prefix, mounted in mounts.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            path = scope["path"]
            for prefix, mount in self._mounts:
                if path == prefix:
                    scope = {**scope, "path": f"{prefix}/"}
                if scope["path"].startswith(f"{prefix}/"):
                    scope = {**scope, **mount.matches(scope)[1]}
                    await mount.handle(scope, receive, send)
                    return
        await self._app(scope, receive, send)
