"""What families of routes are made from: cluster, registry, options, and what begins and ends with the gateway."""

import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack
from dataclasses import dataclass, field

from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from millstream.gateway.http.configuration import Credentials, Limits
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
    """Of the client to the cluster, by the names of Kafka's or librdkafka's."""
    credentials: Credentials = field(default_factory=Credentials)
    insecure: bool = False
    """Serve everybody, wherever they are."""
    certificate: str | None = None
    key: str | None = None
    schemas_topic: str = TOPIC
    timeout_s: float = 30.0
    listener: socket.socket | None = None
    """Open already, by whoever started this process."""
    limits: Limits = field(default_factory=Limits)


Lifespan = Callable[[], AbstractAsyncContextManager[None]]


@dataclass(frozen=True, slots=True)
class GatewayContext:
    options: GatewayOptions
    cluster: Cluster
    registry: Registry
    closing: ExitStack = field(default_factory=ExitStack)
    """`parts.closing.callback(f)`: called once no more requests are served, the last one first; then cluster and
    registry are closed."""
    lifespans: list[Lifespan] = field(default_factory=list)
    """Entered in the server's event loop before the first request, left after the last."""
    on_stop: list[Callable[[], None]] = field(default_factory=list)
    """Called in the event loop when the gateway begins to stop: requests that wait for something end now."""
    mounts: dict[str, ASGIApp] = field(default_factory=dict)
    """Whole apps below a prefix such as "/console": they get requests and websockets as they are, path untouched but
    for `root_path`. Access is checked before."""


RouteGroup = Callable[[GatewayContext], Sequence[BaseRoute]]
"""Makes its routes; may add to the parts what must be closed, what lives in the event loop, and mounts."""
