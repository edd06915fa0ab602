"""The gateway's ASGI app, put together from families of routes."""

from collections.abc import Callable, Sequence

from starlette.applications import Starlette
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from millstream.gateway.access import Access, Credentials
from millstream.gateway.answers import JSON
from millstream.gateway.context_paths import ContextPaths
from millstream.gateway.endpoints import Threads, endpoint
from millstream.gateway.errors import HANDLERS
from millstream.gateway.health import health_routes
from millstream.gateway.schema_routes import SchemaRoutes
from millstream.gateway.schema_setting_routes import SchemaSettingRoutes
from millstream.registry.registry import Registry


def registry_routes(registry: Registry) -> list[BaseRoute]:
    return [*SchemaRoutes(registry).routes(), *SchemaSettingRoutes(registry).routes()]


def make_app(
    families: Sequence[Sequence[BaseRoute]],
    *,
    trouble: Callable[[], str | None],
    credentials: Credentials | None = None,
    loopback: bool = True,
) -> ASGIApp:
    """`trouble` says why the gateway is not ready, or None. Credentials that are None or empty let everybody in."""
    routes = [endpoint("GET", "/", lambda asked: {}, media_type=JSON), *health_routes(trouble)]
    routes += [route for family in families for route in family]
    app = Starlette(routes=routes, exception_handlers=HANDLERS)
    app.router.redirect_slashes = False
    app.state.threads = Threads()
    return Access(ContextPaths(app), credentials or Credentials(), loopback=loopback)
