"""The gateway's ASGI app: all route groups, and the web console mounted at /console.

The families of routes that every gateway serves, in the order in which they are matched.

The web console, mounted at /console.

Confluent's REST Proxy, version 3, at /v3: clusters, brokers, topics, settings, consumer groups, and records. Version 2
is beside our own routes.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from millstream.access.roles import Role
from millstream.admin.topics import TopicAdmin
from millstream.console.console import BASE, Console
from millstream.console.live.watcher import Watcher
from millstream.console.mounting import ConsoleMount
from millstream.console.visitor import VISITOR, Action, Visitor
from millstream.formats.records.opening import OpeningLimits
from millstream.gateway.admin.access import access_routes
from millstream.gateway.admin.groups import group_routes
from millstream.gateway.admin.mirrors import mirror_routes
from millstream.gateway.admin.topics import topic_routes
from millstream.gateway.consumers.routes import ConsumerRoutes
from millstream.gateway.consumers.sessions import Sessions
from millstream.gateway.context import GatewayContext, Lifespan, RouteGroup
from millstream.gateway.http.access import Access, health_routes
from millstream.gateway.http.audit import ADMINISTRATION, AUTHORIZATION, AuditTrail
from millstream.gateway.http.errors import HANDLERS, ApiError, error_response
from millstream.gateway.http.inflating import Inflating
from millstream.gateway.http.openapi import openapi_routes
from millstream.gateway.http.request import ApiRequest
from millstream.gateway.http.routes import TEXT, Doc, Threads, endpoint, mapping
from millstream.gateway.identity.authentication import (
    SESSION,
    Authentication,
    address_of_client,
    cluster_in,
    cluster_path,
)
from millstream.gateway.identity.caller import CALLER, Caller, caller_cluster
from millstream.gateway.identity.oidc import OidcClient
from millstream.gateway.identity.sessions import ConsoleSession
from millstream.gateway.identity.sign_in import SignInPages, problem_page, wants_page
from millstream.gateway.metrics import GatewayMetrics, ResponseCounts, metrics_routes
from millstream.gateway.produce.conditional import partition_offsets_routes
from millstream.gateway.produce.routes import ProduceRoutes, Producing
from millstream.gateway.rest_v2.consumers import V2ConsumerRoutes
from millstream.gateway.rest_v2.produce import V2ProduceRoutes
from millstream.gateway.rest_v2.topics import v2_topic_routes
from millstream.gateway.rest_v3.acls import AclRoutes
from millstream.gateway.rest_v3.configs import ConfigRoutes
from millstream.gateway.rest_v3.groups import GroupRoutes
from millstream.gateway.rest_v3.records import RecordRoutes
from millstream.gateway.rest_v3.resources import Links, not_found
from millstream.gateway.rest_v3.topics import ReplicaRoutes, TopicRoutes
from millstream.gateway.schemas.routes import ContextPaths, SchemaRoutes, SchemaSettingRoutes
from millstream.gateway.sql import sql_routes
from millstream.gateway.streams.routes import stream_routes
from millstream.registry.decoding import Decoder

CONSOLE = "/console"


def make_app(
    families: Sequence[Sequence[BaseRoute]],
    *,
    not_ready_reason: Callable[[], str | None],
    authentication: Authentication,
    loopback: bool = True,
    origins: Sequence[str] = (),
    strict_transport: bool = False,
    mounts: Mapping[str, ASGIApp] | None = None,
    lifespans: Sequence[Lifespan] = (),
    certificate_ends_at: Callable[[], float | None] = lambda: None,
) -> ASGIApp:
    """`not_ready_reason` returns None if the gateway is ready. `certificate_ends_at`: seconds since 1970."""
    counts, pool = ResponseCounts(), authentication.pool
    metrics = GatewayMetrics(
        lambda: authentication.counts.items(),
        lambda: len(authentication.sessions),
        lambda: 0 if pool is None else len(pool),
        counts,
        lambda: not_ready_reason() is None,
        certificate_ends_at,
        authentication.trail,
    )
    mounted = dict(mounts or {})
    routes = [_front_door(CONSOLE in mounted), *health_routes(not_ready_reason), *metrics_routes(metrics)]
    routes += [route for family in families for route in family]
    routes += openapi_routes(routes)
    app = Starlette(routes=routes, exception_handlers=HANDLERS, lifespan=_together(lifespans))
    app.router.redirect_slashes = False
    app.state.threads = Threads()
    app.state.trail = authentication.trail
    behind: ASGIApp = _Mounts(ContextPaths(app), mounted) if mounted else ContextPaths(app)
    behind = Inflating(behind)
    if authentication.has_sign_in:
        oidc = None if authentication.rules.oidc is None else OidcClient(authentication.rules.oidc)
        behind = SignInPages(behind, authentication, origins[0] if origins else None, oidc)
    return Access(
        behind,
        authentication,
        loopback=loopback,
        origins=origins,
        strict_transport=strict_transport,
        note_status=counts.note,
    )


def _front_door(has_console: bool) -> BaseRoute:
    """A JSON object, as clients of a registry expect; browsers are redirected to the console."""

    def serve(req: ApiRequest) -> object:
        if has_console and "text/html" in req.accepts:
            return RedirectResponse(CONSOLE)
        return {"docs": "/docs"} | ({"console": CONSOLE} if has_console else {})

    doc = Doc(
        tag="Health",
        summary="Links; browsers are redirected to the console",
        response=mapping(TEXT),
    )
    return endpoint("GET", "/", serve, doc=doc, at_once=True)


def _together(lifespans: Sequence[Lifespan]) -> Callable[[Starlette], contextlib.AbstractAsyncContextManager[None]]:
    @contextlib.asynccontextmanager
    async def combined(app: Starlette) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            for lifespan in lifespans:
                await stack.enter_async_context(lifespan())
            yield

    return combined


class _Mounts:
    """Serves mounted apps below their prefixes, websockets included; other requests go to the routes."""

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


_NOT_FOUND = f"""<!doctype html>
<html lang="en"><title>Not found · Millstream</title>
<h1>Page not found</h1>
<p>See the <a href="{BASE}">overview of the console</a>, or <a href="/docs">the HTTP API</a>.</p>
</html>
"""
_NO_SCRIPTS = {"Content-Security-Policy": "default-src 'none'", "X-Content-Type-Options": "nosniff"}


def console_routes(parts: GatewayContext) -> Sequence[BaseRoute]:
    """Mounts the console; it has no routes of the gateway."""
    own = parts.authentication.own
    console = ConsoleMount(parts.cluster, parts.registry, parts.certificate_ends_at)
    own.part(Console, lambda: console.console)
    parts.closing.callback(console.close)
    parts.lifespans.append(console.lifespan)
    parts.mounts[BASE] = _Visitors(_NotFoundPage(console), parts)
    return ()


class _Visitors:
    """Puts the user of a page into the scope: each caller with a connection of its own has its own watcher, too. With
    several clusters, the pages of one are below its own path, so that links keep the cluster."""

    def __init__(self, app: ASGIApp, parts: GatewayContext) -> None:
        self._app = app
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        first = self._parts.authentication
        name = cluster_in(scope["path"])
        if name is not None:
            if name not in first.by_cluster:
                await self._unknown(scope, name)(scope, receive, send)
                return
            root = cluster_path(name)
            path = f"{root}/" if scope["path"] == root else scope["path"]
            scope = {**scope, "path": path, "root_path": root}
        elif first.by_cluster and wants_page(scope):
            rest = quote(scope["path"].removeprefix(BASE), safe="/")
            query = scope.get("query_string", b"").decode("latin-1")
            where = f"{cluster_path(first.cluster_name)}{rest}{f'?{query}' if query else ''}"
            await RedirectResponse(where, 307)(scope, receive, send)
            return
        caller: Caller | None = scope.get(CALLER)
        if caller is not None:
            authentication = first.at(scope["path"])
            scope[VISITOR] = self._visitor(authentication, caller, scope.get(SESSION), address_of_client(scope))
        await self._app(scope, receive, send)

    def _unknown(self, scope: Scope, name: str) -> Response:
        known = list(self._parts.authentication.by_cluster)
        error = ApiError(404, f"the console has no cluster {name!r}", f"the clusters are {', '.join(known) or 'one'}")
        page = problem_page(scope, error, known)
        return page or error_response(scope["path"], 404, 404, error.message, error.hint)

    def _visitor(
        self, authentication: Authentication, caller: Caller, session: ConsoleSession | None, address: str
    ) -> Visitor:
        connection = caller.connection
        registry = self._parts.registries.get(authentication.cluster_name, self._parts.registry)
        sessions = authentication.sessions

        def make() -> Console:
            return Console(connection.cluster, registry, Watcher(connection.cluster, self._parts.certificate_ends_at))

        def is_valid() -> bool:
            return not connection.is_closed and (session is None or sessions.is_valid(session))

        console = connection.part(Console, make, Console.close)
        return Visitor(
            caller.name,
            caller.role,
            replace(console, registry=registry.limited_to(caller.subjects)),
            caller.mask_of,
            is_valid,
            connection.hold,
            connection.release,
            can_sign_out=session is not None,
            may_write=caller.may_write,
            note=partial(_note, authentication.trail, caller.name, address),
            serves_http=authentication is self._parts.authentication,
            cluster=authentication.cluster_name,
            clusters=[
                name
                for name, each in authentication.by_cluster.items()
                if each.rules.roles.role_of(caller.name, caller.groups) > Role.NONE
            ],
        )


def _note(trail: AuditTrail, user: str, address: str, action: Action, result: str, arguments: Sequence[object]) -> None:
    """Records an action of the console. Records that are written are data, and not in it."""
    if action is Action.PRODUCE and result != "denied":
        return
    names = [] if action is Action.PRODUCE else [str(each)[:100] for each in arguments if isinstance(each, (str, int))]
    kind = AUTHORIZATION if result == "denied" else ADMINISTRATION
    trail.record(kind, result, user, address, api=f"console: {action.words}", request=names)


class _NotFoundPage:
    """Serves a 404 page that links to the overview, instead of NiceGUI's."""

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
    return error_response(scope["path"], 404, 404, "the console has no such page", f"GET {BASE} for its overview")


def v3_routes(parts: GatewayContext, producing: Producing) -> list[BaseRoute]:
    links = _links()
    return [
        *AclRoutes(links).routes(),
        *ConfigRoutes(links).routes(),
        *ReplicaRoutes(links).routes(),
        *TopicRoutes(links).routes(),
        *GroupRoutes(links).routes(),
        *RecordRoutes(producing, parts.registry, links).routes(),
    ]


def _links() -> Callable[[ApiRequest], Links]:
    known: list[str] = []

    def links(req: ApiRequest) -> Links:
        """Links of the cluster in the path, which must be this one. Its id never changes, so it is read once."""
        if not known:
            known.append(TopicAdmin(caller_cluster()).cluster().cluster_id)
        if req.path("cluster_id") != known[0]:
            raise not_found(f"Cluster {req.path('cluster_id')}", f"the id of this cluster is {known[0]}")
        return Links(req, known[0])

    return links


def registry_routes(parts: GatewayContext) -> Sequence[BaseRoute]:
    return [*SchemaRoutes(parts.registry).routes(), *SchemaSettingRoutes(parts.registry).routes()]


def produce_routes(parts: GatewayContext) -> Sequence[BaseRoute]:
    """Our own routes and Confluent's. They share the producer of the caller."""
    producing = Producing(parts)
    return [
        *ProduceRoutes(producing).routes(),
        *partition_offsets_routes(),
        *v3_routes(parts, producing),
        *V2ProduceRoutes(producing, parts.registry).routes(),
    ]


def consumer_routes(parts: GatewayContext) -> Sequence[BaseRoute]:
    """Our own routes and those of REST v2. They share the open consumers."""
    limits = parts.options.limits
    opening = OpeningLimits(limits.max_batch_bytes, limits.max_batch_records)
    sessions = Sessions(limits.max_consumers, opening, limits.max_consumers_per_caller)
    parts.lifespans.append(sessions.lifespan)
    parts.on_stop.append(sessions.stop_polls)
    decoder = Decoder(parts.registry)
    return [*ConsumerRoutes(sessions, decoder).routes(), *V2ConsumerRoutes(sessions, decoder).routes()]


ROUTE_GROUPS: tuple[RouteGroup, ...] = (
    registry_routes,
    v2_topic_routes,
    topic_routes,
    group_routes,
    mirror_routes,
    access_routes,
    produce_routes,
    consumer_routes,
    stream_routes,
    sql_routes,
    console_routes,
)
