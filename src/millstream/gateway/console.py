"""The web console, mounted at /console."""

from collections.abc import Sequence

from starlette.routing import BaseRoute

from millstream.console.mounting import ConsoleMount
from millstream.console.navigation import BASE
from millstream.gateway.parts import GatewayParts


def console_family(parts: GatewayParts) -> Sequence[BaseRoute]:
    """No routes: a whole app below a prefix."""
    console = ConsoleMount(parts.cluster, parts.registry)
    parts.closing.callback(console.close)
    parts.lifespans.append(console.lifespan)
    parts.mounts[BASE] = console
    return ()
