"""The families of routes that every gateway serves, in the order in which they are matched."""

from collections.abc import Sequence

from starlette.routing import BaseRoute

from millstream.gateway.admin_group_routes import group_family
from millstream.gateway.admin_topic_routes import topic_family
from millstream.gateway.console import console_family
from millstream.gateway.consumer_routes import consumer_family
from millstream.gateway.parts import Family, GatewayParts
from millstream.gateway.produce_routes import ProduceRoutes, Producing
from millstream.gateway.schema_routes import SchemaRoutes
from millstream.gateway.schema_setting_routes import SchemaSettingRoutes
from millstream.gateway.stream_routes import stream_family
from millstream.gateway.v3_family import v3_routes


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
