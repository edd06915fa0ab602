"""The families of routes that every gateway serves, in the order in which they are matched."""

from collections.abc import Sequence

from starlette.routing import BaseRoute

from millstream.gateway.console import console_family
from millstream.gateway.consumer_routes import consumer_family
from millstream.gateway.parts import Family, GatewayParts
from millstream.gateway.schema_routes import SchemaRoutes
from millstream.gateway.schema_setting_routes import SchemaSettingRoutes


def registry_family(parts: GatewayParts) -> Sequence[BaseRoute]:
    return [*SchemaRoutes(parts.registry).routes(), *SchemaSettingRoutes(parts.registry).routes()]


FAMILIES: tuple[Family, ...] = (registry_family, consumer_family, console_family)
