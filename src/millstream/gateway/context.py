"""The context of the route groups: options, cluster, registry, and hooks for start and stop."""

import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack
from dataclasses import dataclass, field

from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from millstream.access.rules_file import AccessRules
from millstream.gateway.http.configuration import ClusterOptions, Credentials, Limits
from millstream.gateway.identity.authentication import Authentication
from millstream.gateway.identity.caller import current_caller
from millstream.raw_client import Cluster
from millstream.registry.log import TOPIC
from millstream.registry.registry import Registry


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    bootstrap: str
    host: str = "127.0.0.1"
    port: int = 0
    """0 picks a free one."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of the client to the cluster, with the names of Kafka or librdkafka."""
    credentials: Credentials = field(default_factory=Credentials)
    insecure: bool = False
    """Serve all callers without credentials, also from other machines."""
    certificate: str | None = None
    key: str | None = None
    schemas_topic: str = TOPIC
    timeout_s: float = 30.0
    listener: socket.socket | None = None
    """An open listener of the process that started this one."""
    limits: Limits = field(default_factory=Limits)
    pass_through: str | None = None
    """The SASL mechanism of callers with a name and a password, who then act as themselves; None: another mode."""
    rules: AccessRules = field(default_factory=AccessRules)
    """Roles, masks, permissions on subjects, client certificates, OpenID Connect."""
    origins: tuple[str, ...] = ()
    """Origins of a proxy in front of the gateway. The first one is the public address."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses of proxies whose headers X-Forwarded-For and X-Forwarded-Proto are trusted."""
    client_ca: str | None = None
    """CA certificates of clients: certificates of clients are requested and verified."""
    cluster_name: str = "main"
    """Of the first cluster, if the console has several."""
    clusters: tuple[ClusterOptions, ...] = ()
    """Further clusters of the console."""

    @property
    def demands_credentials(self) -> bool:
        return bool(self.credentials or self.pass_through or self.rules.oidc)


Lifespan = Callable[[], AbstractAsyncContextManager[None]]


@dataclass(frozen=True, slots=True)
class GatewayContext:
    options: GatewayOptions
    cluster: Cluster
    """The gateway's own. Handlers use that of the caller (`identity/caller.py`)."""
    registry: Registry
    """Without limits on subjects. Handlers use `caller_registry`."""
    authentication: Authentication
    closing: ExitStack = field(default_factory=ExitStack)
    """`closing.callback(f)`: called in reverse order after the last request; then cluster and registry are closed."""
    lifespans: list[Lifespan] = field(default_factory=list)
    """Context managers around all requests, in the event loop of the server."""
    on_stop: list[Callable[[], None]] = field(default_factory=list)
    """Called in the event loop when the gateway begins to stop: waiting requests end now."""
    mounts: dict[str, ASGIApp] = field(default_factory=dict)
    """Apps below a prefix such as "/console". They get requests and websockets unchanged except for `root_path`, after
    the access check."""
    registries: dict[str, Registry] = field(default_factory=dict)
    """By name of the cluster, if the console has several."""
    certificate_ends_at: Callable[[], float | None] = lambda: None
    """When the certificate of the HTTPS listener expires, in seconds since 1970; None without one."""


def caller_registry(registry: Registry) -> Registry:
    """The registry with the permissions of the caller of this request."""
    return registry.limited_to(current_caller().subjects)


RouteGroup = Callable[[GatewayContext], Sequence[BaseRoute]]
"""Returns the routes of a group. It may register hooks and mounts in the context."""
