"""The families of routes that every gateway serves, in the order in which they are matched."""

from collections.abc import Sequence

from starlette.routing import BaseRoute

from millstream.gateway.admin.group_routes import group_family
from millstream.gateway.admin.topic_routes import topic_family
from millstream.gateway.console import console_family
from millstream.gateway.consumers.routes import consumer_family
from millstream.gateway.http.parts import Family, GatewayParts
from millstream.gateway.produce.routes import ProduceRoutes, Producing
from millstream.gateway.rest_v3.family import v3_routes
from millstream.gateway.schemas.routes import SchemaRoutes
from millstream.gateway.schemas.setting_routes import SchemaSettingRoutes
from millstream.gateway.streams.routes import stream_family


def registry_family(parts: GatewayParts) -> Sequence[BaseRoute]:
    return [*SchemaRoutes(parts.registry).routes(), *SchemaSettingRoutes(parts.registry).routes()]


def produce_family(parts: GatewayParts) -> Sequence[BaseRoute]:
    """Our own routes and Confluent's, which share one producer."""
    producing = Producing(parts)
    return [*ProduceRoutes(producing).routes(), *v3_routes(parts, producing)]


FAMILIES: tuple[Family, ...] = (
    registry_family,
    topic_family,
    group_family,
    produce_family,
    consumer_family,
    stream_family,
    console_family,
)
